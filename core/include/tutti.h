/*
 * tutti.h: the few additions to NCCL's API.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TUTTI_H_
#define TUTTI_H_

#include <stddef.h>
#include <stdint.h>
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

/* What this rank has moved over its network in one direction since its communicator was made. Connections in which
 * another rank's proxy stands for this one are that rank's. */
typedef struct {
  uint64_t messages;  /* slots that are through */
  uint64_t bytes;     /* in them, with a header of 64 bytes each */
  uint64_t slotBytes; /* that they had room for: bytes / slotBytes says how full slots are */
  uint64_t open;      /* requests that were under way when each was given to the plugin, itself included: a sum */
  uint64_t timed;     /* messages that were timed, one in eight */
  uint64_t ns;        /* that these took from when they were given to the plugin, together; receives wait for senders */
  uint64_t mostNs;    /* the longest */
  /* What the net plugin has counted of the connections that carry them, which communicators may share: bits and figures
   * are those of tutti/counters.h. */
  uint64_t counts;
  uint64_t retries, refused, clearToSends, clearToSendWaits;
  uint64_t queueDepthMost; /* of one connection */
} tuttiNetTraffic_t;

typedef struct {
  size_t size; /* of this struct; the caller's, which gets no more than that. First, always */
  tuttiNetTraffic_t send, recv;
  /* How long operations had messages left to move, by all connections together, theirs included in which another rank
   * stands for this one. From when an operation begins on this rank: it waits for the others then, but what programs do
   * between operations does not count. Operations on devices with streams are not seen. */
  uint64_t busyNs;
} tuttiNetStats_t;

/* Any thread, at any moment. Waits for no operation, and costs those that move data nothing. ncclInvalidArgument: as
 * tuttiCommReport, or `stats` is NULL or of a size that no release has. ncclInProgress: the communicator is being made
 * or destroyed, or its thread is in a call of the network that does not return; nothing was written. */
ncclResult_t tuttiCommNetStats(ncclComm_t comm, tuttiNetStats_t *stats);

/*
 * Host streams, for communicators of the host device. Every NCCL call that takes a stream takes one of these: the call
 * then returns when the operation is enqueued, and a thread of the library runs it. Until it is complete
 * (tuttiStreamSynchronize), its buffers belong to the library.
 *
 * Order. Operations of one stream run one after another, a group counting as one operation; different streams run side
 * by side. Operations of one communicator run in the order of the calls, whatever the streams. Calls of one group on
 * one communicator, or on communicators that have a stream in common, may name several streams: they are one operation,
 * which waits for all these streams, and for which all of them wait. A call on stream NULL waits for what its
 * communicator has on streams, and for nothing else; it returns when its result is there. In a group, what shares a
 * communicator with a call on NULL is complete when the group ends.
 *
 * Failures. An operation that fails after it was enqueued is an error of its communicator (ncclCommGetAsyncError), and
 * of the streams it was on, and so is one that cannot be begun because its communicator has failed or was aborted. The
 * stream goes on with other communicators' operations.
 *
 * Threads: any, at any time. A handle is looked up, never followed: one that is unknown or was destroyed is
 * ncclInvalidArgument.
 */

/* *stream: a new stream, to be destroyed by tuttiStreamDestroy. It costs a thread from its first operation on, which
 * sleeps while there is nothing to do. */
ncclResult_t tuttiStreamCreate(cudaStream_t *stream);
/* Waits for what is on the stream, and ends it. Returns what tuttiStreamSynchronize would. NULL: nothing. */
ncclResult_t tuttiStreamDestroy(cudaStream_t stream);
/* Waits for what is on the stream at the time of the call. Returns the first failure since the last one that was
 * returned here; ncclGetLastError(NULL) on the same thread says which. NULL: nothing is ever left to wait for. */
ncclResult_t tuttiStreamSynchronize(cudaStream_t stream);
/* ncclInProgress while anything is on the stream; else what tuttiStreamSynchronize would return, which it still will.
 */
ncclResult_t tuttiStreamQuery(cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
