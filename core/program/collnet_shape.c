/* See collnet_shape.h; and who the members of a network are, for those who connect them. */
#include "program/collnet_shape.h"

#include <stdlib.h>
#include "base/check.h"

static int32_t node_of(const int32_t *node, int32_t rank)
{
  return node ? node[rank] : 0;
}

/* Counts the ranks of each node; `counts` has room for nranks. */
static ncclResult_t count_nodes(int32_t nranks, const int32_t *node, int32_t *counts, int32_t *smallest)
{
  int32_t nnodes = 0;
  for (int32_t r = 0; r < nranks; r++) {
    int32_t at = node_of(node, r);
    if (at < 0 || at >= nranks)
      return TT_FAIL(ncclInvalidArgument, "node %d of rank %d is outside 0..%d", at, r, nranks - 1);
    counts[at]++;
    if (at >= nnodes) nnodes = at + 1;
  }
  *smallest = nranks;
  for (int32_t i = 0; i < nnodes; i++) {
    if (!counts[i]) return TT_FAIL(ncclInvalidArgument, "no rank is on node %d of %d", i, nnodes);
    if (counts[i] < *smallest) *smallest = counts[i];
  }
  return ncclSuccess;
}

ncclResult_t tt_collnet_shape_find(const struct tt_emit_request *request, struct tt_collnet_shape *shape)
{
  int32_t n = request->nranks, mine = node_of(request->node, request->rank);
  *shape = (struct tt_collnet_shape){0};
  TT_TRY(TT_CALLOC(&shape->ranks, (size_t)n));
  TT_TRY(count_nodes(n, request->node, shape->ranks, &shape->networks));
  for (int32_t r = 0; r < n; r++) {
    if (node_of(request->node, r) != mine) continue;
    if (r == request->rank) shape->local = shape->nlocal;
    shape->ranks[shape->nlocal++] = r;
  }
  return ncclSuccess;
}

void tt_collnet_shape_free(struct tt_collnet_shape *shape)
{
  free(shape->ranks);
  shape->ranks = NULL;
}

ncclResult_t tt_collnet_members(int32_t nranks, const int32_t *node, int32_t network, int32_t *members,
                                int32_t *nmembers)
{
  int32_t *seen;
  *nmembers = 0;
  TT_TRY(TT_CALLOC(&seen, (size_t)nranks));
  for (int32_t r = 0; r < nranks; r++) {
    if (seen[node_of(node, r)]++ == network) members[(*nmembers)++] = r;
  }
  free(seen);
  return ncclSuccess;
}
