/*
 * tutti.h: the few additions to NCCL's API.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TUTTI_H_
#define TUTTI_H_

#include <stddef.h>
#include "nccl.h"

#define TUTTI_MAJOR 0
#define TUTTI_MINOR 1
#define TUTTI_PATCH 0
#define TUTTI_VERSION_STRING "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* Tutti's own version, major * 10000 + minor * 100 + patch; ncclGetVersion tells the NCCL release whose API it has.
 * ncclInvalidArgument for NULL. */
ncclResult_t tuttiGetVersion(int *version);

/* What communicators are at: state, pending operations with the steps done and awaited and the ranks that are waited
 * for, ranks that are late, connections that are being made, memory held. As indented text for people, or as JSON,
 * whose members docs/api.md lists. */
typedef enum { tuttiReportText = 0, tuttiReportJson = 1 } tuttiReportFormat_t;

/* Writes a report of one communicator, or with NULL of all of this process, those that are being created or destroyed
 * included, into the caller's buffer. *bytes is the buffer's size, and gets the size that the report needs with the NUL
 * at its end; if that is more, the report was cut (and still ends with a NUL). The two may differ from call to call.
 * `buffer` may be NULL if *bytes is 0.
 *
 * Any thread, at any moment, while other threads use, wait in or destroy communicators. Does not wait for operations; a
 * call may take a tenth of a second, in which it sees whether something moves. Not for signal handlers.
 *
 * ncclInvalidArgument: `bytes` is NULL, `buffer` is NULL with a size, the format is none, or `comm` is not a
 * communicator of this process. ncclSystemError: no memory. */
ncclResult_t tuttiCommReport(ncclComm_t comm, tuttiReportFormat_t format, char *buffer, size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
