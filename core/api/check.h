/* Argument checks. Each failure is one sentence that names the function, the argument, its value and what is allowed.
 */
#ifndef TT_API_CHECK_H
#define TT_API_CHECK_H

#include "nccl.h"
#include "plan/comm.h"

/* A usable communicator: not finalized, without an earlier failure. The caller holds it (api/handle.h). */
ncclResult_t tt_api_check_comm(const char *function, const struct ncclComm *comm);
/* The same for a parent of new communicators, which may have been revoked. */
ncclResult_t tt_api_check_parent(const char *function, const struct ncclComm *comm);
ncclResult_t tt_api_check_pointer(const char *function, const char *argument, const void *pointer);
/* Everything about a call that moves data. The caller holds the communicator. */
ncclResult_t tt_api_check_task(const char *function, const struct ncclComm *comm, const struct tt_task *task,
                               cudaStream_t stream);

#endif
