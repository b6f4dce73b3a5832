/* Tree all-reduce: values are reduced on the way up and the result is handed down. The two ways are strands of their
 * own, so that a rank can pass one loop's result down while it still reduces the next; they meet at the root, where a
 * semaphore tells that a result is there. */
#include "base/check.h"
#include "program/algorithms.h"

enum { ARITY = 3 };

struct links {
  int nchildren;
  uint16_t children[ARITY];
  bool root;
  uint16_t parent;
};

static ncclResult_t add_links(struct tt_builder *builder, const struct tt_emit_request *request,
                              const struct tt_tree *tree, struct links *links)
{
  *links = (struct links){.root = tree->up < 0};
  const int32_t all[1 + ARITY] = {tree->up, tree->down[0], tree->down[1], tree->down[2]};
  for (int i = 0; i < 1 + ARITY; i++) {
    if (all[i] < 0) continue;
    bool twice = false;
    for (int before = 0; before < i; before++) twice |= all[before] == all[i];
    if (all[i] >= request->nranks || all[i] == request->rank || twice) {
      return TT_FAIL(ncclInvalidArgument, "the tree of rank %d of %d (up %d, down %d %d %d) links %d wrongly",
                     request->rank, request->nranks, all[0], all[1], all[2], all[3], all[i]);
    }
    uint16_t peer = tt_builder_peer(builder, all[i]);
    if (i == 0)
      links->parent = peer;
    else
      links->children[links->nchildren++] = peer;
  }
  if (request->nranks > 1 && !builder->head.npeers)
    return TT_FAIL(ncclInvalidArgument, "the tree links rank %d of %d to no one", request->rank, request->nranks);
  return ncclSuccess;
}

/* The own value and those of the children go to the parent, or become the result. */
static void emit_up(struct tt_builder *builder, const struct links *links, struct tt_chunks all, uint16_t reduced)
{
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, links->root ? TT_FLAG_FINAL : 0);
  tt_builder_source(builder, TT_INPUT, all);
  for (int i = 0; i < links->nchildren; i++) tt_builder_receive(builder, links->children[i], TT_RESULT, all);
  if (links->root) {
    tt_builder_destination(builder, TT_OUTPUT, all);
    if (links->nchildren) tt_builder_signal(builder, reduced);
  } else {
    tt_builder_send(builder, links->parent, TT_RESULT, all);
  }
}

static void emit_down(struct tt_builder *builder, const struct links *links, struct tt_chunks all, uint16_t reduced)
{
  tt_builder_strand(builder);
  if (links->root) tt_builder_wait(builder, reduced);
  tt_builder_data(builder, 1, 0);
  if (links->root) {
    tt_builder_source(builder, TT_OUTPUT, all);
  } else {
    tt_builder_receive(builder, links->parent, TT_RESULT, all);
    tt_builder_destination(builder, TT_OUTPUT, all);
  }
  for (int i = 0; i < links->nchildren; i++) tt_builder_send(builder, links->children[i], TT_RESULT, all);
}

ncclResult_t tt_emit_tree(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct tt_tree tree;
  struct links links;
  struct tt_chunks all = tt_chunk_one(0, 1);
  if (request->tree)
    tree = *request->tree;
  else
    tt_tree_double(request->nranks, request->rank, request->tree_index, &tree);
  TT_TRY(add_links(builder, request, &tree, &links));
  uint16_t reduced = links.root && links.nchildren ? tt_builder_semaphore(builder) : 0;
  emit_up(builder, &links, all, reduced);
  if (!links.root || links.nchildren) emit_down(builder, &links, all, reduced);
  return ncclSuccess;
}
