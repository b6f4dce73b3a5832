/* Program cache: a chained hash table over (collective, algorithm, root, tree). */
#include "plan/programs.h"

#include <stdlib.h>
#include "base/check.h"
#include "program/emit.h"

#define BUCKETS 256

struct entry {
  struct entry *next;
  int collective, algorithm, root, tree;
  struct tt_program *program;
};

struct tt_programs {
  int rank, nranks;
  const int32_t *order, *node;
  struct entry *buckets[BUCKETS];
};

ncclResult_t tt_programs_create(int rank, int nranks, const int32_t *order, const int32_t *node,
                                struct tt_programs **out)
{
  TT_TRY(TT_CALLOC(out, 1));
  (*out)->rank = rank;
  (*out)->nranks = nranks;
  (*out)->order = order;
  (*out)->node = node;
  return ncclSuccess;
}

void tt_programs_destroy(struct tt_programs *programs)
{
  if (programs == NULL) return;
  for (int b = 0; b < BUCKETS; b++) {
    for (struct entry *entry = programs->buckets[b], *next; entry != NULL; entry = next) {
      next = entry->next;
      tt_program_free(entry->program);
      free(entry);
    }
  }
  free(programs);
}

/* The double binary tree is built over positions in the ring order, so that most of its edges stay inside a host. */
static void place_in_tree(const struct tt_programs *programs, int tree_index, struct tt_tree *tree)
{
  int position = 0;
  while (programs->order[position] != programs->rank) position++;
  tt_tree_double(programs->nranks, position, tree_index, tree);
  if (tree->up >= 0) tree->up = programs->order[tree->up];
  for (size_t i = 0; i < TT_COUNT(tree->down); i++)
    if (tree->down[i] >= 0) tree->down[i] = programs->order[tree->down[i]];
}

static ncclResult_t emit(const struct tt_programs *programs, struct entry *entry)
{
  struct tt_tree tree;
  struct tt_emit_request request = {
      .collective = entry->collective,
      .algorithm = entry->algorithm,
      .nranks = programs->nranks,
      .rank = programs->rank,
      .ring = programs->order,
      .tree_index = entry->tree,
      .node = programs->node,
  };
  if (entry->collective == TT_FUNC_SEND || entry->collective == TT_FUNC_RECV)
    request.peer = entry->root;
  else
    request.root = entry->root;
  if (entry->algorithm == TT_ALGO_TREE) {
    place_in_tree(programs, entry->tree, &tree);
    request.tree = &tree;
  }
  return tt_program_emit(&request, &entry->program);
}

ncclResult_t tt_programs_get(struct tt_programs *programs, int collective, int algorithm, int root, int channel,
                             const struct tt_program **out)
{
  int tree = algorithm == TT_ALGO_TREE || algorithm == TT_ALGO_NVLS_TREE ? channel & 1
             : algorithm == TT_ALGO_COLLNET_CHAIN                        ? channel
                                                                         : 0;
  unsigned bucket =
      ((unsigned)root * 31u + (unsigned)collective * 7u + (unsigned)algorithm * 3u + (unsigned)tree) % BUCKETS;
  struct entry *entry = programs->buckets[bucket];
  while (entry != NULL && (entry->collective != collective || entry->algorithm != algorithm || entry->root != root ||
                           entry->tree != tree))
    entry = entry->next;
  if (entry == NULL) {
    TT_TRY(TT_CALLOC(&entry, 1));
    entry->collective = collective;
    entry->algorithm = algorithm;
    entry->root = root;
    entry->tree = tree;
    ncclResult_t result = emit(programs, entry);
    if (result != ncclSuccess) {
      free(entry);
      return result;
    }
    entry->next = programs->buckets[bucket];
    programs->buckets[bucket] = entry;
  }
  *out = entry->program;
  return ncclSuccess;
}
