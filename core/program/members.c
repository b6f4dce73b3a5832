/* See members.h. */
#include "program/members.h"

#include <stdlib.h>
#include "base/check.h"

static int32_t node_of(const struct tt_emit_request *request, int32_t rank)
{
  return request->node ? request->node[rank] : 0;
}

/* How many ranks each node has; all must have as many. */
static ncclResult_t check_sizes(const struct tt_emit_request *request, int32_t nnodes, int32_t *sizes)
{
  for (int32_t rank = 0; rank < request->nranks; rank++) sizes[node_of(request, rank)]++;
  for (int32_t node = 0; node < nnodes; node++) {
    if (sizes[node] == 0) return TT_FAIL(ncclInvalidArgument, "node %d of %d has no ranks", node, nnodes);
    if (sizes[node] == sizes[0]) continue;
    return TT_FAIL(ncclInvalidUsage,
                   "algorithm %s needs nodes with equally many ranks, but node 0 has %d and node %d has %d; choose "
                   "another algorithm",
                   tt_algorithm_name(request->algorithm), sizes[0], node, sizes[node]);
  }
  return ncclSuccess;
}

static ncclResult_t count_nodes(const struct tt_emit_request *request, int32_t *nnodes)
{
  int32_t *sizes;
  *nnodes = 0;
  for (int32_t rank = 0; rank < request->nranks; rank++) {
    int32_t node = node_of(request, rank);
    if (node < 0 || node >= request->nranks)
      return TT_FAIL(ncclInvalidArgument, "rank %d is on node %d, which is outside 0..%d", rank, node,
                     request->nranks - 1);
    *nnodes = TT_MAX(*nnodes, node + 1);
  }
  TT_TRY(TT_CALLOC(&sizes, (size_t)*nnodes));
  ncclResult_t result = check_sizes(request, *nnodes, sizes);
  free(sizes);
  return result;
}

ncclResult_t tt_members_find(const struct tt_emit_request *request, int32_t groups, struct tt_members *members)
{
  *members = (struct tt_members){.groups = groups, .node = node_of(request, request->rank)};
  TT_TRY(count_nodes(request, &members->nnodes));
  TT_TRY(TT_CALLOC(&members->ranks, (size_t)(request->nranks / members->nnodes)));
  for (int32_t rank = 0; rank < request->nranks; rank++) {
    if (node_of(request, rank) != members->node) continue;
    if (rank == request->rank) members->own = members->count;
    members->ranks[members->count++] = rank;
  }
  return ncclSuccess;
}

void tt_members_free(struct tt_members *members)
{
  free(members->ranks);
  members->ranks = NULL;
}

void tt_members_share(struct tt_builder *builder, const struct tt_members *members, uint32_t blocks)
{
  for (int32_t distance = 1; distance < members->count; distance++)
    tt_builder_peer(builder, members->ranks[(members->own + distance) % members->count]);
  tt_builder_share(builder, blocks, members->ranks, (uint32_t)members->count);
}

void tt_members_exchange(struct tt_builder *builder, const struct tt_members *members)
{
  tt_builder_data(builder, 1, 0);
  for (int32_t peer = 0; peer < members->count - 1; peer++) tt_builder_tell(builder, (uint16_t)peer);
  tt_builder_data(builder, 1, 0);
  for (int32_t peer = 0; peer < members->count - 1; peer++) tt_builder_hear(builder, (uint16_t)peer);
}

void tt_members_alone(struct tt_builder *builder, const struct tt_emit_request *request)
{
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, tt_collective_reduces(request->collective) ? TT_FLAG_FINAL : 0);
  tt_builder_source(builder, TT_INPUT, tt_chunk_one(0, 1));
  tt_builder_destination(builder, TT_OUTPUT, tt_chunk_one(0, 1));
}

/* The chunks of `count` members from `first` on. */
static struct tt_chunks chunks_of(const struct tt_members *members, int32_t group, int32_t first, int32_t count)
{
  return (struct tt_chunks){.start = first % members->count * members->groups + group,
                            .modulo = members->count * members->groups,
                            .count = count,
                            .step = members->groups};
}

struct tt_chunks tt_members_own(const struct tt_members *members, int32_t group)
{
  return chunks_of(members, group, members->own, 1);
}

static void copy(struct tt_builder *builder, uint8_t from, uint8_t to, struct tt_chunks chunks)
{
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, from, chunks);
  tt_builder_destination(builder, to, chunks);
}

void tt_members_copy_in(struct tt_builder *builder, const struct tt_members *members, int32_t group)
{
  copy(builder, TT_INPUT, TT_SHARED, chunks_of(members, group, 0, members->count));
}

void tt_members_copy_out(struct tt_builder *builder, const struct tt_members *members, int32_t group)
{
  copy(builder, TT_SHARED, TT_OUTPUT, chunks_of(members, group, members->own + 1, members->count - 1));
}
