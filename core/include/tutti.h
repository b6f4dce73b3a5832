/*
 * tutti.h: the few additions to NCCL's API.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TUTTI_H_
#define TUTTI_H_

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

#ifdef __cplusplus
}
#endif

#endif
