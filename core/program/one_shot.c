/* One-shot all-reduce: every rank sends its whole input to all others and reduces all of it. One exchange, so it has
 * the least latency, and moves the most bytes. Sums run in rank order on every rank, so that all get the same bits. */
#include "program/algorithms.h"

ncclResult_t tt_emit_one_shot(struct tt_builder *builder, const struct tt_emit_request *request)
{
  int32_t n = request->nranks, rank = request->rank;
  struct tt_chunks all = tt_chunk_one(0, 1);
  tt_builder_strand(builder);
  tt_emit_all_peers(builder, request);
  if (n > 1) {
    tt_builder_data(builder, 1, 0);
    tt_builder_source(builder, TT_INPUT, all);
    for (uint32_t peer = 0; peer < builder->head.npeers; peer++)
      tt_builder_send(builder, (uint16_t)peer, TT_RESULT, all);
  }
  tt_builder_data(builder, 1, TT_FLAG_FINAL);
  for (int32_t from = 0; from < n; from++) {
    if (from == rank)
      tt_builder_source(builder, TT_INPUT, all);
    else
      tt_builder_receive(builder, tt_emit_peer_index(request, from), TT_RESULT, all);
  }
  tt_builder_destination(builder, TT_OUTPUT, all);
  return ncclSuccess;
}
