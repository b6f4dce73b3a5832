/* Direct algorithms: every rank exchanges with every other at once, or the root with all. One step, so the least
 * latency that there is, and as many connections as ranks. Sums run in rank order.
 *
 * Sends are one strand and receives another, so that sends may run ahead as far as the FIFOs allow. Only all-to-all in
 * place needs an order between the two: a chunk is sent before what is received takes its place. That costs the overlap
 * of a strand's steps, so it is left out where the buffers are apart. */
#include "program/algorithms.h"

static bool is_root(const struct tt_emit_request *request)
{
  return request->rank == request->root;
}

/* All operands for other ranks. `blocks`: the local buffer has a block for each rank. */
static void send_to_all(struct tt_builder *builder, const struct tt_emit_request *request, uint8_t buffer,
                        struct tt_chunks chunk, bool blocks)
{
  for (uint32_t peer = 0; peer < builder->head.npeers; peer++) {
    if (blocks) chunk = tt_chunk_one((request->rank + 1 + (int32_t)peer) % request->nranks, request->nranks);
    tt_builder_send(builder, (uint16_t)peer, buffer, chunk);
  }
}

static void receive_from_all(struct tt_builder *builder, const struct tt_emit_request *request)
{
  for (uint32_t peer = 0; peer < builder->head.npeers; peer++) {
    int32_t from = (request->rank + 1 + (int32_t)peer) % request->nranks;
    tt_builder_receive(builder, (uint16_t)peer, TT_OUTPUT, tt_chunk_one(from, request->nranks));
  }
}

/* The sum of all ranks' chunks: `own` of this rank's input, and what the others send. */
static void reduce_all(struct tt_builder *builder, const struct tt_emit_request *request, struct tt_chunks own)
{
  struct tt_chunks all = tt_chunk_one(0, 1);
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, TT_FLAG_FINAL);
  for (int32_t from = 0; from < request->nranks; from++) {
    if (from == request->rank)
      tt_builder_source(builder, TT_INPUT, own);
    else
      tt_builder_receive(builder, tt_emit_peer_index(request, from), TT_RESULT, all);
  }
  tt_builder_destination(builder, TT_OUTPUT, all);
}

/* A rank that is not the root only sends its input, or only receives its output. */
static void with_root_only(struct tt_builder *builder, const struct tt_emit_request *request, bool sends)
{
  uint16_t root = tt_builder_peer(builder, request->root);
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  if (sends) {
    builder->head.output_blocks = 0;
    tt_builder_send(builder, root, TT_INPUT, tt_chunk_one(0, 1));
  } else {
    builder->head.input_blocks = 0;
    tt_builder_receive(builder, root, TT_OUTPUT, tt_chunk_one(0, 1));
  }
}

static void emit_all_gather(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct tt_chunks own = tt_chunk_one(request->rank, request->nranks);
  builder->head.output_blocks = (uint32_t)request->nranks;
  tt_emit_all_peers(builder, request);
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, tt_chunk_one(0, 1));
  tt_builder_destination(builder, TT_OUTPUT, own);
  send_to_all(builder, request, TT_RESULT, own, false);
  if (request->nranks == 1) return;
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  receive_from_all(builder, request);
}

static void emit_reduce_scatter(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct tt_chunks own = tt_chunk_one(request->rank, request->nranks);
  builder->head.input_blocks = (uint32_t)request->nranks;
  tt_emit_all_peers(builder, request);
  if (request->nranks > 1) {
    tt_builder_strand(builder);
    tt_builder_data(builder, 1, 0);
    send_to_all(builder, request, TT_INPUT, own, true);
  }
  reduce_all(builder, request, own);
}

static void emit_broadcast(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct tt_chunks all = tt_chunk_one(0, 1);
  if (!is_root(request)) {
    with_root_only(builder, request, false);
    return;
  }
  tt_emit_all_peers(builder, request);
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, all);
  tt_builder_destination(builder, TT_OUTPUT, all);
  send_to_all(builder, request, TT_RESULT, all, false);
}

static void emit_reduce(struct tt_builder *builder, const struct tt_emit_request *request)
{
  if (!is_root(request)) {
    with_root_only(builder, request, true);
    return;
  }
  tt_emit_all_peers(builder, request);
  reduce_all(builder, request, tt_chunk_one(0, 1));
}

static void emit_scatter(struct tt_builder *builder, const struct tt_emit_request *request)
{
  if (!is_root(request)) {
    with_root_only(builder, request, false);
    return;
  }
  builder->head.input_blocks = (uint32_t)request->nranks;
  tt_emit_all_peers(builder, request);
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, tt_chunk_one(request->rank, request->nranks));
  tt_builder_destination(builder, TT_OUTPUT, tt_chunk_one(0, 1));
  send_to_all(builder, request, TT_INPUT, tt_chunk_one(0, 1), true);
}

static void emit_gather(struct tt_builder *builder, const struct tt_emit_request *request)
{
  if (!is_root(request)) {
    with_root_only(builder, request, true);
    return;
  }
  builder->head.output_blocks = (uint32_t)request->nranks;
  tt_emit_all_peers(builder, request);
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, tt_chunk_one(0, 1));
  tt_builder_destination(builder, TT_OUTPUT, tt_chunk_one(request->rank, request->nranks));
  receive_from_all(builder, request);
}

static void emit_all_to_all(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct tt_chunks own = tt_chunk_one(request->rank, request->nranks);
  builder->head.input_blocks = builder->head.output_blocks = (uint32_t)request->nranks;
  tt_emit_all_peers(builder, request);
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, own);
  tt_builder_destination(builder, TT_OUTPUT, own);
  send_to_all(builder, request, TT_INPUT, own, true);
  if (request->nranks == 1) return;
  if (!request->apart) {
    uint16_t sent = tt_builder_semaphore(builder);
    tt_builder_signal(builder, sent);
    tt_builder_strand(builder);
    tt_builder_wait(builder, sent);
  } else {
    tt_builder_strand(builder);
  }
  tt_builder_data(builder, 1, 0);
  receive_from_all(builder, request);
}

ncclResult_t tt_emit_direct(struct tt_builder *builder, const struct tt_emit_request *request)
{
  static void (*const emitters[TT_NUM_FUNCS])(struct tt_builder *, const struct tt_emit_request *) = {
      [TT_FUNC_ALL_GATHER] = emit_all_gather, [TT_FUNC_REDUCE_SCATTER] = emit_reduce_scatter,
      [TT_FUNC_BROADCAST] = emit_broadcast,   [TT_FUNC_REDUCE] = emit_reduce,
      [TT_FUNC_SCATTER] = emit_scatter,       [TT_FUNC_GATHER] = emit_gather,
      [TT_FUNC_ALL_TO_ALL] = emit_all_to_all,
  };
  emitters[request->collective](builder, request);
  return ncclSuccess;
}
