/* Mapped, of messages: a send writes where the receiver's output lies, so no data goes through the connection. The
 * receiver tells the sender that it has begun ("ready"), and the sender tells it afterwards that all is there.
 *
 * A rank that sends to one rank and receives, beside that, from one, which may be the same, has one program for both
 * (TT_FUNC_SEND_RECV): it tells "ready" before it waits for anything. So ranks that exchange, or pass on in a ring, do
 * not wait for each other in a circle, though each executes one instruction after the other. What it receives must not
 * take the place of what it sends, which may still be on its way then. */
#include "base/check.h"
#include "program/algorithms.h"
#include "program/members.h"

/* The ranks that this one sends to and receives from; -1: none. */
struct partners {
  int32_t to, from;
};

static struct partners partners_of(const struct tt_emit_request *request)
{
  struct partners partners = {.to = -1, .from = -1};
  if (request->collective != TT_FUNC_RECV) partners.to = request->peer;
  if (request->collective == TT_FUNC_RECV) partners.from = request->peer;
  if (request->collective == TT_FUNC_SEND_RECV) partners.from = request->root;
  return partners;
}

static ncclResult_t check_partner(const struct tt_emit_request *request, int32_t partner)
{
  if (partner == request->rank)
    return TT_FAIL(ncclInvalidArgument, "rank %d cannot exchange messages with itself by algorithm %s", partner,
                   tt_algorithm_name(TT_ALGO_MAPPED));
  if (request->node != NULL && partner >= 0 && request->node[partner] != request->node[request->rank])
    return TT_FAIL(ncclInvalidUsage,
                   "algorithm %s is for ranks of one node, and ranks %d and %d are on two; choose another algorithm",
                   tt_algorithm_name(TT_ALGO_MAPPED), request->rank, partner);
  return ncclSuccess;
}

/* In ascending order. Returns the index of `to`. */
static uint16_t add_members(struct tt_builder *builder, int32_t rank, struct partners partners)
{
  int32_t members[3] = {rank};
  uint32_t count = 0;
  uint16_t target = 0;
  for (int32_t member = 0; member < builder->head.nranks; member++) {
    if (member != rank && member != partners.to && member != partners.from) continue;
    if (member == partners.to) target = (uint16_t)count;
    members[count++] = member;
  }
  tt_builder_share(builder, 0, members, count);
  return target;
}

static void tell(struct tt_builder *builder, uint16_t peer)
{
  tt_builder_data(builder, 1, 0);
  tt_builder_tell(builder, peer);
}

static void hear(struct tt_builder *builder, uint16_t peer)
{
  tt_builder_data(builder, 1, 0);
  tt_builder_hear(builder, peer);
}

ncclResult_t tt_emit_mapped_message(struct tt_builder *builder, const struct tt_emit_request *request)
{
  const struct partners partners = partners_of(request);
  const struct tt_chunks all = tt_chunk_one(0, 1);
  uint16_t to = 0, from = 0;
  TT_TRY(check_partner(request, partners.to));
  TT_TRY(check_partner(request, partners.from));
  const uint16_t target = add_members(builder, request->rank, partners);
  if (partners.from >= 0) to = from = tt_builder_peer(builder, partners.from);
  if (partners.to >= 0 && partners.to != partners.from) to = tt_builder_peer(builder, partners.to);
  builder->head.input_blocks = partners.to >= 0;
  builder->head.output_blocks = partners.from >= 0;
  tt_builder_strand(builder);
  if (partners.from >= 0) tell(builder, from);
  if (partners.to >= 0) {
    hear(builder, to);
    tt_builder_data(builder, 1, 0);
    tt_builder_source(builder, TT_INPUT, all);
    tt_builder_member_destination(builder, target, all);
    tell(builder, to);
  }
  if (partners.from >= 0) hear(builder, from);
  return ncclSuccess;
}
