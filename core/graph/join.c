/* The join itself: who is on which machine, what all machines have in common, and then its parts in their order. */
#include "graph/join.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "graph/join_internal.h"

static ncclResult_t check_leaders(const struct tt_join_card *cards, int nranks)
{
  for (int r = 0; r < nranks; r++) {
    const int32_t leader = cards[r].leader;
    if (leader < 0 || leader > r || cards[leader].leader != leader)
      return TT_FAIL(ncclInvalidUsage,
                     "rank %d says that the first rank of its machine is %d, but that rank says %d; give all ranks of "
                     "a host the same topology file and variables",
                     r, leader, leader < 0 || leader > r ? -1 : cards[leader].leader);
  }
  return ncclSuccess;
}

/* Machines are numbered by their leaders; a leader comes before the other ranks of its machine. */
static ncclResult_t map_ranks(struct tt_joined *joined, const struct tt_join_card *cards)
{
  const int n = joined->nranks;
  for (int r = 0; r < n; r++) joined->node[r] = cards[r].leader == r ? joined->nnodes++ : joined->node[cards[r].leader];
  TT_TRY(TT_CALLOC(&joined->first, (size_t)joined->nnodes + 1));
  TT_TRY(TT_CALLOC(&joined->shape, (size_t)joined->nnodes));
  for (int r = 0; r < n; r++) joined->local[r] = joined->first[joined->node[r] + 1]++;
  joined->min_local = INT_MAX;
  for (int i = 0; i < joined->nnodes; i++) {
    joined->min_local = TT_MIN(joined->min_local, joined->first[i + 1]);
    joined->max_local = TT_MAX(joined->max_local, joined->first[i + 1]);
    joined->first[i + 1] += joined->first[i];
  }
  for (int r = 0; r < n; r++) joined->members[joined->first[joined->node[r]] + joined->local[r]] = r;
  return ncclSuccess;
}

static int compare_shapes(const void *a, const void *b)
{
  const struct tt_join_shape *x = *(struct tt_join_shape *const *)a, *y = *(struct tt_join_shape *const *)b;
  return (x->digest > y->digest) - (x->digest < y->digest);
}

/* Finds each machine's shape. In a sorted list, since there may be as many shapes as machines. */
static ncclResult_t map_shapes(struct tt_joined *joined, const struct tt_join_card *cards)
{
  struct tt_join_shapes *shapes = &joined->shapes;
  qsort(shapes->shapes, (size_t)shapes->count, sizeof(*shapes->shapes), compare_shapes);
  for (int n = 0; n < joined->nnodes; n++) {
    const int32_t leader = joined->members[joined->first[n]];
    const struct tt_join_shape wanted = {.digest = cards[leader].digest}, *key = &wanted;
    struct tt_join_shape **found =
        bsearch(&key, shapes->shapes, (size_t)shapes->count, sizeof(*shapes->shapes), compare_shapes);
    const int local = joined->first[n + 1] - joined->first[n];
    if (!found) return TT_FAIL(ncclInternalError, "nobody told what rank %d found on its machine", leader);
    if ((*found)->nranks != local)
      return TT_FAIL(ncclInvalidUsage,
                     "rank %d found %d ranks on its machine, but %d say that they are there; give all ranks of a host "
                     "the same topology file and variables",
                     leader, (*found)->nranks, local);
    joined->shape[n] = (int32_t)(found - shapes->shapes);
  }
  joined->odd_rank = -1;
  for (int r = joined->nranks - 1; r >= 0; r--)
    if (cards[r].digest != cards[cards[r].leader].digest) joined->odd_rank = r;
  return ncclSuccess;
}

static void weaken(struct tt_join_graph *a, const struct tt_join_graph *b)
{
  a->pattern = TT_MAX(a->pattern, b->pattern);
  a->cross_nic = TT_MAX(a->cross_nic, b->cross_nic);
  a->nchannels = TT_MIN(a->nchannels, b->nchannels);
  a->same_channels = a->same_channels && b->same_channels;
  a->bandwidth_intra = TT_MIN(a->bandwidth_intra, b->bandwidth_intra);
  a->bandwidth_inter = TT_MIN(a->bandwidth_inter, b->bandwidth_inter);
  a->latency_inter = TT_MAX(a->latency_inter, b->latency_inter);
  a->type_intra = TT_MAX(a->type_intra, b->type_intra);
  a->type_inter = TT_MAX(a->type_inter, b->type_inter);
}

/* What holds for the weakest machine holds for all. */
static ncclResult_t find_weakest(struct tt_joined *joined)
{
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    joined->weakest[k] = joined->shapes.shapes[0]->graphs[k];
    for (int s = 1; s < joined->shapes.count; s++) weaken(&joined->weakest[k], &joined->shapes.shapes[s]->graphs[k]);
    joined->weakest[k].order = joined->weakest[k].place = NULL;
  }
  for (int n = 0; n < joined->nnodes; n++) {
    const struct tt_join_shape *shape = tt_join_shape_of(joined, n);
    for (int k = TT_GRAPH_RING; k <= TT_GRAPH_TREE; k++)
      if (shape->graphs[k].nchannels == 0)
        return TT_FAIL(ncclInvalidUsage, "rank %d found no %s on its machine; see NCCL_DEBUG=INFO there",
                       joined->members[joined->first[n]], tt_graph_name((enum tt_graph_kind)k));
  }
  return ncclSuccess;
}

/* Returns the channels a peer that all ranks have use for. */
static int survey(struct tt_joined *joined, const struct tt_join_card *cards)
{
  int channels = TT_GRAPH_MOST_CHANNELS;
  joined->min_sm = joined->max_sm = cards[0].sm;
  joined->arch = cards[0].arch;
  joined->vendor = cards[0].vendor;
  joined->net_bandwidth = cards[0].net_bandwidth;
  for (int r = 0; r < joined->nranks; r++) {
    channels = TT_MIN(channels, cards[r].peer_channels);
    joined->min_sm = TT_MIN(joined->min_sm, cards[r].sm);
    joined->max_sm = TT_MAX(joined->max_sm, cards[r].sm);
    joined->net_bandwidth = TT_MIN(joined->net_bandwidth, cards[r].net_bandwidth);
    if (cards[r].arch != cards[0].arch) joined->arch = -1;
    if (cards[r].vendor != cards[0].vendor) joined->vendor = -1;
  }
  return TT_MAX(channels, 1);
}

ncclResult_t tt_graph_join(const struct tt_join_card *cards, int nranks, struct tt_join_shapes *shapes,
                           const struct tt_join_rules *rules, struct tt_joined **out)
{
  struct tt_joined *joined = NULL;
  ncclResult_t result = ncclInvalidUsage;
  *out = NULL;
  TT_TRY_GOTO(check_leaders(cards, nranks), result, out);
  if (nranks < 1 || shapes->count < 1) {
    result = TT_FAIL(ncclInternalError, "%d ranks, %d shapes of machines: nothing to join", nranks, shapes->count);
    goto out;
  }
  TT_TRY_GOTO(TT_CALLOC(&joined, 1), result, out);
  joined->shapes = *shapes;
  *shapes = (struct tt_join_shapes){0};
  joined->nranks = nranks;
  TT_TRY_GOTO(TT_CALLOC(&joined->node, (size_t)nranks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&joined->local, (size_t)nranks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&joined->members, (size_t)nranks), result, out);
  TT_TRY_GOTO(map_ranks(joined, cards), result, out);
  TT_TRY_GOTO(map_shapes(joined, cards), result, out);
  TT_TRY_GOTO(find_weakest(joined), result, out);
  int channels = survey(joined, cards);
  tt_join_count_channels(joined, rules);
  TT_TRY_GOTO(tt_join_make_heads(joined), result, out);
  TT_TRY_GOTO(tt_join_make_rings(joined), result, out);
  TT_TRY_GOTO(tt_join_make_peers(joined, rules, channels), result, out);
  *out = joined;
out:
  tt_join_shapes_free(shapes);
  if (result != ncclSuccess) tt_joined_free(joined);
  return result;
}

void tt_joined_free(struct tt_joined *joined)
{
  if (!joined) return;
  for (int i = 0; i < joined->nrings; i++) free(joined->rings[i]);
  tt_join_shapes_free(&joined->shapes);
  free(joined->node);
  free(joined->local);
  free(joined->first);
  free(joined->members);
  free(joined->shape);
  free(joined->heads);
  free(joined->delta);
  free(joined->turn);
  free(joined);
}

size_t tt_joined_bytes(const struct tt_joined *joined)
{
  size_t numbers = (3 + (size_t)joined->nrings) * (size_t)joined->nranks;
  numbers += 2 * (size_t)joined->nnodes + 1 + 2 * (size_t)joined->ngroups;
  size_t bytes = sizeof(*joined) + numbers * sizeof(int32_t);
  bytes += (size_t)joined->shapes.count * 2 * TT_GRAPH_MOST_CHANNELS * sizeof(uint16_t);
  for (int s = 0; s < joined->shapes.count; s++) {
    const struct tt_join_shape *shape = joined->shapes.shapes[s];
    bytes += sizeof(*shape) + sizeof(shape);
    for (int k = 0; k < TT_GRAPH_KINDS; k++)
      bytes += (size_t)shape->graphs[k].nchannels * sizeof(uint16_t) *
               (tt_join_has_heads(k) ? 1 : 2 * (size_t)shape->nranks);
  }
  return bytes;
}
