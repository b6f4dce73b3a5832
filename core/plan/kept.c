/* See kept.h. */
#include "plan/kept.h"

#include <stdlib.h>
#include "base/check.h"
#include "plan/plan.h"

/* Different calls that are kept. A guess at what a training step makes; who makes more has the oldest planned anew. */
#define KEPT 64

struct tt_kept {
  struct tt_work *works[KEPT];
  int next; /* to be replaced */
};

/* Works whose memory may change hands are planned each time. */
static bool can_keep(const struct ncclComm *comm, const struct tt_work *work)
{
  if (!(comm->device->features & TT_DEVICE_STREAMS) || work->signature.collective == TT_FUNC_SEND_RECV) return false;
  for (uint32_t c = 0; c < work->nchannels; c++)
    if (work->channels[c].program->nscratch > 0 || work->channels[c].program->shared_blocks > 0) return false;
  return true;
}

static bool is_like(const struct tt_work *work, const struct tt_task *task)
{
  const struct tt_signature *s = &work->signature;
  return s->collective == task->collective && s->count == task->count && s->datatype == (int)task->datatype &&
         s->op == tt_plan_op(task) &&
         (!task->scaled || (work->reduction.scale.bits == task->scale && work->scale_at == task->scale_at)) &&
         s->root == task->root;
}

/* All-to-all has a program with an order, for buffers that are not apart, and one without. */
static bool has_order(const struct ncclComm *comm, const struct tt_work *work, const struct tt_task *task)
{
  if (task->collective != TT_FUNC_ALL_TO_ALL || comm->nranks == 1) return true;
  return (work->channels[0].program->nsemaphores == 0) == tt_plan_apart(comm, task);
}

struct tt_work *tt_kept_take(struct ncclComm *comm, const struct tt_task *task, bool mapped)
{
  struct tt_kept *kept = comm->kept;
  if (kept == NULL || tt_log_enabled(TT_LOG_INFO, TT_TUNING)) return NULL; /* each choice is to be logged */
  for (int k = 0; k < KEPT; k++) {
    struct tt_work *work = kept->works[k];
    if (work == NULL || !is_like(work, task) || (work->member_inputs != NULL) != mapped) continue;
    if (!has_order(comm, work, task)) continue;
    kept->works[k] = NULL;
    work->input = task->input;
    work->output = task->output;
    work->complete = 0;
    return work;
  }
  return NULL;
}

void tt_kept_give(struct ncclComm *comm, struct tt_work *work)
{
  if (!can_keep(comm, work) || (comm->kept == NULL && TT_CALLOC(&comm->kept, 1) != ncclSuccess)) {
    tt_pool_give(work);
    return;
  }
  struct tt_kept *kept = comm->kept;
  int place = kept->next;
  for (int k = 0; k < KEPT && kept->works[place] != NULL; k++) place = (place + 1) % KEPT;
  tt_pool_give(kept->works[place]);
  kept->works[place] = work;
  kept->next = (place + 1) % KEPT;
}

void tt_kept_free(struct ncclComm *comm)
{
  for (int k = 0; comm->kept != NULL && k < KEPT; k++) tt_pool_give(comm->kept->works[k]);
  free(comm->kept);
  comm->kept = NULL;
}
