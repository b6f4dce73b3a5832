/* Mapped: ranks read and write each other's user buffers where they lie, so no data goes through a connection. Messages
 * without data say when: every rank tells those who will touch its buffers that it has begun ("ready"), and each of
 * them tells it afterwards that it is done. In between there is one instruction.
 *
 * Where a block is for all ranks it is cut in a part for each rank that works on it, which reads the part from where it
 * is and writes the result to where it is wanted. Writing to many is faster than letting many read. Sums run in rank
 * order. Of broadcast and reduce the root moves nothing itself: the wires of its own are the ones that limit, and the
 * other ranks move all over theirs.
 *
 * Of broadcast the others touch outputs only, since these are what all ranks have: a root copies its input there first,
 * which is nothing where it is in place.
 *
 * Sends and receives are in mapped_message.c.
 *
 * All-to-all in place has no such program: a rank's block would be overwritten before its receiver has read it. */
#include <stdlib.h>
#include "base/check.h"
#include "program/algorithms.h"
#include "program/members.h"

static bool is_root(const struct tt_emit_request *request)
{
  return request->rank == request->root;
}

/* Ranks that work, and this rank's place among them; -1: it does not. */
static int32_t workers(const struct tt_emit_request *request, int32_t *place)
{
  bool without_root = request->collective == TT_FUNC_BROADCAST || request->collective == TT_FUNC_REDUCE;
  *place = request->rank - (without_root && request->rank > request->root);
  if (without_root && is_root(request)) *place = -1;
  return request->nranks - without_root;
}

/* Scatter and gather: the root is the only one whose buffers others touch, and hears from all; the others hear from it
 * alone. */
static bool only_with_root(const struct tt_emit_request *request)
{
  return request->collective == TT_FUNC_SCATTER || request->collective == TT_FUNC_GATHER;
}

static void add_peers(struct tt_builder *builder, const struct tt_emit_request *request)
{
  if (only_with_root(request) && !is_root(request))
    tt_builder_peer(builder, request->root);
  else
    tt_emit_all_peers(builder, request);
}

/* Before the work (`ready`) those who work hear from those whose buffers they touch; after it, the other way round. */
static bool is_told(const struct tt_emit_request *request, int32_t teller, int32_t hearer, bool ready)
{
  int32_t worker = ready ? hearer : teller, owner = ready ? teller : hearer;
  if (only_with_root(request)) return owner == request->root;
  return !tt_collective_has_root(request->collective) || worker != request->root;
}

/* Tells who has to know, then hears from all that this rank has to know of. */
static void exchange(struct tt_builder *builder, const struct tt_emit_request *request, bool ready)
{
  for (int hears = 0; hears < 2; hears++) {
    bool begun = false;
    for (uint32_t peer = 0; peer < builder->head.npeers; peer++) {
      int32_t with = builder->peers[peer];
      if (!(hears ? is_told(request, with, request->rank, ready) : is_told(request, request->rank, with, ready)))
        continue;
      if (!begun) tt_builder_data(builder, 1, 0);
      begun = true;
      if (hears)
        tt_builder_hear(builder, (uint16_t)peer);
      else
        tt_builder_tell(builder, (uint16_t)peer);
    }
  }
}

static void read_all(struct tt_builder *builder, const struct tt_emit_request *request, struct tt_chunks chunk)
{
  for (int32_t member = 0; member < request->nranks; member++)
    tt_builder_member_source(builder, (uint16_t)member, TT_MEMBER_INPUT, chunk);
}

/* Writes to all members but `without` (-1: to all), beginning behind this rank, so that not all write to the same
 * one. */
static void write_all(struct tt_builder *builder, const struct tt_emit_request *request, struct tt_chunks chunk,
                      int32_t without)
{
  for (int32_t distance = 1; distance <= request->nranks; distance++) {
    int32_t member = (request->rank + distance) % request->nranks;
    if (member != without) tt_builder_member_destination(builder, (uint16_t)member, chunk);
  }
}

/* A broadcast's root, before anybody reads its output. */
static void fill_output(struct tt_builder *builder, const struct tt_emit_request *request)
{
  int32_t parts = (int32_t)builder->head.parts;
  struct tt_chunks all = {.start = 0, .stride = 1, .modulo = parts};
  if (request->collective != TT_FUNC_BROADCAST || !is_root(request)) return;
  tt_builder_data(builder, (uint32_t)parts, 0);
  tt_builder_source(builder, TT_INPUT, all);
  tt_builder_destination(builder, TT_OUTPUT, all);
}

/* All-to-all: a copy for each member. */
static void write_blocks(struct tt_builder *builder, const struct tt_emit_request *request)
{
  int32_t n = request->nranks;
  for (int32_t distance = 1; distance <= n; distance++) {
    int32_t member = (request->rank + distance) % n;
    tt_builder_data(builder, 1, 0);
    tt_builder_source(builder, TT_INPUT, tt_chunk_one(member, n));
    tt_builder_member_destination(builder, (uint16_t)member, tt_chunk_one(request->rank, n));
  }
}

static void work(struct tt_builder *builder, const struct tt_emit_request *request, int32_t place)
{
  int32_t n = request->nranks, rank = request->rank;
  struct tt_chunks one = tt_chunk_one(0, 1), own = tt_chunk_one(rank, n);
  struct tt_chunks part = tt_chunk_one(place, (int32_t)builder->head.parts);
  uint16_t root = (uint16_t)request->root;
  if (request->collective == TT_FUNC_ALL_TO_ALL) {
    write_blocks(builder, request);
    return;
  }
  tt_builder_data(builder, 1, tt_collective_reduces(request->collective) ? TT_FLAG_FINAL : 0);
  switch (request->collective) {
  case TT_FUNC_ALL_REDUCE:
    read_all(builder, request, part);
    write_all(builder, request, part, -1);
    break;
  case TT_FUNC_REDUCE:
    read_all(builder, request, part);
    tt_builder_member_destination(builder, root, part);
    break;
  case TT_FUNC_REDUCE_SCATTER:
    read_all(builder, request, own);
    tt_builder_destination(builder, TT_OUTPUT, one);
    break;
  case TT_FUNC_BROADCAST:
    tt_builder_member_source(builder, root, TT_MEMBER_OUTPUT, part);
    write_all(builder, request, part, request->root);
    break;
  case TT_FUNC_ALL_GATHER:
    tt_builder_source(builder, TT_INPUT, one);
    write_all(builder, request, own, -1);
    break;
  case TT_FUNC_GATHER:
    tt_builder_source(builder, TT_INPUT, one);
    tt_builder_member_destination(builder, root, own);
    break;
  default: /* TT_FUNC_SCATTER */
    tt_builder_member_source(builder, root, TT_MEMBER_INPUT, own);
    tt_builder_destination(builder, TT_OUTPUT, one);
  }
}

static void set_blocks(struct tt_builder *builder, const struct tt_emit_request *request, int32_t nworkers)
{
  uint32_t n = (uint32_t)request->nranks;
  struct tt_program *head = &builder->head;
  bool blocks = tt_collective_has_blocks(request->collective);
  head->parts = blocks ? 1 : (uint32_t)nworkers;
  switch (request->collective) {
  case TT_FUNC_BROADCAST:
    head->input_blocks = is_root(request) ? 1 : 0;
    break;
  case TT_FUNC_REDUCE:
    head->output_blocks = is_root(request) ? 1 : 0;
    break;
  case TT_FUNC_SCATTER:
    head->input_blocks = is_root(request) ? n : 0;
    break;
  case TT_FUNC_GATHER:
    head->output_blocks = is_root(request) ? n : 0;
    break;
  default:
    if (blocks && request->collective != TT_FUNC_ALL_GATHER) head->input_blocks = n;
    if (blocks && request->collective != TT_FUNC_REDUCE_SCATTER) head->output_blocks = n;
  }
}

static ncclResult_t check_one_node(const struct tt_emit_request *request)
{
  for (int32_t rank = 1; request->node != NULL && rank < request->nranks; rank++)
    if (request->node[rank] != request->node[0])
      return TT_FAIL(ncclInvalidUsage,
                     "algorithm %s is for ranks of one node, and ranks 0 and %d are on two; choose another algorithm",
                     tt_algorithm_name(TT_ALGO_MAPPED), rank);
  return ncclSuccess;
}

ncclResult_t tt_emit_mapped(struct tt_builder *builder, const struct tt_emit_request *request)
{
  int32_t place, nworkers = workers(request, &place), *members;
  if (tt_collective_is_message(request->collective)) return tt_emit_mapped_message(builder, request);
  TT_TRY(check_one_node(request));
  if (request->nranks == 1) {
    tt_members_alone(builder, request);
    return ncclSuccess;
  }
  TT_TRY(TT_CALLOC(&members, (size_t)request->nranks));
  for (int32_t rank = 0; rank < request->nranks; rank++) members[rank] = rank;
  tt_builder_share(builder, 0, members, (uint32_t)request->nranks);
  free(members);
  set_blocks(builder, request, nworkers);
  add_peers(builder, request);
  tt_builder_strand(builder);
  fill_output(builder, request);
  exchange(builder, request, true);
  if (place >= 0) work(builder, request, place);
  exchange(builder, request, false);
  return ncclSuccess;
}
