/* The tasks of a group: planned, connected and run. */
#include "api/tasks.h"

#include <stdlib.h>
#include "api/group.h"
#include "base/check.h"
#include "plan/plan.h"

struct connect_job {
  struct tt_job job;
  struct ncclComm *comm;
};

static ncclResult_t run_connect(struct tt_job *job)
{
  struct ncclComm *comm = ((struct connect_job *)job)->comm;
  tt_log_set_device(comm->device_index);
  return tt_comm_fail(comm, tt_connect_run(comm->connect));
}

static void drop_connect(struct tt_job *job)
{
  free(job);
}

/* Brings up what the plans need; communicators wait for each other here when one thread drives several ranks, so each
 * gets a thread. */
static ncclResult_t connect_all(struct tt_plan *plans, int nplans)
{
  struct tt_job *jobs = NULL, **end = &jobs;
  ncclResult_t result = ncclSuccess;
  for (int p = 0; p < nplans; p++) {
    struct ncclComm *comm = plans[p].comm;
    if (comm->connect == NULL || !tt_connect_pending(comm->connect)) continue;
    struct connect_job *connect;
    TT_TRY_GOTO(TT_CALLOC(&connect, 1), result, out);
    connect->job = (struct tt_job){.run = run_connect, .drop = drop_connect};
    connect->comm = comm;
    *end = &connect->job;
    end = &connect->job.next;
  }
  result = tt_group_run_jobs(jobs);
out:
  tt_group_drop_jobs(jobs);
  return result;
}

ncclResult_t tt_tasks_run(struct ncclComm *comms)
{
  int ncomms = 0, nplans = 0;
  bool ran = false;
  struct tt_plan *plans = NULL;
  ncclResult_t result = ncclSuccess;
  for (struct ncclComm *comm = comms; comm != NULL; comm = comm->group_next) ncomms++;
  if (ncomms == 0) return ncclSuccess;
  TT_TRY(TT_POOL_NEW(comms->pool, &plans, (size_t)ncomms));
  for (struct ncclComm *comm = comms; comm != NULL; comm = comm->group_next)
    TT_TRY_GOTO(tt_plan_build(comm, &plans[nplans++]), result, out);
  TT_TRY_GOTO(connect_all(plans, nplans), result, out);
  for (int p = 0; p < nplans; p++) TT_TRY_GOTO(tt_plan_bind(&plans[p]), result, out);
  ran = true;
  result = tt_plan_run(plans, nplans);
out:
  /* Nothing of the group runs, and the other ranks wait for all of it. A mistake in usage may be put right and tried
   * again; after anything else this rank cannot be counted on. */
  if (result != ncclSuccess && result != ncclInvalidUsage && result != ncclInvalidArgument)
    for (struct ncclComm *comm = comms; comm != NULL; comm = comm->group_next) tt_comm_fail(comm, result);
  for (int p = 0; p < nplans; p++) ran ? tt_plan_free(&plans[p]) : tt_plan_take_back(&plans[p]);
  tt_pool_give(plans);
  return result;
}
