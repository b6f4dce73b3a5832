/* Groups. */
#include "api/group.h"

#include <stdlib.h>
#include "api/create.h"
#include "api/export.h"
#include "api/tasks.h"
#include "base/check.h"
#include "base/thread.h"
#include "plan/plan.h"

static _Thread_local struct {
  int depth;
  ncclResult_t error;
  struct ncclComm *comms, **comms_end;
  struct tt_job *jobs, **jobs_end;
} group;

void tt_group_start(void)
{
  if (group.depth++ > 0) return;
  group.error = ncclSuccess;
  group.comms = NULL;
  group.comms_end = &group.comms;
  group.jobs = NULL;
  group.jobs_end = &group.jobs;
}

ncclResult_t tt_group_note(ncclResult_t result)
{
  if (result != ncclSuccess && result != ncclInProgress && group.error == ncclSuccess) group.error = result;
  return result;
}

bool tt_group_has(const struct ncclComm *comm)
{
  const struct ncclComm *other = group.depth > 0 ? group.comms : NULL;
  while (other != NULL && other != comm) other = other->group_next;
  return other != NULL;
}

ncclResult_t tt_group_join(struct ncclComm *comm)
{
  int idle = TT_COMM_IDLE;
  if (tt_group_has(comm)) return ncclSuccess;
  if (!atomic_compare_exchange_strong(&comm->in_group, &idle, TT_COMM_IN_GROUP))
    return TT_FAIL(ncclInvalidUsage,
                   "rank %d: another thread has calls of this communicator under way or in an open "
                   "group; one thread at a time may use it",
                   comm->rank);
  comm->group_next = NULL;
  *group.comms_end = comm;
  group.comms_end = &comm->group_next;
  return ncclSuccess;
}

bool tt_group_leave(struct ncclComm *comm)
{
  int in_group = TT_COMM_IN_GROUP;
  return !atomic_compare_exchange_strong(&comm->in_group, &in_group, TT_COMM_ABANDONED);
}

void tt_group_add_job(struct tt_job *job)
{
  job->next = NULL;
  *group.jobs_end = job;
  group.jobs_end = &job->next;
}

static void *run_job(void *arg)
{
  struct tt_job *job = arg;
  job->result = job->run(job);
  return NULL;
}

/* The last one runs on the calling thread, so that a single job needs no other. */
ncclResult_t tt_group_run_jobs(struct tt_job *jobs)
{
  ncclResult_t result = ncclSuccess;
  struct tt_job *last = jobs;
  for (struct tt_job *job = jobs; job != NULL; job = job->next) last = job;
  struct tt_job *unstarted = last;
  for (struct tt_job *job = jobs; job != last; job = job->next) {
    ncclResult_t started = tt_thread_start(&job->thread, "tutti-group", run_job, job);
    if (started == ncclSuccess) continue;
    result = started; /* the others wait for this one until their deadline; running it here would wait for them */
    unstarted = job;
    break;
  }
  if (last != NULL && unstarted == last) run_job(last);
  for (struct tt_job *job = jobs; job != unstarted; job = job->next) pthread_join(job->thread, NULL);
  for (struct tt_job *job = jobs; job != NULL; job = job->next)
    if (result == ncclSuccess) result = job->result;
  return result;
}

void tt_group_drop_jobs(struct tt_job *jobs)
{
  for (struct tt_job *job = jobs, *next; job != NULL; job = next) {
    next = job->next;
    job->drop(job);
  }
}

/* Closes one level. Whether it was the outermost. */
static ncclResult_t close_level(const char *function, bool *outermost)
{
  *outermost = false;
  if (group.depth == 0)
    return TT_FAIL(ncclInvalidUsage, "%s without ncclGroupStart on this thread: call them in pairs", function);
  *outermost = --group.depth == 0;
  return ncclSuccess;
}

static void forget_group(void)
{
  for (struct ncclComm *comm = group.comms, *next; comm != NULL; comm = next) {
    next = comm->group_next;
    tt_plan_drop_tasks(comm);
    if (atomic_exchange(&comm->in_group, TT_COMM_IDLE) == TT_COMM_ABANDONED) tt_comm_destroy(comm);
  }
  tt_group_drop_jobs(group.jobs);
}

ncclResult_t tt_group_end(void)
{
  bool outermost;
  TT_TRY(close_level("ncclGroupEnd", &outermost));
  if (!outermost) return ncclSuccess;
  ncclResult_t result = group.error;
  if (result == ncclSuccess) result = tt_group_run_jobs(group.jobs);
  if (result == ncclSuccess) result = tt_tasks_run(group.comms);
  forget_group();
  return result;
}

ncclResult_t tt_group_simulate(float *microseconds)
{
  bool outermost;
  *microseconds = 0;
  TT_TRY(close_level("ncclGroupSimulateEnd", &outermost));
  if (!outermost) return ncclSuccess;
  ncclResult_t result = group.error;
  if (result == ncclSuccess && group.jobs != NULL)
    result =
        TT_FAIL(ncclInvalidUsage, "ncclGroupSimulateEnd: the group makes communicators; only operations have a cost");
  for (struct ncclComm *comm = group.comms; comm != NULL && result == ncclSuccess; comm = comm->group_next) {
    float takes;
    result = tt_plan_estimate(comm, &takes);
    *microseconds = TT_MAX(*microseconds, takes);
  }
  forget_group();
  return result;
}

TT_EXPORT(ncclResult_t, ncclGroupStart, (void))
{
  tt_group_start();
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclGroupEnd, (void))
{
  return tt_group_end();
}
