/* All-reduce over networks that reduce, all ranks of a node at once: a block is cut into shares, one for each network.
 * Each rank scatters its input to the shares' heads on its node; a head reduces its share, exchanges the node's sum for
 * the sum of all nodes, and hands the result to its node.
 *
 * Two heads of a node send each other both what they scatter and what they hand down, and a direction of a connection
 * belongs to one strand. So heads scatter and hand down in one strand, reduce and gather in another, and to have more
 * on its way than one message, a share is moved in PIECES parts. Where a node has one head nothing of that is needed:
 * then a strand has one task only, and loops overlap.
 *
 * A gathered part may overwrite the input that it was scattered from, so gathering waits until that has been sent. */
#include <stdlib.h>
#include "base/check.h"
#include "program/algorithms.h"
#include "program/collnet_shape.h"

enum { PIECES = 4 };

struct direct {
  struct tt_collnet_shape shape;
  uint16_t *peers; /* of each rank of the node, by its number there */
  bool head;
  uint16_t network;
  int32_t pieces; /* of a share */
};

/* A head's share, piece by piece. */
static struct tt_chunks share(const struct direct *direct, int32_t head)
{
  int32_t heads = direct->shape.networks;
  return (struct tt_chunks){.start = head, .stride = heads, .modulo = heads * direct->pieces};
}

/* A head talks to all ranks of its node, the others to the heads; each begins behind itself, so that not all start with
 * the same. */
static ncclResult_t add_peers(struct tt_builder *builder, struct direct *direct)
{
  const struct tt_collnet_shape *shape = &direct->shape;
  TT_TRY(TT_CALLOC(&direct->peers, (size_t)shape->nlocal));
  direct->head = shape->local < shape->networks;
  for (int32_t distance = 1; distance < shape->nlocal; distance++) {
    int32_t other = (shape->local + distance) % shape->nlocal;
    if (direct->head || other < shape->networks) direct->peers[other] = tt_builder_peer(builder, shape->ranks[other]);
  }
  if (direct->head) direct->network = tt_builder_peer(builder, TT_PEER_NETWORK - shape->local);
  return ncclSuccess;
}

/* One instruction, so that all heads are served together. */
static void exchange_with_heads(struct tt_builder *builder, const struct direct *direct, bool scatter)
{
  const struct tt_collnet_shape *shape = &direct->shape;
  tt_builder_data(builder, (uint32_t)direct->pieces, 0);
  for (int32_t distance = 1; distance < shape->nlocal; distance++) {
    int32_t other = (shape->local + distance) % shape->nlocal;
    if (other >= shape->networks) continue;
    if (scatter)
      tt_builder_send(builder, direct->peers[other], TT_INPUT, share(direct, other));
    else
      tt_builder_receive(builder, direct->peers[other], TT_OUTPUT, share(direct, other));
  }
}

static void reduce_own_share(struct tt_builder *builder, const struct direct *direct)
{
  const struct tt_collnet_shape *shape = &direct->shape;
  struct tt_chunks own = share(direct, shape->local);
  tt_builder_data(builder, (uint32_t)direct->pieces, 0);
  for (int32_t from = 0; from < shape->nlocal; from++) {
    if (from == shape->local)
      tt_builder_source(builder, TT_INPUT, own);
    else
      tt_builder_receive(builder, direct->peers[from], TT_RESULT, own);
  }
  tt_builder_send(builder, direct->network, TT_RESULT, own);
}

static void hand_down(struct tt_builder *builder, const struct direct *direct)
{
  const struct tt_collnet_shape *shape = &direct->shape;
  struct tt_chunks own = share(direct, shape->local);
  tt_builder_data(builder, (uint32_t)direct->pieces, TT_FLAG_FINAL);
  tt_builder_receive(builder, direct->network, TT_RESULT, own);
  tt_builder_destination(builder, TT_OUTPUT, own);
  for (int32_t distance = 1; distance < shape->nlocal; distance++)
    tt_builder_send(builder, direct->peers[(shape->local + distance) % shape->nlocal], TT_RESULT, own);
}

/* A strand for what is sent on the node, and one for what is received there. */
static void emit_strands(struct tt_builder *builder, const struct direct *direct)
{
  bool others = direct->shape.networks > direct->head; /* there are heads besides this rank */
  uint16_t scattered = others ? tt_builder_semaphore(builder) : 0;
  tt_builder_strand(builder);
  if (others) {
    exchange_with_heads(builder, direct, true);
    tt_builder_signal(builder, scattered);
  }
  if (direct->head) hand_down(builder, direct);
  tt_builder_strand(builder);
  if (direct->head) reduce_own_share(builder, direct);
  if (others) {
    tt_builder_wait(builder, scattered);
    exchange_with_heads(builder, direct, false);
  }
}

ncclResult_t tt_emit_collnet_direct(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct direct direct = {0};
  ncclResult_t result;
  TT_TRY_GOTO(tt_collnet_shape_find(request, &direct.shape), result, out);
  TT_TRY_GOTO(add_peers(builder, &direct), result, out);
  direct.pieces = direct.shape.networks > 1 ? PIECES : 1;
  builder->head.parts = (uint32_t)(direct.shape.networks * direct.pieces);
  emit_strands(builder, &direct);
out:
  free(direct.peers);
  tt_collnet_shape_free(&direct.shape);
  return result;
}
