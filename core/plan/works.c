/* Works: making them, finding their connections, counting what will pass through each. */
#include "plan/plan.h"

#include <string.h>
#include "base/check.h"
#include "plan/kept.h"
#include "plan/pending.h"
#include "proxy/reduce.h"
#include "device/context.h"
#include "plan/scratch.h"
#include "plan/stream.h"

/* All-to-all, gather and scatter reach many ranks, of which few are served at a time: over a network they use
 * connections that share slots. All ranks decide alike. */
static int connection_index(const struct ncclComm *comm, const struct tt_work *work, int peer)
{
  const struct tt_transport_env *env = comm->env;
  int collective = work->signature.collective;
  bool far = comm->far != NULL && comm->far[peer] && work->protocol == TT_PROTO_SIMPLE;
  if (tt_plan_exchanges(collective) && (far || tt_transport_pools(env, peer))) return TT_CONN_INDEX_EXCHANGE;
  return tt_connect_index(tt_transport_device_memory(env), work->protocol, collective == TT_FUNC_SEND_RECV);
}

bool tt_plan_exchanges(int collective)
{
  return collective == TT_FUNC_ALL_TO_ALL || collective == TT_FUNC_GATHER || collective == TT_FUNC_SCATTER;
}

size_t tt_plan_slot_bytes(const struct ncclComm *comm, int protocol)
{
  return comm->env->buffer_bytes[protocol] / TT_SLOTS;
}

/* A GPU's channel is one of its processors, which copies a few tens of bytes a nanosecond, and in LL, beside small
 * messages, 4 KiB a microsecond or less: with one for each 64 KiB the messages of 32 KiB that a rank sends to the other
 * and to itself took 4.6 us, and those to the other alone 3.4. */
#define COPY_CHANNEL_BYTES ((size_t)8 << 10)
#define COPY_CHANNELS 32

int tt_plan_copy_channels(const struct ncclComm *comm, size_t bytes)
{
  int most = comm->device->channels > 0 ? TT_MIN(comm->device->channels, COPY_CHANNELS) : COPY_CHANNELS;
  if (!tt_stream_device(comm)) return 1;
  return (int)TT_MIN(bytes / COPY_CHANNEL_BYTES + 1, (size_t)most);
}

bool tt_plan_append(struct tt_plan *plan, struct tt_work *work)
{
  if (plan->nworks == plan->capacity) {
    int capacity = plan->capacity ? 2 * plan->capacity : 8;
    struct tt_work **works = tt_pool_take(plan->comm->pool, (size_t)capacity * sizeof *works);
    if (works == NULL) return false;
    if (plan->nworks > 0) memcpy(works, plan->works, (size_t)plan->nworks * sizeof *works);
    tt_pool_give(plan->works);
    plan->works = works;
    plan->capacity = capacity;
  }
  plan->works[plan->nworks++] = work;
  return true;
}

struct tt_work *tt_plan_new_work(struct tt_plan *plan, const struct tt_program *const *programs, int nchannels,
                                 int nmembers)
{
  size_t npeers = 0, nscratch = 0;
  for (int c = 0; c < nchannels; c++) {
    npeers += programs[c]->npeers;
    nscratch = TT_MAX(nscratch, programs[c]->nscratch);
  }
  struct tt_work *work = tt_pool_take_zeroed(
      plan->comm->pool, sizeof *work + (size_t)nchannels * sizeof *work->channels +
                            2 * npeers * sizeof(struct tt_conn *) + (nscratch + 2 * (size_t)nmembers) * sizeof(void *));
  if (work == NULL) return NULL;
  work->size = sizeof *work;
  work->channels = (struct tt_work_channel *)(work + 1);
  struct tt_conn **conns = (struct tt_conn **)(work->channels + nchannels);
  for (int c = 0; c < nchannels; c++) {
    work->channels[c].program = programs[c];
    work->channels[c].send = conns;
    work->channels[c].recv = conns + programs[c]->npeers;
    conns += 2 * programs[c]->npeers;
  }
  if (nscratch > 0) work->scratch = (void **)conns;
  if (nmembers > 0) {
    work->member_inputs = (const void **)conns + nscratch;
    work->member_outputs = (void **)conns + nscratch + nmembers;
  }
  work->nchannels = (uint32_t)nchannels;
  work->abort = &plan->comm->abort;
  work->pool = plan->comm->pool;
  work->rank = plan->comm->rank;
  if (plan->comm->context != NULL) work->context = plan->comm->context->handle;
  if (tt_plan_append(plan, work)) return work;
  tt_pool_give(work);
  return NULL;
}

/* Visits every send and receive of a channel's program: how often each is executed in one loop. */
typedef ncclResult_t visit_fn(void *context, uint32_t peer_index, bool send, uint64_t steps);

static ncclResult_t visit_messages(const struct tt_program *program, visit_fn *visit, void *context)
{
  for (uint32_t i = 0; i < program->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[i];
    if (instruction->opcode != TT_OP_DATA) continue;
    for (uint32_t k = 0; k < instruction->noperands; k++) {
      const struct tt_operand *operand = &program->operands[instruction->first_operand + k];
      if (operand->kind == TT_SEND || operand->kind == TT_RECV)
        TT_TRY(visit(context, operand->peer, operand->kind == TT_SEND, instruction->repeat));
    }
  }
  return ncclSuccess;
}

struct message_context {
  struct ncclComm *comm;
  const struct tt_work *work;
  int channel;
  struct tt_connector **connectors; /* [2 * npeers]: sends, then receives */
  uint64_t *steps;
};

static ncclResult_t need_message(void *context, uint32_t peer_index, bool send, uint64_t steps)
{
  struct message_context *message = context;
  (void)steps;
  int peer = message->work->channels[message->channel].program->peers[peer_index];
  return tt_connect_need(message->comm->connect, peer, message->channel,
                         connection_index(message->comm, message->work, peer), send);
}

ncclResult_t tt_plan_need(struct ncclComm *comm, const struct tt_work *work)
{
  for (uint32_t c = 0; c < work->nchannels; c++) {
    struct message_context context = {.comm = comm, .work = work, .channel = (int)c};
    TT_TRY(visit_messages(work->channels[c].program, need_message, &context));
  }
  return ncclSuccess;
}

static ncclResult_t bind_message(void *context, uint32_t peer_index, bool send, uint64_t steps)
{
  struct message_context *message = context;
  const struct tt_work_channel *channel = &message->work->channels[message->channel];
  uint32_t slot = send ? peer_index : channel->program->npeers + peer_index;
  message->steps[slot] += steps * channel->geometry.loops;
  if (message->connectors[slot] != NULL) return ncclSuccess;
  int peer = channel->program->peers[peer_index];
  struct tt_connector *connector = tt_connect_get(message->comm->connect, peer, message->channel,
                                                  connection_index(message->comm, message->work, peer), send);
  if (connector == NULL)
    return TT_FAIL(ncclInternalError, "rank %d has no connection %s rank %d on channel %d", message->comm->rank,
                   send ? "to" : "from", peer, message->channel);
  message->connectors[slot] = connector;
  (send ? channel->send : channel->recv)[peer_index] = &connector->conn;
  return ncclSuccess;
}

static ncclResult_t bind_channel(struct tt_plan *plan, const struct tt_work *work, int c)
{
  struct ncclComm *comm = plan->comm;
  const struct tt_program *program = work->channels[c].program;
  struct message_context context = {.comm = comm, .work = work, .channel = c};
  ncclResult_t result = ncclSuccess;
  uint32_t ends = 2 * program->npeers;
  if (ends == 0) return ncclSuccess;
  TT_TRY_GOTO(TT_ZONE_NEW(&plan->zone, &context.connectors, ends), result, out);
  TT_TRY_GOTO(TT_ZONE_NEW(&plan->zone, &context.steps, ends), result, out);
  TT_TRY_GOTO(visit_messages(program, bind_message, &context), result, out);
  for (uint32_t end = 0; end < ends; end++) {
    struct tt_connector *connector = context.connectors[end];
    if (connector != NULL) connector->planned += context.steps[end];
    if (connector != NULL && connector->proxied != NULL)
      TT_TRY_GOTO(tt_proxy_expect(connector->proxied, work->protocol, context.steps[end]), result, out);
    if (connector != NULL && connector->reduced != NULL)
      TT_TRY_GOTO(
          tt_proxy_reduce_expect(connector->reduced, context.steps[end], work->reduction.datatype, work->reduction.op),
          result, out);
  }
out:
  tt_zone_clear(&plan->zone);
  return result;
}

/* Bytes of one scratch buffer of a work, a multiple of a cache line. */
static size_t scratch_buffer(const struct tt_work *work)
{
  size_t elements = 0;
  for (uint32_t c = 0; c < work->nchannels; c++) {
    const struct tt_geometry *geometry = &work->channels[c].geometry;
    size_t blocks = work->channels[c].program->scratch_blocks;
    elements = TT_MAX(elements, geometry->scratch_lo + blocks * geometry->scratch_stride);
  }
  return (elements * tt_datatype_bytes(work->reduction.datatype) + 63) / 64 * 64;
}

static uint32_t scratch_buffers(const struct tt_work *work)
{
  uint32_t count = 0;
  for (uint32_t c = 0; c < work->nchannels; c++) count = TT_MAX(count, work->channels[c].program->nscratch);
  return count;
}

/* All works of the plan use the same memory: those with scratch are collectives, which run one after another. */
static ncclResult_t bind_scratch(struct tt_plan *plan)
{
  size_t needed = 0;
  unsigned char *scratch;
  for (int w = 0; w < plan->nworks; w++)
    needed = TT_MAX(needed, scratch_buffers(plan->works[w]) * scratch_buffer(plan->works[w]));
  TT_TRY(tt_scratch_get(plan->comm, needed, &scratch));
  for (int w = 0; w < plan->nworks; w++) {
    const struct tt_work *work = plan->works[w];
    for (uint32_t k = 0; k < scratch_buffers(work); k++) work->scratch[k] = scratch + k * scratch_buffer(work);
  }
  return ncclSuccess;
}

/* A kept work has its connections, and needs no scratch memory. */
static bool is_bound(const struct tt_work *work)
{
  return work->repeat != 0;
}

static bool are_bound(const struct tt_plan *plan)
{
  int bound = 0;
  while (bound < plan->nworks && is_bound(plan->works[bound])) bound++;
  return bound == plan->nworks;
}

/* Collectives run one after another; messages, which come last, wait for none. */
static void begin_turn(const struct tt_plan *plan, const struct tt_work *work)
{
  const struct tt_transport_env *env = plan->comm->env;
  if (env != NULL && env->proxy != NULL && work->signature.collective != TT_FUNC_SEND_RECV)
    tt_proxy_next_turn(env->proxy);
}

ncclResult_t tt_plan_bind(struct tt_plan *plan)
{
  if (are_bound(plan)) return ncclSuccess;
  TT_TRY(bind_scratch(plan));
  for (int w = 0; w < plan->nworks; w++) {
    if (is_bound(plan->works[w])) continue;
    begin_turn(plan, plan->works[w]);
    for (uint32_t c = 0; c < plan->works[w]->nchannels; c++) TT_TRY(bind_channel(plan, plan->works[w], (int)c));
  }
  return ncclSuccess;
}

void tt_plan_free(struct tt_plan *plan)
{
  if (plan->comm != NULL) tt_pending_end(plan->comm);
  for (int w = 0; w < plan->nworks; w++) {
    if (plan->launched)
      tt_kept_give(plan->comm, plan->works[w]);
    else
      tt_pool_give(plan->works[w]);
  }
  tt_pool_give(plan->works);
  tt_pool_give(plan->others);
  memset(plan, 0, sizeof *plan);
}
