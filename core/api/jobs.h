/* Jobs: what is done concurrently with its fellows, on a thread each, since it waits for them or for other ranks:
 * making a communicator, for one. */
#ifndef TT_API_JOBS_H
#define TT_API_JOBS_H

#include <pthread.h>
#include <stdbool.h>
#include "nccl.h"
#include "plan/comm.h"

struct tt_fellows; /* jobs.c */

struct tt_job {
  struct tt_job *next;
  ncclResult_t (*run)(struct tt_job *job);
  void (*drop)(struct tt_job *job); /* frees the job, run or not */
  /* The communicator that it makes, ends, or makes a child of; NULL: it is not one of a group. */
  struct ncclComm *comm;
  bool makes;      /* that communicator, so it waits for the others of the same id */
  bool blocking;   /* the call returns when it is done, as that communicator's configuration says */
  bool background; /* it is on its way while its user asks for its result by ncclCommGetAsyncError */
  bool ran;
  bool yielded;               /* it failed because a fellow had */
  struct tt_fellows *fellows; /* the running list */
  pthread_t thread;
  ncclResult_t result;
  char *text; /* a failure's sentence, or NULL */
};

/* Runs all jobs of a list at once, or none if there are not enough threads, and returns the first failure in the list's
 * order, whose sentence becomes the calling thread's. The list stays the caller's. */
ncclResult_t tt_group_run_jobs(struct tt_job *jobs);
/* For a job that makes a communicator, while it waits to meet the others: fails if a fellow of the same id, for which
 * it waits in vain, failed before it met them. */
ncclResult_t tt_group_check_fellows(struct tt_job *job);
/* Drops all jobs of a list, run or not. */
void tt_group_drop_jobs(struct tt_job *jobs);
/* What became of a job: a failure's sentence becomes the calling thread's. `unrun` if it did not run. */
ncclResult_t tt_group_job_result(const struct tt_job *job, ncclResult_t unrun);

#endif
