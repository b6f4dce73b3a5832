/* The double binary tree over machines: two binary trees such that what is a leaf in one is an inner node in the other,
 * so that with half the data on each, all machines send and receive about as much.
 *
 * In the first tree a number stands as high as its lowest bit that is set: odd ones are leaves, 0 is above all and has
 * one child. The second tree is the first one mirrored, or, where their number is odd, shifted by one. */
#include "graph/join_internal.h"

/* Heights are bits; the ones above are found by setting the next bit, as long as that is below n. */
static int above(int nnodes, int at, int height)
{
  const int up = (at - height) | 2 * height;
  return up < nnodes ? up : at - height;
}

static struct tt_node_tree first_tree(int nnodes, int at)
{
  struct tt_node_tree place = {.up = -1, .child = {-1, -1}, .kind = 1};
  const int height = at & -at;
  if (at == 0) {
    if (nnodes > 1) place.child[1] = 1 << tt_join_log2((unsigned)nnodes - 1);
    return place;
  }
  place.up = above(nnodes, at, height);
  place.kind = at > place.up;
  if (height > 1) place.child[0] = at - height / 2;
  for (int step = height / 2; step > 0 && place.child[1] < 0; step /= 2)
    if (at + step < nnodes) place.child[1] = at + step;
  return place;
}

struct tt_node_tree tt_node_tree_place(int nnodes, int node, int tree)
{
  if (tree == 0) return first_tree(nnodes, node);
  const bool mirrored = nnodes % 2 == 0;
  struct tt_node_tree place = first_tree(nnodes, mirrored ? nnodes - 1 - node : (node + nnodes - 1) % nnodes);
  int *const numbers[] = {&place.up, &place.child[0], &place.child[1]};
  for (int i = 0; i < 3; i++)
    if (*numbers[i] >= 0) *numbers[i] = mirrored ? nnodes - 1 - *numbers[i] : (*numbers[i] + 1) % nnodes;
  return place;
}
