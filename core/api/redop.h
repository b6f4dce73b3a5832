/* Reductions of the user: ncclRedOpCreatePreMulSum. */
#ifndef TT_API_REDOP_H
#define TT_API_REDOP_H

#include "nccl.h"
#include "plan/comm.h"

/* Puts what a user's op means into the task, whose op is one of nccl.h's afterwards; a task with such an op stays as it
 * is. ncclInvalidArgument, naming `function`, for an op that is not of this communicator, was destroyed, or is for another
 * type. */
ncclResult_t tt_redop_resolve(const char *function, struct ncclComm *comm, struct tt_task *task);
/* Frees the communicator's ops. */
void tt_redop_free(struct ncclComm *comm);

#endif
