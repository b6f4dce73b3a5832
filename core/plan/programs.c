/* Program cache: a chained hash table over (collective, algorithm, root, apart, way). */
#include "plan/programs.h"

#include <stdlib.h>
#include "base/check.h"

#define BUCKETS 256

struct entry {
  struct entry *next;
  struct tt_programs_key key;
  int way; /* of those that differ for the algorithm */
  struct tt_program *program;
};

struct tt_programs {
  int rank, nranks;
  struct tt_programs_ways ways;
  struct entry *buckets[BUCKETS];
};

ncclResult_t tt_programs_create(int rank, int nranks, const struct tt_programs_ways *ways, struct tt_programs **out)
{
  TT_TRY(TT_CALLOC(out, 1));
  (*out)->rank = rank;
  (*out)->nranks = nranks;
  (*out)->ways = *ways;
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

/* The double binary tree over positions in the ring order, so that most of its edges stay inside a host. */
static struct tt_tree place_in_tree(const struct tt_programs *programs, int way)
{
  const struct tt_programs_ways *ways = &programs->ways;
  if (ways->trees != NULL) return ways->trees[way];
  struct tt_tree tree;
  const int32_t *order = ways->rings[0];
  int position = 0;
  while (order[position] != programs->rank) position++;
  tt_tree_double(programs->nranks, position, way, &tree);
  if (tree.up >= 0) tree.up = order[tree.up];
  for (size_t i = 0; i < TT_COUNT(tree.down); i++)
    if (tree.down[i] >= 0) tree.down[i] = order[tree.down[i]];
  return tree;
}

static ncclResult_t emit(const struct tt_programs *programs, struct entry *entry)
{
  const struct tt_programs_key *key = &entry->key;
  struct tt_tree tree;
  struct tt_emit_request request = {
      .collective = key->collective,
      .algorithm = key->algorithm,
      .nranks = programs->nranks,
      .rank = programs->rank,
      .ring = programs->ways.rings[key->algorithm == TT_ALGO_RING ? entry->way : 0],
      .tree_index = entry->way,
      .node = programs->ways.node,
      .apart = key->apart,
  };
  request.root = key->root;
  if (tt_collective_is_message(key->collective)) request.peer = key->root;
  if (key->collective == TT_FUNC_SEND_RECV) {
    request.peer = key->root / programs->nranks;
    request.root = key->root % programs->nranks;
  }
  if (key->algorithm == TT_ALGO_TREE) {
    tree = place_in_tree(programs, entry->way);
    request.tree = &tree;
  }
  return tt_program_emit(&request, &entry->program);
}

/* What distinguishes a channel's program from those of other channels. Both trees of a channel are used alternately, by
 * neighbours among the channels and by the channels beyond nchannels, so that they share the load however many channels
 * an operation has. */
static int way_of(const struct tt_programs_ways *ways, int algorithm, int channel)
{
  int like = channel % ways->nchannels;
  switch (algorithm) {
  case TT_ALGO_RING:
    for (int earlier = 0; earlier < like; earlier++)
      if (ways->rings[earlier] == ways->rings[like]) return earlier;
    return like;
  case TT_ALGO_TREE:
    if (ways->trees != NULL) return like + ((like + channel / ways->nchannels) & 1) * ways->nchannels;
    return channel & 1;
  case TT_ALGO_NVLS_TREE:
    return channel & 1;
  case TT_ALGO_COLLNET_CHAIN:
    return channel;
  default:
    return 0;
  }
}

static bool is_same(const struct tt_programs_key *a, const struct tt_programs_key *b)
{
  return a->collective == b->collective && a->algorithm == b->algorithm && a->root == b->root && a->apart == b->apart;
}

ncclResult_t tt_programs_get(struct tt_programs *programs, const struct tt_programs_key *key, int channel,
                             const struct tt_program **out)
{
  int way = way_of(&programs->ways, key->algorithm, channel);
  unsigned bucket =
      ((unsigned)key->root * 31u + (unsigned)key->collective * 7u + (unsigned)key->algorithm * 3u + (unsigned)way) %
      BUCKETS;
  struct entry *entry = programs->buckets[bucket];
  while (entry != NULL && (entry->way != way || !is_same(&entry->key, key))) entry = entry->next;
  if (entry == NULL) {
    TT_TRY(TT_CALLOC(&entry, 1));
    entry->key = *key;
    entry->way = way;
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
