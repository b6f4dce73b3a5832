/* See gathered.h. */
#include "api/gathered.h"

#include <stdlib.h>
#include "api/tasks.h"
#include "base/check.h"
#include "base/thread.h"
#include "plan/plan.h"

void tt_gathered_clear(struct tt_gathered *gathered)
{
  *gathered = (struct tt_gathered){0};
  gathered->comms_end = &gathered->comms;
  gathered->jobs_end = &gathered->jobs;
}

static void leave(struct ncclComm *comm)
{
  tt_plan_drop_tasks(comm);
  if (atomic_exchange(&comm->in_group, TT_COMM_IDLE) == TT_COMM_ABANDONED) tt_tasks_end(comm);
}

/* Jobs first: they may be of communicators on the list. */
void tt_gathered_forget(struct tt_gathered *gathered)
{
  tt_group_drop_jobs(gathered->jobs);
  for (struct ncclComm *comm = gathered->comms, *next; comm != NULL; comm = next) {
    next = comm->group_next;
    leave(comm);
  }
  tt_gathered_clear(gathered);
}

void tt_gathered_forget_comm(struct tt_gathered *gathered, struct ncclComm *comm)
{
  for (struct tt_job **place = &gathered->jobs; *place != NULL;) {
    struct tt_job *job = *place;
    if (job->comm != comm) {
      place = &job->next;
      continue;
    }
    *place = job->next;
    if (gathered->jobs_end == &job->next) gathered->jobs_end = place;
    job->next = NULL;
    tt_group_drop_jobs(job);
  }
  for (struct ncclComm **place = &gathered->comms; *place != NULL; place = &(*place)->group_next) {
    if (*place != comm) continue;
    *place = comm->group_next;
    if (gathered->comms_end == &comm->group_next) gathered->comms_end = place;
    leave(comm);
    return;
  }
}

/* Communicators that are in the group only for a job's sake have nothing to run. */
static struct ncclComm *split_off_idle(struct tt_gathered *gathered)
{
  struct ncclComm *idle = NULL, **place = &gathered->comms;
  while (*place != NULL) {
    struct ncclComm *comm = *place;
    if (comm->tasks != NULL) {
      place = &comm->group_next;
      continue;
    }
    *place = comm->group_next;
    comm->group_next = idle;
    idle = comm;
  }
  gathered->comms_end = place;
  return idle;
}

/* Nobody gets the result by a return, so it is the communicators': a job's its own one's; that of operations, which did
 * not run, all that have some, and then the other ranks hear of it, since they wait for all of it. */
static void note_failure(struct tt_gathered *gathered, ncclResult_t result)
{
  for (struct ncclComm *comm = gathered->comms; comm != NULL; comm = comm->group_next) tt_comm_fail(comm, result);
  for (struct tt_job *job = gathered->jobs; job != NULL; job = job->next) {
    ncclResult_t own = tt_group_job_result(job, result);
    if (own != ncclSuccess) tt_comm_note(job->comm, own);
  }
}

static ncclResult_t run(struct tt_gathered *gathered, bool background)
{
  struct ncclComm *idle = split_off_idle(gathered);
  ncclResult_t result = tt_group_run_jobs(gathered->jobs);
  if (result == ncclSuccess) result = tt_tasks_run(gathered->comms);
  if (result != ncclSuccess && background) note_failure(gathered, result);
  *gathered->comms_end = idle;
  tt_gathered_forget(gathered);
  return result;
}

ncclResult_t tt_gathered_run(struct tt_gathered *gathered)
{
  return run(gathered, false);
}

static void *run_background(void *arg)
{
  struct tt_gathered *gathered = arg;
  run(gathered, true);
  free(gathered);
  return NULL;
}

/* In which of the two states of a group its communicators are, but those that were abandoned meanwhile. */
static void set_state(const struct tt_gathered *gathered, int from, int to)
{
  for (struct ncclComm *comm = gathered->comms; comm != NULL; comm = comm->group_next) {
    int state = from;
    atomic_compare_exchange_strong(&comm->in_group, &state, to);
  }
  for (struct tt_job *job = gathered->jobs; job != NULL; job = job->next) {
    int state = from;
    atomic_compare_exchange_strong(&job->comm->in_group, &state, to);
    job->background = to == TT_COMM_IN_BACKGROUND;
  }
}

ncclResult_t tt_gathered_start(struct tt_gathered *gathered)
{
  struct tt_gathered *moved;
  pthread_t thread;
  ncclResult_t result = TT_CALLOC(&moved, 1);
  if (result != ncclSuccess) goto out;
  *moved = *gathered;
  if (moved->comms == NULL) moved->comms_end = &moved->comms;
  if (moved->jobs == NULL) moved->jobs_end = &moved->jobs;
  set_state(moved, TT_COMM_IN_GROUP, TT_COMM_IN_BACKGROUND);
  result = tt_thread_start(&thread, "tutti-group", run_background, moved);
  if (result == ncclSuccess) {
    pthread_detach(thread);
    tt_gathered_clear(gathered);
    return ncclInProgress;
  }
  set_state(moved, TT_COMM_IN_BACKGROUND, TT_COMM_IN_GROUP);
  free(moved);
out:
  tt_gathered_forget(gathered);
  return result;
}
