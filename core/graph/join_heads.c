/* Heads: of each machine the ranks through which NVLS and CollNet direct reach other machines. A rank that heads
 * several channels counts once, and all machines use as many heads as the one with the fewest has. */
#include <stdlib.h>
#include "base/check.h"
#include "graph/join_internal.h"

/* The different heads of a shape, in the order of its channels. */
static int list(const struct tt_join_shape *shape, enum tt_graph_kind kind, uint16_t *heads)
{
  const struct tt_join_graph *graph = &shape->graphs[kind];
  int count = 0;
  for (int c = 0; c < graph->nchannels; c++) {
    int h = 0;
    while (h < count && heads[h] != graph->order[c]) h++;
    if (h == count) heads[count++] = graph->order[c];
  }
  return count;
}

static uint16_t *heads_of(const struct tt_joined *joined, enum tt_graph_kind kind, int node)
{
  const int row = 2 * joined->shape[node] + (kind == TT_GRAPH_COLLNET_DIRECT);
  return &joined->heads[(size_t)row * TT_GRAPH_MOST_CHANNELS];
}

static int count_of(const struct tt_joined *joined, enum tt_graph_kind kind)
{
  return kind == TT_GRAPH_NVLS ? joined->nvls_heads : joined->direct_heads;
}

ncclResult_t tt_join_make_heads(struct tt_joined *joined)
{
  TT_TRY(TT_CALLOC(&joined->heads, (size_t)joined->shapes.count * 2 * TT_GRAPH_MOST_CHANNELS));
  int fewest[2] = {TT_GRAPH_MOST_CHANNELS, TT_GRAPH_MOST_CHANNELS};
  for (int s = 0; s < joined->shapes.count; s++)
    for (int k = 0; k < 2; k++) {
      uint16_t *heads = &joined->heads[(size_t)(2 * s + k) * TT_GRAPH_MOST_CHANNELS];
      int count = list(joined->shapes.shapes[s], k == 0 ? TT_GRAPH_NVLS : TT_GRAPH_COLLNET_DIRECT, heads);
      fewest[k] = TT_MIN(fewest[k], count);
    }
  if (joined->nvls_channels > 0) joined->nvls_heads = fewest[0];
  if (joined->collnet && joined->max_local <= TT_JOIN_MOST_DIRECT) joined->direct_heads = fewest[1];
  return ncclSuccess;
}

int32_t tt_join_head(const struct tt_joined *joined, enum tt_graph_kind kind, int node, int h)
{
  return tt_join_member(joined, node, heads_of(joined, kind, node)[h]);
}

int tt_join_head_number(const struct tt_joined *joined, enum tt_graph_kind kind, int rank)
{
  const uint16_t *heads = heads_of(joined, kind, joined->node[rank]);
  for (int h = 0; h < count_of(joined, kind); h++)
    if (heads[h] == joined->local[rank]) return h;
  return -1;
}

struct tt_join_tree tt_join_nvls_place(const struct tt_joined *joined, int channel, int rank)
{
  const int head = tt_join_head_number(joined, TT_GRAPH_NVLS, rank);
  struct tt_join_tree tree = {-1, {joined->nranks + 1 + head, -1, -1}};
  if (head < 0) return tree;
  const struct tt_node_tree between = tt_node_tree_place(joined->nnodes, joined->node[rank], channel % 2);
  if (between.up >= 0) tree.up = tt_join_head(joined, TT_GRAPH_NVLS, between.up, head);
  for (int k = 0, at = 1; k < 2; k++)
    if (between.child[k] >= 0) tree.down[at++] = tt_join_head(joined, TT_GRAPH_NVLS, between.child[k], head);
  return tree;
}
