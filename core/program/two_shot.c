/* Two-shot all-reduce: a block is cut into a part for each rank. Each rank scatters its input to the parts' owners,
 * reduces its own part and sends the result to all. Three instructions for any number of ranks, each one
 * synchronisation for all peers together. */
#include "program/algorithms.h"

static void reduce_own_part(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct tt_chunks own = tt_chunk_one(request->rank, request->nranks);
  tt_builder_data(builder, 1, TT_FLAG_FINAL);
  for (int32_t from = 0; from < request->nranks; from++) {
    if (from == request->rank)
      tt_builder_source(builder, TT_INPUT, own);
    else
      tt_builder_receive(builder, tt_emit_peer_index(request, from), TT_RESULT, own);
  }
  tt_builder_destination(builder, TT_OUTPUT, own);
  for (uint32_t peer = 0; peer < builder->head.npeers; peer++) tt_builder_send(builder, (uint16_t)peer, TT_RESULT, own);
}

ncclResult_t tt_emit_two_shot(struct tt_builder *builder, const struct tt_emit_request *request)
{
  int32_t n = request->nranks, rank = request->rank;
  builder->head.parts = (uint32_t)n;
  tt_builder_strand(builder);
  tt_emit_all_peers(builder, request);
  if (n > 1) {
    tt_builder_data(builder, 1, 0);
    for (int32_t distance = 1; distance < n; distance++)
      tt_builder_send(builder, (uint16_t)(distance - 1), TT_INPUT, tt_chunk_one((rank + distance) % n, n));
  }
  reduce_own_part(builder, request);
  if (n > 1) {
    tt_builder_data(builder, 1, 0);
    for (int32_t distance = 1; distance < n; distance++)
      tt_builder_receive(builder, (uint16_t)(distance - 1), TT_OUTPUT, tt_chunk_one((rank + distance) % n, n));
  }
  return ncclSuccess;
}
