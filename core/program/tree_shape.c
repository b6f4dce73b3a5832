/* The double binary tree: two binary trees over the same ranks, such that a leaf of one is an inner rank of the other.
 * With half the data on each, every rank sends and receives about as much.
 *
 * In the first tree, rank r sits at the height of its lowest set bit: odd ranks are leaves, and rank 0 is above all.
 * The second tree is the first one mirrored if the number of ranks is even, else shifted by one. */
#include "program/emit.h"

static int32_t parent(int32_t n, int32_t rank)
{
  if (rank == 0) return -1;
  int32_t bit = rank & -rank;
  int32_t up = (rank ^ bit) | (bit << 1);
  return up < n ? up : rank ^ bit;
}

static int32_t lower_child(int32_t rank)
{
  int32_t half = (rank & -rank) / 2;
  return half ? rank - half : -1;
}

/* The subtree above `rank` may reach past the last rank; then its lower half is the child. */
static int32_t upper_child(int32_t n, int32_t rank)
{
  int32_t half;
  if (rank == 0) {
    for (half = 1; 2 * half < n;) half *= 2;
    return half < n ? half : -1;
  }
  for (half = (rank & -rank) / 2; half > 0; half /= 2) {
    if (rank + half < n) return rank + half;
  }
  return -1;
}

/* Where the second tree puts a place of the first. Its own inverse for even n; `direction` is -1 from rank to place and
 * 1 back. */
static int32_t second_tree(int32_t n, int32_t at, int32_t direction)
{
  if (at < 0) return -1;
  return n % 2 == 0 ? n - 1 - at : (at + direction + n) % n;
}

void tt_tree_double(int nranks, int rank, int tree_index, struct tt_tree *tree)
{
  int32_t place = tree_index ? second_tree(nranks, rank, -1) : rank;
  *tree = (struct tt_tree){.up = parent(nranks, place), .down = {lower_child(place), upper_child(nranks, place), -1}};
  if (!tree_index) return;
  tree->up = second_tree(nranks, tree->up, 1);
  for (int i = 0; i < 3; i++) tree->down[i] = second_tree(nranks, tree->down[i], 1);
}
