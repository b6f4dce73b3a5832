/* Groups. */
#include "api/group.h"

#include <pthread.h>
#include "api/export.h"
#include "api/gathered.h"
#include "base/check.h"
#include "plan/plan.h"

static _Thread_local struct {
  int depth;
  ncclResult_t error;
  bool inherited; /* it had calls before a fork */
  struct tt_gathered gathered;
} group;

/* What was called before a fork is the parent's to do or to drop: dropping alone would tell other ranks. */
static void after_fork(void)
{
  if (group.depth == 0) return;
  group.inherited |= group.gathered.jobs != NULL || group.gathered.comms != NULL;
  tt_gathered_clear(&group.gathered);
}

static void register_fork(void)
{
  pthread_atfork(NULL, NULL, after_fork);
}

/* Before anything is gathered. */
static void watch_forks(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, register_fork);
}

static ncclResult_t check_process(const char *function)
{
  if (!group.inherited) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "%s: the group has calls from before a fork, which are for the process that made them; in its child, "
                 "begin another group",
                 function);
}

void tt_group_start(void)
{
  if (group.depth++ > 0) return;
  group.error = ncclSuccess;
  group.inherited = false;
  tt_gathered_clear(&group.gathered);
}

ncclResult_t tt_group_note(ncclResult_t result)
{
  if (result != ncclSuccess && result != ncclInProgress && group.error == ncclSuccess) group.error = result;
  return result;
}

bool tt_group_has(const struct ncclComm *comm)
{
  const struct ncclComm *other = group.depth > 0 ? group.gathered.comms : NULL;
  while (other != NULL && other != comm) other = other->group_next;
  return other != NULL;
}

bool tt_group_has_calls(const struct ncclComm *comm)
{
  const struct tt_job *job = group.depth > 0 ? group.gathered.jobs : NULL;
  while (job != NULL && job->comm != comm) job = job->next;
  return job != NULL || tt_group_has(comm);
}

void tt_group_forget(struct ncclComm *comm)
{
  if (group.depth > 0) tt_gathered_forget_comm(&group.gathered, comm);
}

/* The end of a group either does its work or begins it. */
static ncclResult_t note_blocking(bool blocking)
{
  enum tt_blocking is = blocking ? TT_BLOCKING : TT_NON_BLOCKING;
  if (group.gathered.blocking == TT_BLOCKING_UNKNOWN) group.gathered.blocking = is;
  if (group.gathered.blocking == is) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument,
                 "blocking and non-blocking communicators are in one group (config member blocking, "
                 "NCCL_COMM_BLOCKING): give each kind a group of its own");
}

/* Kernels of several communicators on one stream run one after another, and wait for those of other GPUs: all ranks
 * must have them in one order, whatever the order of their calls. So the list is sorted by what ranks of a communicator
 * know alike, as NCCL does; a communicator's ranks of this group are next to each other. */
static void add_comm(struct ncclComm *comm)
{
  struct ncclComm **place = &group.gathered.comms;
  while (*place != NULL && (*place)->number <= comm->number) place = &(*place)->group_next;
  if (*place == NULL) group.gathered.comms_end = &comm->group_next;
  comm->group_next = *place;
  *place = comm;
}

ncclResult_t tt_group_join(struct ncclComm *comm)
{
  int state = TT_COMM_IDLE;
  if (tt_group_has(comm)) return ncclSuccess;
  watch_forks();
  TT_TRY(note_blocking(comm->config.blocking != 0));
  if (atomic_compare_exchange_strong(&comm->in_group, &state, TT_COMM_IN_GROUP)) {
    add_comm(comm);
    return ncclSuccess;
  }
  if (state == TT_COMM_IN_BACKGROUND)
    return TT_FAIL(ncclInvalidArgument, "rank %d: an earlier call on this communicator is in progress", comm->rank);
  return TT_FAIL(ncclInvalidUsage,
                 "rank %d: another thread has calls of this communicator under way or in an open group; one thread at "
                 "a time may use it",
                 comm->rank);
}

bool tt_group_leave(struct ncclComm *comm)
{
  int state = atomic_load(&comm->in_group);
  while (state != TT_COMM_IDLE)
    if (atomic_compare_exchange_weak(&comm->in_group, &state, TT_COMM_ABANDONED)) return false;
  return true;
}

ncclResult_t tt_group_add_job(struct tt_job *job)
{
  watch_forks();
  TT_TRY(note_blocking(job->blocking));
  job->next = NULL;
  *group.gathered.jobs_end = job;
  group.gathered.jobs_end = &job->next;
  return ncclSuccess;
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

ncclResult_t tt_group_end(void)
{
  struct tt_gathered *gathered = &group.gathered;
  bool outermost;
  TT_TRY(close_level("ncclGroupEnd", &outermost));
  if (!outermost) return ncclSuccess;
  if (group.error == ncclSuccess) group.error = check_process("ncclGroupEnd");
  if (group.error != ncclSuccess) {
    tt_gathered_forget(gathered);
    return group.error;
  }
  bool any = gathered->jobs != NULL || gathered->comms != NULL;
  return any && gathered->blocking == TT_NON_BLOCKING ? tt_gathered_start(gathered) : tt_gathered_run(gathered);
}

ncclResult_t tt_group_simulate(float *microseconds)
{
  bool outermost;
  *microseconds = 0;
  TT_TRY(close_level("ncclGroupSimulateEnd", &outermost));
  if (!outermost) return ncclSuccess;
  ncclResult_t result = group.error;
  if (result == ncclSuccess) result = check_process("ncclGroupSimulateEnd");
  if (result == ncclSuccess && group.gathered.jobs != NULL)
    result =
        TT_FAIL(ncclInvalidUsage, "ncclGroupSimulateEnd: the group makes communicators; only operations have a cost");
  for (struct ncclComm *comm = group.gathered.comms; comm != NULL && result == ncclSuccess; comm = comm->group_next) {
    float takes;
    result = tt_plan_estimate(comm, &takes);
    *microseconds = TT_MAX(*microseconds, takes);
  }
  tt_gathered_forget(&group.gathered);
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
