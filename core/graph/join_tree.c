/* Where a rank stands in the trees of a channel. Inside a machine a tree is a chain, in the order of the machine's
 * graph; between machines it is the double binary tree. The graph's pattern says which of the chain's ranks hold what
 * comes from above and what goes below.
 *
 * Nothing is stored: machines with few ranks stand beside ones with many, and each has the chain that it found. */
#include "graph/join_internal.h"

static void add_down(struct tt_join_tree *tree, int32_t rank)
{
  int at = 0;
  while (at < 2 && tree->down[at] >= 0) at++;
  tree->down[at] = rank;
}

/* Which rank of a machine's chain is joined to its child number `kind`. */
static int holder(const struct tt_join_graph *graph, int nranks, int kind)
{
  if (nranks == 1 || graph->pattern == TT_PATTERN_TREE) return 0;
  return kind == 0 || graph->pattern == TT_PATTERN_SPLIT_TREE;
}

static int32_t rank_at(const struct tt_joined *joined, enum tt_graph_kind kind, int node, int channel, int place)
{
  const struct tt_join_shape *shape = tt_join_shape_of(joined, node);
  return tt_join_member(joined, node, shape->graphs[kind].order[channel * shape->nranks + place]);
}

/* The chain inside the machine; *place is the rank's in it. */
static struct tt_join_tree chain(const struct tt_joined *joined, enum tt_graph_kind kind, int channel, int rank,
                                 int *place)
{
  const int node = joined->node[rank];
  const struct tt_join_shape *shape = tt_join_shape_of(joined, node);
  struct tt_join_tree tree = {-1, {-1, -1, -1}};
  *place = shape->graphs[kind].place[channel * shape->nranks + joined->local[rank]];
  if (*place > 0) tree.up = rank_at(joined, kind, node, channel, *place - 1);
  if (*place + 1 < shape->nranks) tree.down[0] = rank_at(joined, kind, node, channel, *place + 1);
  return tree;
}

struct tt_join_tree tt_join_twin_place(const struct tt_joined *joined, int of_graph, int which, int rank)
{
  int place;
  const int node = joined->node[rank];
  struct tt_join_tree tree = chain(joined, TT_GRAPH_TREE, of_graph, rank, &place);
  const struct tt_join_shape *shape = tt_join_shape_of(joined, node);
  const struct tt_node_tree between = tt_node_tree_place(joined->nnodes, node, which);
  if (place == 0 && between.up >= 0) {
    const struct tt_join_shape *above = tt_join_shape_of(joined, between.up);
    tree.up = rank_at(joined, TT_GRAPH_TREE, between.up, of_graph,
                      holder(&above->graphs[TT_GRAPH_TREE], above->nranks, between.kind));
  }
  for (int k = 0; k < 2; k++)
    if (between.child[k] >= 0 && place == holder(&shape->graphs[TT_GRAPH_TREE], shape->nranks, k))
      add_down(&tree, rank_at(joined, TT_GRAPH_TREE, between.child[k], of_graph, 0));
  return tree;
}

struct tt_join_tree tt_join_tree_place(const struct tt_joined *joined, int channel, int rank)
{
  const int base = joined->base[channel];
  return tt_join_twin_place(joined, base % joined->nsearched, base / joined->nsearched, rank);
}

struct tt_join_tree tt_join_chain_place(const struct tt_joined *joined, int channel, int rank)
{
  int place;
  const int of_graph = joined->base[channel] % joined->weakest[TT_GRAPH_COLLNET_CHAIN].nchannels;
  struct tt_join_tree tree = chain(joined, TT_GRAPH_COLLNET_CHAIN, of_graph, rank, &place);
  if (place == 0) tree.up = joined->nranks;
  return tree;
}
