/* What the parts of the join share; for core/graph/join*.c only. */
#ifndef TT_GRAPH_JOIN_INTERNAL_H
#define TT_GRAPH_JOIN_INTERNAL_H

#include "graph/join.h"
#include "graph/join_exchange.h"

/* Kinds whose channels name a head, not an order. */
static inline bool tt_join_has_heads(int kind)
{
  return kind == TT_GRAPH_NVLS || kind == TT_GRAPH_COLLNET_DIRECT;
}

/* ---- join_shape.c ---- */
/* A shape with room for these channels of each kind. */
ncclResult_t tt_join_shape_room(int nranks, const int nchannels[TT_GRAPH_KINDS], struct tt_join_shape **shape);
/* Fills in `place`. NULL, or what is wrong with the shape: each channel is an order of all its ranks, numbers are in
 * range. *kind tells of which graph. */
const char *tt_join_shape_check(struct tt_join_shape *shape, int *kind);

/* ---- join_ring.c ---- */
ncclResult_t tt_join_make_rings(struct tt_joined *joined);
/* ---- join_heads.c ---- */
ncclResult_t tt_join_make_heads(struct tt_joined *joined);
/* ---- join_channels.c ---- */
void tt_join_count_channels(struct tt_joined *joined, const struct tt_join_rules *rules);
/* ---- join_peers.c ---- */
ncclResult_t tt_join_make_peers(struct tt_joined *joined, const struct tt_join_rules *rules, int channels);

/* ---- node_tree.c ---- */
/* A machine's place in tree 0 or 1 of the double binary tree over all; -1 where there is none. */
struct tt_node_tree {
  int up, child[2];
  int kind; /* which of its parent's children it is */
};
struct tt_node_tree tt_node_tree_place(int nnodes, int node, int tree);

static inline int tt_join_log2(unsigned n) /* n >= 1, rounded down */
{
  return 31 - __builtin_clz(n);
}
static inline int tt_join_power_of_two(int n) /* n >= 1, rounded up; to 2^30 */
{
  return n <= 1 ? 1 : 1 << (tt_join_log2((unsigned)n - 1) + 1);
}

static inline const struct tt_join_shape *tt_join_shape_of(const struct tt_joined *joined, int node)
{
  return joined->shapes.shapes[joined->shape[node]];
}
static inline int32_t tt_join_member(const struct tt_joined *joined, int node, int local)
{
  return joined->members[joined->first[node] + local];
}

#endif
