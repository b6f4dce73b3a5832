/* From sends and receives to works: rounds and passes, local pairs, one connection a direction; or one work for what
 * goes in place (exchange.h). */
#include "plan/plan.h"

#include <stdlib.h>
#include "base/check.h"
#include "plan/geometry.h"
#include "plan/kept.h"
#include "plan/offers.h"
#include "plan/pairs.h"
#include "plan/stream.h"

struct message {
  struct tt_task *task;
  uint64_t pass; /* k-th message of its pair and direction in this group */
  int round;
};

static int by_pass_and_round(const void *a, const void *b)
{
  const struct message *x = a, *y = b;
  if (x->pass != y->pass) return x->pass < y->pass ? -1 : 1;
  if (x->round != y->round) return x->round < y->round ? -1 : 1;
  return x->task->collective - y->task->collective;
}

static ncclResult_t no_memory(void)
{
  return TT_FAIL(ncclSystemError, "no memory for a send or receive");
}

/* All channels run the same program. */
static ncclResult_t new_p2p_work(struct tt_plan *plan, const struct tt_task *task, int nchannels, struct tt_work **out)
{
  struct ncclComm *comm = plan->comm;
  const struct tt_program *programs[TT_MAX_CHANNELS];
  const struct tt_programs_key key = {task->collective, TT_ALGO_POINT_TO_POINT, task->root, false};
  TT_TRY(tt_programs_get(comm->programs, &key, 0, &programs[0]));
  for (int c = 1; c < nchannels; c++) programs[c] = programs[0];
  struct tt_work *work = tt_plan_new_work(plan, programs, nchannels, 0);
  if (work == NULL) return no_memory();
  work->input = task->input;
  work->output = task->output;
  work->op_count = task->op_count;
  work->reduction = (struct tt_reduction){.op = ncclSum, .datatype = ncclUint8};
  work->signature.collective = TT_FUNC_SEND_RECV; /* what is taken back after a failure goes by it */
  *out = work;
  return ncclSuccess;
}

/* A work that was kept, for a message of as many bytes in other memory; *kept: NULL: there is none. */
static ncclResult_t use_again(struct tt_plan *plan, const struct tt_task *task, struct tt_work **kept)
{
  *kept = tt_kept_take(plan->comm, task, false, 0);
  if (*kept == NULL || tt_plan_append(plan, *kept)) return ncclSuccess;
  tt_pool_give(*kept);
  return no_memory();
}

static ncclResult_t plan_message(struct tt_plan *plan, const struct tt_task *task)
{
  struct ncclComm *comm = plan->comm;
  bool send = task->collective == TT_FUNC_SEND;
  size_t bytes = task->count * tt_datatype_bytes(task->datatype);
  uint64_t *sequence = send ? &comm->sends[task->root] : &comm->recvs[task->root];
  struct tt_work *work;
  TT_TRY(use_again(plan, task, &work));
  if (work != NULL) {
    work->signature.sequence = (*sequence)++;
    return ncclSuccess;
  }

  struct tt_choice choice;
  TT_TRY(tt_tuning_choose(comm->tuning, TT_FUNC_SEND_RECV, bytes, &choice));

  /* The host's one thread moves a message fastest on one channel. */
  int nchannels = tt_stream_device(comm) ? choice.nchannels : 1;
  size_t slot = tt_plan_slot_bytes(comm, choice.protocol);
  if (comm->far != NULL && comm->far[task->root]) {
    nchannels = TT_MIN(nchannels, comm->far_channels);
    slot = TT_MIN(slot, tt_transport_far_slot_bytes(choice.protocol));
  }
  TT_TRY(new_p2p_work(plan, task, nchannels, &work));
  work->protocol = choice.protocol;
  work->order = 1 + 2 * (uint64_t)task->root + send;
  work->signature = (struct tt_signature){
      .sequence = (*sequence)++,
      .count = bytes, /* both sides may see the bytes as different types */
      .root = send ? comm->rank : task->root,
      .collective = TT_FUNC_SEND_RECV,
      .datatype = ncclUint8,
      .algorithm = TT_ALGO_POINT_TO_POINT,
      .protocol = (uint8_t)choice.protocol,
      .nchannels = (uint8_t)nchannels,
  };
  const struct tt_geometry_cut cut = {
      .count = bytes,
      .element_bytes = 1,
      .parts = 1,
      .nchannels = nchannels,
      .capacity = tt_conn_capacity(slot, choice.protocol),
      .smallest = choice.smallest_chunk,
      .chunks = choice.chunks,
  };
  for (int c = 0; c < nchannels; c++) tt_geometry_cut(&cut, c, &work->channels[c].geometry);
  return tt_plan_need(comm, work);
}

/* Kernels for works of one protocol are faster than the one for several: a copy has that of messages of its size, so
 * that it does not add one to theirs. */
static ncclResult_t copy_protocol(const struct ncclComm *comm, size_t bytes, int *protocol)
{
  struct tt_choice choice = {.protocol = TT_PROTO_SIMPLE};
  if (comm->nranks > 1 && tt_stream_device(comm))
    TT_TRY(tt_tuning_choose(comm->tuning, TT_FUNC_SEND_RECV, bytes, &choice));
  *protocol = choice.protocol;
  return ncclSuccess;
}

/* A send to self and the receive that it meets are one local copy. */
static ncclResult_t plan_local_copy(struct tt_plan *plan, const struct tt_task *send, const struct tt_task *recv)
{
  size_t bytes = send->count * tt_datatype_bytes(send->datatype);
  size_t room = recv->count * tt_datatype_bytes(recv->datatype);
  if (bytes != room)
    return TT_FAIL(ncclInvalidUsage, "rank %d sends %zu bytes to itself and receives %zu: make the two equal",
                   plan->comm->rank, bytes, room);
  struct tt_task task = *send;
  struct tt_work *work;
  task.output = recv->output;
  TT_TRY(use_again(plan, &task, &work));
  if (work != NULL) return ncclSuccess;
  int nchannels = tt_plan_copy_channels(plan->comm, bytes);
  TT_TRY(new_p2p_work(plan, &task, nchannels, &work));
  TT_TRY(copy_protocol(plan->comm, bytes, &work->protocol));
  work->order = 1 + 2 * (uint64_t)send->root;
  work->signature.collective = TT_FUNC_SEND_RECV;
  work->signature.count = bytes;
  const struct tt_geometry_cut cut = {.count = bytes,
                                      .element_bytes = 1,
                                      .parts = 1,
                                      .nchannels = nchannels,
                                      .capacity = bytes,
                                      .smallest = bytes,
                                      .chunks = 1};
  for (int c = 0; c < nchannels; c++) tt_geometry_cut(&cut, c, &work->channels[c].geometry);
  return ncclSuccess;
}

static ncclResult_t plan_local(struct tt_plan *plan, struct tt_task *const *tasks, int ntasks)
{
  int send = 0, recv = 0;
  for (;;) {
    while (send < ntasks && !(tasks[send]->root == plan->comm->rank && tasks[send]->collective == TT_FUNC_SEND)) send++;
    while (recv < ntasks && !(tasks[recv]->root == plan->comm->rank && tasks[recv]->collective == TT_FUNC_RECV)) recv++;
    if (send == ntasks && recv == ntasks) return ncclSuccess;
    if (send == ntasks || recv == ntasks)
      return TT_FAIL(ncclInvalidUsage,
                     "rank %d has a %s itself in this group without the matching %s: put both in one group",
                     plan->comm->rank, send < ntasks ? "send to" : "receive from", send < ntasks ? "receive" : "send");
    TT_TRY(plan_local_copy(plan, tasks[send++], tasks[recv++]));
  }
}

/* Most groups have few messages, which were called in order. */
static void sort_messages(struct message *messages, size_t n)
{
  size_t sorted = 1;
  while (sorted < n && by_pass_and_round(&messages[sorted - 1], &messages[sorted]) <= 0) sorted++;
  if (sorted < n) qsort(messages, n, sizeof *messages, by_pass_and_round);
}

static const struct tt_exchange *find_exchange(const struct tt_plan *plan)
{
  const struct tt_exchange *exchange = tt_pairs_find(plan->pairs, plan->comm);
  return exchange != NULL ? exchange : tt_offers_find(plan->comm);
}

ncclResult_t tt_plan_point_to_point(struct tt_plan *plan, struct tt_task *const *tasks, int ntasks)
{
  struct ncclComm *comm = plan->comm;
  int n = comm->nranks, nmessages = 0;
  struct message *messages;
  uint64_t *passes;
  TT_TRY(plan_local(plan, tasks, ntasks));
  TT_TRY(TT_ZONE_NEW(&plan->zone, &messages, (size_t)ntasks));
  TT_TRY(TT_ZONE_NEW(&plan->zone, &passes, 2 * (size_t)n));
  for (int t = 0; t < ntasks; t++) {
    bool send = tasks[t]->collective == TT_FUNC_SEND;
    int peer = tasks[t]->root;
    if (peer == comm->rank) continue;
    messages[nmessages++] = (struct message){
        .task = tasks[t],
        .pass = passes[2 * peer + send]++,
        .round = comm->rounds[send][peer],
    };
  }
  const struct tt_exchange *exchange = nmessages > 0 ? find_exchange(plan) : NULL;
  if (exchange != NULL) {
    TT_TRY(tt_exchange_plan(plan, exchange)); /* it has them all */
  } else {
    sort_messages(messages, (size_t)nmessages);
    for (int m = 0; m < nmessages; m++) TT_TRY(plan_message(plan, messages[m].task));
  }
  for (int m = 0; m < nmessages; m++) tt_offers_pass(comm, messages[m].task->root);
  return ncclSuccess;
}
