/* All-reduce over a network that reduces, with a chain of ranks on each node: values are reduced along the chain up to
 * its head, the head exchanges the node's sum for the sum of all nodes, and the result is handed down the chain. Up
 * and down are strands of their own, so that the network works on one loop while others are on their way. The tree
 * index chooses which of the networks is used, and with it the head, so that channels spread over the ranks. */
#include "base/check.h"
#include "program/algorithms.h"
#include "program/collnet_shape.h"

ncclResult_t tt_emit_collnet_chain(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct tt_collnet_shape shape;
  struct tt_chunks all = tt_chunk_one(0, 1);
  ncclResult_t result;
  TT_TRY_GOTO(tt_collnet_shape_find(request, &shape), result, out);
  int32_t network = request->tree_index % shape.networks;
  int32_t position = (shape.local - network + shape.nlocal) % shape.nlocal; /* 0: the head */
  bool last = position == shape.nlocal - 1;
  int32_t above = position ? shape.ranks[(shape.local - 1 + shape.nlocal) % shape.nlocal] : TT_PEER_NETWORK - network;
  uint16_t up = tt_builder_peer(builder, above), down = 0;
  /* In a chain of two, one's neighbour above is the other's below, so no rank is named twice. */
  if (!last) down = tt_builder_peer(builder, shape.ranks[(shape.local + 1) % shape.nlocal]);

  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, all);
  if (!last) tt_builder_receive(builder, down, TT_RESULT, all);
  tt_builder_send(builder, up, TT_RESULT, all);

  tt_builder_strand(builder);
  tt_builder_data(builder, 1, position ? 0 : TT_FLAG_FINAL);
  tt_builder_receive(builder, up, TT_RESULT, all);
  tt_builder_destination(builder, TT_OUTPUT, all);
  if (!last) tt_builder_send(builder, down, TT_RESULT, all);
out:
  tt_collnet_shape_free(&shape);
  return result;
}
