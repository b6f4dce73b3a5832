/* Argument checks. Each failure is one sentence that names the function, the argument, its value and what is allowed.
 */
#ifndef TT_API_CHECK_H
#define TT_API_CHECK_H

#include <stdbool.h>
#include "nccl.h"
#include "plan/comm.h"

/* Whether the communicator's last call, or its making, is not done yet. */
bool tt_api_in_progress(const struct ncclComm *comm);
/* It is made, and nothing is in progress. The caller holds it (api/handle.h). */
ncclResult_t tt_api_check_ready(const char *function, const struct ncclComm *comm);
/* A usable communicator: not finalized, without an earlier failure, with nothing in progress. The caller holds it
 * (api/handle.h). */
ncclResult_t tt_api_check_comm(const char *function, const struct ncclComm *comm);
/* The same for a parent of new communicators, which may have been revoked. */
ncclResult_t tt_api_check_parent(const char *function, const struct ncclComm *comm);
ncclResult_t tt_api_check_pointer(const char *function, const char *argument, const void *pointer);
/* Everything about a call that moves data. The caller holds the communicator. */
ncclResult_t tt_api_check_task(const char *function, const struct ncclComm *comm, const struct tt_task *task,
                               cudaStream_t stream);

#endif
