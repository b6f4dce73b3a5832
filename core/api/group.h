/* Groups: what the calls between ncclGroupStart and ncclGroupEnd gather, and what happens at the end. State is per
 * thread. Every call is inside a group; a call outside of one opens and closes its own. */
#ifndef TT_API_GROUP_H
#define TT_API_GROUP_H

#include <stdbool.h>
#include "api/jobs.h"
#include "nccl.h"
#include "plan/comm.h"

void tt_group_start(void);
/* Keeps the first failure of the group, and returns it. */
ncclResult_t tt_group_note(ncclResult_t result);
/* Puts the communicator on the group's list. ncclInvalidUsage if it is on another thread's; ncclInvalidArgument if an
 * earlier call is in progress, or if the group has blocking communicators and this is none, or the other way round. The
 * caller holds it. */
ncclResult_t tt_group_join(struct ncclComm *comm);
/* Of a communicator whose handle was taken and that nobody holds: whether it is in no group, so that the caller frees
 * it. Else the group that it is in frees it when it ends. */
bool tt_group_leave(struct ncclComm *comm);
/* Whether the communicator is on the list of this thread's open group. */
bool tt_group_has(const struct ncclComm *comm);
/* The same, or a job of this thread's open group is about it: making it, or a child or window of it. */
bool tt_group_has_calls(const struct ncclComm *comm);
/* Drops all calls of a communicator whose handle was taken from this thread's open group, which may be none. */
void tt_group_forget(struct ncclComm *comm);
/* Appends a job, which the group then owns. ncclInvalidArgument if the group has blocking communicators and the job's
 * is none, or the other way round. */
ncclResult_t tt_group_add_job(struct tt_job *job);
/* Closes one level; the outermost forgets the work, and says what it would have taken, which is what the slowest of its
 * communicators takes, in microseconds. A group that makes communicators is ncclInvalidUsage. */
ncclResult_t tt_group_simulate(float *microseconds);
/* Closes one level; the outermost does the work, or begins it and returns ncclInProgress. */
ncclResult_t tt_group_end(void);

#endif
