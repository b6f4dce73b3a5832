/* See exchange.h. */
#include "plan/exchange.h"

#include "base/check.h"
#include "plan/geometry.h"
#include "plan/kept.h"
#include "plan/mapped.h"
#include "program/emit.h"

static size_t bytes_of(const struct tt_task *task)
{
  return task->count * tt_datatype_bytes(task->datatype);
}

bool tt_exchange_may(struct ncclComm *comm, const struct tt_task *task)
{
  return tt_collective_is_message(task->collective) && task->root != comm->rank && tt_mapped_possible(comm, task) &&
         tt_plan_prefers_mapped(comm, task);
}

static bool overlap(const struct tt_exchange *exchange)
{
  uintptr_t input = (uintptr_t)exchange->send->input, output = (uintptr_t)exchange->recv->output;
  return input < output + exchange->bytes && output < input + exchange->bytes;
}

bool tt_exchange_find(struct ncclComm *comm, const struct tt_task *tasks, struct tt_exchange *exchange)
{
  *exchange = (struct tt_exchange){.to = -1, .from = -1};
  for (const struct tt_task *task = tasks; task != NULL; task = task->next) {
    bool send = task->collective == TT_FUNC_SEND;
    if (!tt_collective_is_message(task->collective) || task->root == comm->rank) continue;
    const struct tt_task **own = send ? &exchange->send : &exchange->recv;
    if (*own != NULL || !tt_exchange_may(comm, task)) return false;
    *own = task;
    *(send ? &exchange->to : &exchange->from) = task->root;
  }
  if (exchange->send == NULL && exchange->recv == NULL) return false;
  exchange->bytes = bytes_of(exchange->send != NULL ? exchange->send : exchange->recv);
  bool both = exchange->send != NULL && exchange->recv != NULL;
  return !both || (bytes_of(exchange->recv) == exchange->bytes && !overlap(exchange));
}

/* ---- Works ---- */

int tt_exchange_to(const struct tt_work *work)
{
  const struct tt_program *program = work->channels[0].program;
  return program->npeers > 0 && program->collective != TT_FUNC_RECV ? program->peers[program->npeers - 1] : -1;
}

int tt_exchange_from(const struct tt_work *work)
{
  const struct tt_program *program = work->channels[0].program;
  return program->npeers > 0 && program->collective != TT_FUNC_SEND ? program->peers[0] : -1;
}

static int work_partner(const struct tt_work *work)
{
  int to = tt_exchange_to(work);
  return to >= 0 ? to : tt_exchange_from(work);
}

/* As one task, which is how programs and kept works know it. */
static struct tt_task as_task(const struct ncclComm *comm, const struct tt_exchange *exchange)
{
  struct tt_task task = *(exchange->send != NULL ? exchange->send : exchange->recv);
  task.count = exchange->bytes;
  task.datatype = ncclUint8;
  if (exchange->recv != NULL) task.output = exchange->recv->output;
  if (exchange->send == NULL || exchange->recv == NULL) return task;
  task.collective = TT_FUNC_SEND_RECV;
  task.root = tt_programs_pair(exchange->to, exchange->from, comm->nranks);
  return task;
}

static ncclResult_t choose(const struct ncclComm *comm, const struct tt_task *task, size_t bytes,
                           struct tt_choice *choice)
{
  TT_TRY(tt_tuning_choose_without(comm->tuning, TT_FUNC_SEND_RECV, bytes, TT_WITH_MAPPED, choice));
  tt_tuning_use_engines(comm->tuning, TT_FUNC_SEND_RECV, bytes, choice);
  TT_INFO(TT_TUNING, "%s: %zu bytes -> algorithm %s protocol %s channels %d: %s", tt_collective_name(task->collective),
          bytes, tt_algorithm_name(choice->algorithm), tt_protocol_name(choice->protocol), choice->nchannels,
          choice->reason);
  return ncclSuccess;
}

static ncclResult_t new_work(struct tt_plan *plan, const struct tt_task *task, int nchannels, struct tt_work **out)
{
  const struct tt_program *programs[TT_MAX_CHANNELS];
  const struct tt_programs_key key = {task->collective, TT_ALGO_MAPPED, task->root, false};
  TT_TRY(tt_programs_get(plan->comm->programs, &key, 0, &programs[0]));
  for (int c = 1; c < nchannels; c++) programs[c] = programs[0];
  *out = tt_plan_new_work(plan, programs, nchannels, (int)programs[0]->nmembers);
  return *out != NULL ? ncclSuccess : TT_FAIL(ncclSystemError, "no memory for a send or receive");
}

/* Both ends of a message come to the same signature from the bytes alone. */
static ncclResult_t make(struct tt_plan *plan, const struct tt_task *task, size_t bytes, struct tt_work **out)
{
  struct tt_choice choice;
  struct tt_work *work;
  TT_TRY(choose(plan->comm, task, bytes, &choice));
  TT_TRY(new_work(plan, task, choice.nchannels, &work));
  work->input = task->input;
  work->output = task->output;
  work->op_count = task->op_count;
  work->protocol = choice.protocol;
  work->engines = choice.engines && task->collective != TT_FUNC_RECV;
  work->order = 1 + 2 * (uint64_t)work_partner(work) + (task->collective != TT_FUNC_RECV);
  work->reduction = (struct tt_reduction){.op = ncclSum, .datatype = ncclUint8};
  work->signature = (struct tt_signature){.count = bytes,
                                          .collective = TT_FUNC_SEND_RECV,
                                          .datatype = ncclUint8,
                                          .algorithm = TT_ALGO_MAPPED,
                                          .protocol = (uint8_t)choice.protocol,
                                          .nchannels = (uint8_t)choice.nchannels};
  const struct tt_geometry_cut cut = {.count = bytes,
                                      .element_bytes = 1,
                                      .parts = 1,
                                      .nchannels = choice.nchannels,
                                      .capacity = bytes + 64,
                                      .smallest = bytes + 64,
                                      .chunks = 1};
  for (int c = 0; c < choice.nchannels; c++) {
    struct tt_geometry *geometry = &work->channels[c].geometry;
    tt_geometry_cut(&cut, c, geometry);
    geometry->input_stride = geometry->output_stride = bytes;
  }
  *out = work;
  return tt_plan_need(plan->comm, work);
}

static void point_at(struct tt_work *work, const struct tt_exchange *exchange)
{
  const struct tt_program *program = work->channels[0].program;
  for (uint32_t m = 0; m < program->nmembers; m++)
    if (program->members[m] == exchange->to) work->member_outputs[m] = exchange->target;
}

ncclResult_t tt_exchange_plan(struct tt_plan *plan, const struct tt_exchange *exchange)
{
  struct ncclComm *comm = plan->comm;
  struct tt_task task = as_task(comm, exchange);
  struct tt_work *work = tt_kept_take(comm, &task, true, 0);
  if (work == NULL) {
    TT_TRY(make(plan, &task, exchange->bytes, &work));
  } else if (!tt_plan_append(plan, work)) {
    tt_pool_give(work);
    return TT_FAIL(ncclSystemError, "no memory for a send or receive");
  }
  point_at(work, exchange);
  if (exchange->to >= 0) comm->sends[exchange->to]++;
  if (exchange->from >= 0) comm->recvs[exchange->from]++;
  return ncclSuccess;
}
