/* NVLS tree: an all-reduce over several nodes of equal size. On each node the ranks share memory with a multicast
 * address. Part h belongs to the h-th rank of every node; these are joined in a tree. Each takes the sum of its node's
 * copies by one read, adds what its children send and passes that up; the result comes down the tree, and each stores
 * it to all copies of its node.
 *
 * Chunks go through shared memory in groups, each with a strand of its own, which copies in, and out when the group is
 * done. One strand holds all exchanges with the node's other ranks: first, group by group, that copies are filled, then
 * that results are stored. The ways up and down the tree are strands too, so that several groups are under way at once.
 * A rank that leaves knows that no other uses its copy any more, and none uses it before the rank has come back. */
#include "base/check.h"
#include "program/algorithms.h"
#include "program/members.h"

/* Under way at once: enough to fill the way up and down between some nodes, and no more, since data is cut in as many
 * parts. */
enum { GROUPS = 4, CHILDREN = 2 };

struct tree {
  struct tt_builder *builder;
  struct tt_members members;
  uint16_t parent, children[CHILDREN];
  int nchildren;
  bool root;
  uint16_t filled[GROUPS], done[GROUPS]; /* semaphores: a group's strand to the exchanges', and back */
  uint16_t up, stored, reduced;          /* exchanges to up; down (at the root, up) to exchanges; up to down */
};

/* The rank with this rank's place on another node. */
static int32_t counterpart(const struct tt_emit_request *request, const struct tt_members *members, int32_t node)
{
  int32_t rank = 0, place = 0;
  for (;; rank++) {
    if ((request->node ? request->node[rank] : 0) != node) continue;
    if (place++ == members->own) return rank;
  }
}

/* Neighbouring places use the two trees in turn, so that no node is a leaf for all. */
static void join_tree(struct tree *tree, const struct tt_emit_request *request)
{
  const struct tt_members *members = &tree->members;
  struct tt_tree place;
  tt_tree_double(members->nnodes, members->node, (request->tree_index + members->own) % 2, &place);
  tree->root = place.up < 0;
  if (!tree->root) tree->parent = tt_builder_peer(tree->builder, counterpart(request, members, place.up));
  for (int i = 0; i < CHILDREN; i++) {
    if (place.down[i] < 0) continue;
    tree->children[tree->nchildren++] = tt_builder_peer(tree->builder, counterpart(request, members, place.down[i]));
  }
}

static void add_semaphores(struct tree *tree)
{
  for (int32_t group = 0; group < GROUPS; group++) {
    tree->filled[group] = tt_builder_semaphore(tree->builder);
    tree->done[group] = tt_builder_semaphore(tree->builder);
  }
  tree->up = tt_builder_semaphore(tree->builder);
  tree->stored = tt_builder_semaphore(tree->builder);
  if (tree->root && tree->nchildren) tree->reduced = tt_builder_semaphore(tree->builder);
}

static void emit_group(const struct tree *tree, int32_t group)
{
  tt_builder_strand(tree->builder);
  tt_members_copy_in(tree->builder, &tree->members, group);
  tt_builder_signal(tree->builder, tree->filled[group]);
  tt_builder_wait(tree->builder, tree->done[group]);
  tt_members_copy_out(tree->builder, &tree->members, group);
}

static void emit_exchanges(const struct tree *tree)
{
  tt_builder_strand(tree->builder);
  for (int32_t group = 0; group < GROUPS; group++) {
    tt_builder_wait(tree->builder, tree->filled[group]);
    tt_members_exchange(tree->builder, &tree->members);
    tt_builder_signal(tree->builder, tree->up);
  }
  for (int32_t group = 0; group < GROUPS; group++) {
    tt_builder_wait(tree->builder, tree->stored);
    tt_members_exchange(tree->builder, &tree->members);
    tt_builder_signal(tree->builder, tree->done[group]);
  }
}

static void emit_result(const struct tree *tree, struct tt_chunks own)
{
  tt_builder_destination(tree->builder, TT_MULTICAST, own);
  tt_builder_destination(tree->builder, TT_OUTPUT, own);
}

static void emit_up(const struct tree *tree)
{
  struct tt_builder *builder = tree->builder;
  tt_builder_strand(builder);
  for (int32_t group = 0; group < GROUPS; group++) {
    struct tt_chunks own = tt_members_own(&tree->members, group);
    tt_builder_wait(builder, tree->up);
    tt_builder_data(builder, 1, tree->root ? TT_FLAG_FINAL : 0);
    tt_builder_source(builder, TT_MULTICAST, own);
    for (int i = 0; i < tree->nchildren; i++) tt_builder_receive(builder, tree->children[i], TT_RESULT, own);
    if (!tree->root) {
      tt_builder_send(builder, tree->parent, TT_RESULT, own);
      continue;
    }
    emit_result(tree, own);
    tt_builder_signal(builder, tree->stored);
    if (tree->nchildren) tt_builder_signal(builder, tree->reduced);
  }
}

static void emit_down(const struct tree *tree)
{
  struct tt_builder *builder = tree->builder;
  tt_builder_strand(builder);
  for (int32_t group = 0; group < GROUPS; group++) {
    struct tt_chunks own = tt_members_own(&tree->members, group);
    if (tree->root) tt_builder_wait(builder, tree->reduced);
    tt_builder_data(builder, 1, 0);
    if (tree->root)
      tt_builder_source(builder, TT_OUTPUT, own);
    else
      tt_builder_receive(builder, tree->parent, TT_RESULT, own);
    for (int i = 0; i < tree->nchildren; i++) tt_builder_send(builder, tree->children[i], TT_RESULT, own);
    if (tree->root) continue;
    emit_result(tree, own);
    tt_builder_signal(builder, tree->stored);
  }
}

ncclResult_t tt_emit_nvls_tree(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct tree tree = {.builder = builder};
  if (request->nranks == 1) {
    tt_members_alone(builder, request);
    return ncclSuccess;
  }
  TT_TRY(tt_members_find(request, GROUPS, &tree.members));
  if (tree.members.count == 1) {
    tt_members_free(&tree.members);
    return TT_FAIL(ncclInvalidUsage, "algorithm %s needs two or more ranks on each node, and here is one; choose %s",
                   tt_algorithm_name(TT_ALGO_NVLS_TREE), tt_algorithm_name(TT_ALGO_TREE));
  }
  builder->head.parts = (uint32_t)tree.members.count * GROUPS;
  tt_members_share(builder, &tree.members, 1);
  join_tree(&tree, request);
  add_semaphores(&tree);
  for (int32_t group = 0; group < GROUPS; group++) emit_group(&tree, group);
  emit_exchanges(&tree);
  emit_up(&tree);
  if (!tree.root || tree.nchildren) emit_down(&tree);
  tt_members_free(&tree.members);
  return ncclSuccess;
}
