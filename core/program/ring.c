/* Ring algorithms: every rank receives from the previous one and sends to the next.
 *
 * All-gather and reduce-scatter move blocks, which are numbered by rank; all-reduce moves parts, which are numbered by
 * place in the ring. So all-reduce has the same five instructions for any ring, and the other two need one more
 * wherever the ring's order of ranks does not continue evenly. */
#include "base/check.h"
#include "program/algorithms.h"

struct ring {
  const int32_t *order; /* ranks in ring order; NULL: 0, 1, 2, ... */
  int32_t n, place;
  uint16_t prev, next; /* peers */
};

static int32_t rank_at(const struct ring *ring, int32_t place)
{
  int32_t at = place % ring->n;
  if (at < 0) at += ring->n;
  return ring->order ? ring->order[at] : at;
}

static ncclResult_t find_place(const struct tt_emit_request *request, struct ring *ring)
{
  *ring = (struct ring){.order = request->ring, .n = request->nranks, .place = request->rank};
  if (!ring->order) return ncclSuccess;
  int32_t found = 0;
  for (int32_t i = 0; i < ring->n; i++) {
    if (ring->order[i] < 0 || ring->order[i] >= ring->n) {
      return TT_FAIL(ncclInvalidArgument, "the ring of rank %d names rank %d at place %d, outside 0..%d", request->rank,
                     ring->order[i], i, ring->n - 1);
    }
    if (ring->order[i] != request->rank) continue;
    ring->place = i;
    found++;
  }
  if (found != 1)
    return TT_FAIL(ncclInvalidArgument, "the ring of rank %d names it %d times; it must once", request->rank, found);
  return ncclSuccess;
}

/* The neighbours that are used: only those become peers, since peers get connected. Two ranks are each other's previous
 * and next: then both are one peer. */
static void add_neighbours(struct tt_builder *builder, struct ring *ring, bool receives, bool sends)
{
  int32_t prev = rank_at(ring, ring->place - 1), next = rank_at(ring, ring->place + 1);
  if (receives) ring->prev = tt_builder_peer(builder, prev);
  if (sends) ring->next = receives && next == prev ? ring->prev : tt_builder_peer(builder, next);
}

/* Blocks of the ranks at places first, first - 1, ... : as many as continue evenly, at most `limit`. */
static uint32_t even_blocks(const struct ring *ring, int32_t first, int32_t limit, struct tt_chunks *blocks)
{
  *blocks = tt_chunk_one(rank_at(ring, first), ring->n);
  int32_t count = 1;
  while (count < limit) {
    int32_t step = rank_at(ring, first - count) - rank_at(ring, first - count + 1);
    /* Modulo n, a step up is as good as a step down. */
    int32_t difference = (step - blocks->stride) % ring->n;
    if (count == 1)
      blocks->stride = step;
    else if (difference)
      break;
    count++;
  }
  return (uint32_t)count;
}

static void emit_all_reduce(struct tt_builder *builder, const struct ring *ring)
{
  int32_t n = ring->n, place = ring->place;
  struct tt_chunks first = tt_chunk_one((place + n - 1) % n, n), own = tt_chunk_one(place, n);
  struct tt_chunks last = tt_chunk_one((place + 1) % n, n);
  struct tt_chunks reduced = {.start = (place + n - 2) % n, .stride = -1, .modulo = n};
  struct tt_chunks gathered = {.start = (place + n - 1) % n, .stride = -1, .modulo = n};
  builder->head.parts = (uint32_t)n;
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, first);
  tt_builder_send(builder, ring->next, TT_RESULT, first);
  if (n > 2) {
    tt_builder_data(builder, (uint32_t)n - 2, 0);
    tt_builder_receive(builder, ring->prev, TT_RESULT, reduced);
    tt_builder_source(builder, TT_INPUT, reduced);
    tt_builder_send(builder, ring->next, TT_RESULT, reduced);
  }
  tt_builder_data(builder, 1, TT_FLAG_FINAL);
  tt_builder_receive(builder, ring->prev, TT_RESULT, own);
  tt_builder_source(builder, TT_INPUT, own);
  tt_builder_destination(builder, TT_OUTPUT, own);
  tt_builder_send(builder, ring->next, TT_RESULT, own);
  if (n > 2) {
    tt_builder_data(builder, (uint32_t)n - 2, 0);
    tt_builder_receive(builder, ring->prev, TT_RESULT, gathered);
    tt_builder_destination(builder, TT_OUTPUT, gathered);
    tt_builder_send(builder, ring->next, TT_RESULT, gathered);
  }
  tt_builder_data(builder, 1, 0);
  tt_builder_receive(builder, ring->prev, TT_OUTPUT, last);
}

static void emit_all_gather(struct tt_builder *builder, const struct ring *ring)
{
  int32_t n = ring->n;
  struct tt_chunks own = tt_chunk_one(rank_at(ring, ring->place), n);
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, tt_chunk_one(0, 1));
  tt_builder_destination(builder, TT_OUTPUT, own);
  tt_builder_send(builder, ring->next, TT_RESULT, own);
  for (int32_t i = 1; i < n - 1;) {
    struct tt_chunks blocks;
    uint32_t count = even_blocks(ring, ring->place - i, n - 1 - i, &blocks);
    tt_builder_data(builder, count, 0);
    tt_builder_receive(builder, ring->prev, TT_RESULT, blocks);
    tt_builder_destination(builder, TT_OUTPUT, blocks);
    tt_builder_send(builder, ring->next, TT_RESULT, blocks);
    i += (int32_t)count;
  }
  tt_builder_data(builder, 1, 0);
  tt_builder_receive(builder, ring->prev, TT_OUTPUT, tt_chunk_one(rank_at(ring, ring->place + 1), n));
}

static void emit_reduce_scatter(struct tt_builder *builder, const struct ring *ring)
{
  int32_t n = ring->n;
  struct tt_chunks first = tt_chunk_one(rank_at(ring, ring->place - 1), n);
  struct tt_chunks own = tt_chunk_one(rank_at(ring, ring->place), n);
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, first);
  tt_builder_send(builder, ring->next, TT_RESULT, first);
  for (int32_t i = 2; i < n;) {
    struct tt_chunks blocks;
    uint32_t count = even_blocks(ring, ring->place - i, n - i, &blocks);
    tt_builder_data(builder, count, 0);
    tt_builder_receive(builder, ring->prev, TT_RESULT, blocks);
    tt_builder_source(builder, TT_INPUT, blocks);
    tt_builder_send(builder, ring->next, TT_RESULT, blocks);
    i += (int32_t)count;
  }
  tt_builder_data(builder, 1, TT_FLAG_FINAL);
  tt_builder_receive(builder, ring->prev, TT_RESULT, own);
  tt_builder_source(builder, TT_INPUT, own);
  tt_builder_destination(builder, TT_OUTPUT, tt_chunk_one(0, 1));
}

/* A chain from the root round to the rank before it. */
static void emit_broadcast(struct tt_builder *builder, struct ring *ring, int32_t root_rank)
{
  struct tt_chunks all = tt_chunk_one(0, 1);
  bool root = rank_at(ring, ring->place) == root_rank, last = rank_at(ring, ring->place + 1) == root_rank;
  add_neighbours(builder, ring, !root, !last);
  builder->head.input_blocks = root ? 1 : 0;
  tt_builder_data(builder, 1, 0);
  if (last) {
    tt_builder_receive(builder, ring->prev, TT_OUTPUT, all);
    return;
  }
  if (root)
    tt_builder_source(builder, TT_INPUT, all);
  else
    tt_builder_receive(builder, ring->prev, TT_RESULT, all);
  tt_builder_destination(builder, TT_OUTPUT, all);
  tt_builder_send(builder, ring->next, TT_RESULT, all);
}

/* A chain from the rank after the root round to the root. */
static void emit_reduce(struct tt_builder *builder, struct ring *ring, int32_t root_rank)
{
  struct tt_chunks all = tt_chunk_one(0, 1);
  bool root = rank_at(ring, ring->place) == root_rank, first = rank_at(ring, ring->place - 1) == root_rank;
  add_neighbours(builder, ring, !first, !root);
  builder->head.output_blocks = root ? 1 : 0;
  tt_builder_data(builder, 1, root ? TT_FLAG_FINAL : 0);
  if (!first) tt_builder_receive(builder, ring->prev, TT_RESULT, all);
  tt_builder_source(builder, TT_INPUT, all);
  if (root)
    tt_builder_destination(builder, TT_OUTPUT, all);
  else
    tt_builder_send(builder, ring->next, TT_RESULT, all);
}

static void emit_copy(struct tt_builder *builder, bool reduces)
{
  struct tt_chunks all = tt_chunk_one(0, 1);
  tt_builder_data(builder, 1, reduces ? TT_FLAG_FINAL : 0);
  tt_builder_source(builder, TT_INPUT, all);
  tt_builder_destination(builder, TT_OUTPUT, all);
}

ncclResult_t tt_emit_ring(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct ring ring;
  TT_TRY(find_place(request, &ring));
  bool gathers = request->collective == TT_FUNC_ALL_GATHER, scatters = request->collective == TT_FUNC_REDUCE_SCATTER;
  bool chain = request->collective == TT_FUNC_BROADCAST || request->collective == TT_FUNC_REDUCE;
  if (gathers) builder->head.output_blocks = (uint32_t)ring.n;
  if (scatters) builder->head.input_blocks = (uint32_t)ring.n;
  tt_builder_strand(builder);
  if (ring.n > 1 && !chain) add_neighbours(builder, &ring, true, true);
  if (ring.n == 1)
    emit_copy(builder, request->collective != TT_FUNC_BROADCAST && !gathers);
  else if (gathers)
    emit_all_gather(builder, &ring);
  else if (scatters)
    emit_reduce_scatter(builder, &ring);
  else if (request->collective == TT_FUNC_ALL_REDUCE)
    emit_all_reduce(builder, &ring);
  else if (request->collective == TT_FUNC_BROADCAST)
    emit_broadcast(builder, &ring, request->root);
  else
    emit_reduce(builder, &ring, request->root);
  return ncclSuccess;
}
