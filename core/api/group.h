/* Groups: what the calls between ncclGroupStart and ncclGroupEnd gather, and what happens at the end. State is per
 * thread. Every call is inside a group; a call outside of one opens and closes its own. */
#ifndef TT_API_GROUP_H
#define TT_API_GROUP_H

#include <stdbool.h>
#include "nccl.h"
#include "plan/comm.h"

/* Something to be done at the end of the group, concurrently with its fellows: making a communicator, for one. */
struct tt_job {
  struct tt_job *next;
  ncclResult_t (*run)(struct tt_job *job);
  void (*drop)(struct tt_job *job); /* frees the job, run or not */
  pthread_t thread;
  ncclResult_t result;
};

void tt_group_start(void);
/* Keeps the first failure of the group, and returns it. */
ncclResult_t tt_group_note(ncclResult_t result);
/* Puts the communicator on the group's list. ncclInvalidUsage if it is on another thread's. The caller holds it. */
ncclResult_t tt_group_join(struct ncclComm *comm);
/* Of a communicator whose handle was taken and that nobody holds: whether it is in no group, so that the caller frees
 * it. Else the group that it is in frees it when it ends. */
bool tt_group_leave(struct ncclComm *comm);
/* Whether the communicator is on the list of this thread's open group. */
bool tt_group_has(const struct ncclComm *comm);
/* Appends a job, which the group then owns. */
void tt_group_add_job(struct tt_job *job);
/* Runs all jobs of a list at once, and returns the first failure in the list's order. The list stays the caller's. */
ncclResult_t tt_group_run_jobs(struct tt_job *jobs);
/* Drops all jobs of a list, run or not. */
void tt_group_drop_jobs(struct tt_job *jobs);
/* Closes one level; the outermost forgets the work, and says what it would have taken, which is what the slowest of its
 * communicators takes, in microseconds. A group that makes communicators is ncclInvalidUsage. */
ncclResult_t tt_group_simulate(float *microseconds);
/* Closes one level; the outermost does the work. */
ncclResult_t tt_group_end(void);

#endif
