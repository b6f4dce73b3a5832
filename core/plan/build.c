/* The tasks of an open group, and the plan made of them. */
#include "plan/plan.h"

#include <stddef.h>
#include <string.h>
#include "base/check.h"
#include "plan/agreed.h"
#include "plan/exchange.h"
#include "plan/gate.h"
#include "plan/graphs.h"
#include "plan/kept.h"
#include "plan/pending.h"
#include "plan/scratch.h"
#include "plan/stream.h"

/* Of a zone before it takes memory of the pool. */
#define ROOM_BYTES 1024

static bool is_point_to_point(const struct tt_task *task)
{
  return task->collective == TT_FUNC_SEND || task->collective == TT_FUNC_RECV;
}

ncclResult_t tt_plan_add_task(struct ncclComm *comm, const struct tt_task *task)
{
  struct tt_task *copy;
  TT_TRY(TT_POOL_NEW(comm->pool, &copy, 1));
  *copy = *task;
  copy->next = NULL;
  *comm->tasks_end = copy;
  comm->tasks_end = &copy->next;
  comm->ntasks++;
  return ncclSuccess;
}

uint64_t tt_plan_number(struct ncclComm *comm, const struct tt_task *task)
{
  if (!is_point_to_point(task)) return atomic_fetch_add(&comm->op_count, 1);
  if (!comm->message_numbered) comm->message_number = atomic_fetch_add(&comm->op_count, 1);
  comm->message_numbered = true;
  return comm->message_number;
}

void tt_plan_free_tasks(struct tt_task *tasks)
{
  for (struct tt_task *task = tasks, *next; task != NULL; task = next) {
    next = task->next;
    tt_pool_give(task);
  }
}

void tt_plan_drop_tasks(struct ncclComm *comm)
{
  tt_plan_free_tasks(comm->tasks);
  comm->tasks = NULL;
  comm->message_numbered = false;
  comm->tasks_end = &comm->tasks;
  comm->ntasks = 0;
}

static void take_back_sequences(struct ncclComm *comm, const struct tt_plan *plan)
{
  for (int w = 0; w < plan->nworks; w++) {
    const struct tt_work *work = plan->works[w];
    if (work->answer != 0 && !tt_agreed_take_back(comm->agreed, work->answer))
      tt_comm_fail(comm, TT_FAIL(ncclInternalError, "more calls were taken back than a tuner's epoch has"));
    int to = tt_exchange_to(work), from = tt_exchange_from(work);
    if (work->signature.collective != TT_FUNC_SEND_RECV) {
      comm->collectives--;
      continue;
    }
    if (to >= 0) comm->sends[to]--;
    if (from >= 0) comm->recvs[from]--;
  }
}

void tt_plan_take_back(struct tt_plan *plan)
{
  take_back_sequences(plan->comm, plan);
  tt_plan_free(plan);
}

void tt_plan_stop(struct ncclComm *comm)
{
  tt_gate_close(comm);
  tt_stream_end(comm);
}

void tt_plan_end(struct ncclComm *comm)
{
  tt_graphs_close(comm);
  tt_kept_free(comm);
  tt_scratch_free(comm);
}

/* In the order in which they were called, after all collectives. */
static ncclResult_t plan_messages(struct tt_plan *plan, struct tt_task *tasks, int nmessages)
{
  struct tt_task **messages;
  int n = 0;
  TT_TRY(TT_ZONE_NEW(&plan->zone, &messages, (size_t)nmessages));
  for (struct tt_task *task = tasks; task != NULL; task = task->next)
    if (is_point_to_point(task)) messages[n++] = task;
  return tt_plan_point_to_point(plan, messages, nmessages);
}

ncclResult_t tt_plan_build(struct ncclComm *comm, struct tt_task *tasks, int ntasks, struct tt_plain *plain,
                           const struct tt_pairs *pairs, struct tt_plan *plan)
{
  _Alignas(max_align_t) unsigned char room[ROOM_BYTES];
  int nmessages = 0;
  ncclResult_t result = ncclSuccess;
  memset(plan, 0, sizeof *plan);
  plan->comm = comm;
  plan->plain = plain;
  plan->pairs = pairs;
  plan->zone.pool = comm->pool;
  tt_zone_lend(&plan->zone, room, sizeof room);
  if (ntasks == 0) goto out;
  tt_log_set_device(comm->device_index);
  if (tt_stream_device(comm)) TT_TRY_GOTO(tt_stream_find(plan, tasks), result, out);
  for (struct tt_task *task = tasks; task != NULL; task = task->next) {
    if (is_point_to_point(task))
      nmessages++;
    else
      TT_TRY_GOTO(tt_plan_collective(plan, task), result, out);
  }
  if (nmessages > 0) TT_TRY_GOTO(plan_messages(plan, tasks, nmessages), result, out);
  tt_pending_begin(comm, plan->works, plan->nworks);
out:
  tt_zone_clear(&plan->zone);
  if (result != ncclSuccess) tt_plan_take_back(plan);
  return result;
}
