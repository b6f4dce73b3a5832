/* Send and receive: one program for each direction, or one local copy where a rank sends to itself. */
#include "program/algorithms.h"

ncclResult_t tt_emit_point_to_point(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct tt_chunks all = tt_chunk_one(0, 1);
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  if (request->peer == request->rank) {
    tt_builder_source(builder, TT_INPUT, all);
    tt_builder_destination(builder, TT_OUTPUT, all);
    return ncclSuccess;
  }
  uint16_t peer = tt_builder_peer(builder, request->peer);
  if (request->collective == TT_FUNC_SEND) {
    builder->head.output_blocks = 0;
    tt_builder_source(builder, TT_INPUT, all);
    tt_builder_send(builder, peer, TT_RESULT, all);
  } else {
    builder->head.input_blocks = 0;
    tt_builder_receive(builder, peer, TT_OUTPUT, all);
  }
  return ncclSuccess;
}
