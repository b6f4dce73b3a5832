/* A machine's shape: what its graphs say, with ranks numbered by their order on the machine. */
#include <math.h>
#include <stdlib.h>
#include "base/check.h"
#include "base/hash.h"
#include "graph/join_internal.h"

/* One allocation holds the orders of all kinds, then the places. */
ncclResult_t tt_join_shape_room(int nranks, const int nchannels[TT_GRAPH_KINDS], struct tt_join_shape **out)
{
  struct tt_join_shape *shape;
  size_t numbers = 0, at = 0;
  *out = NULL;
  for (int k = 0; k < TT_GRAPH_KINDS; k++)
    numbers += (size_t)nchannels[k] * (tt_join_has_heads(k) ? 1 : 2 * (size_t)nranks);
  size_t bytes = sizeof(*shape) + numbers * sizeof(uint16_t);
  char *memory;
  TT_TRY(TT_CALLOC(&memory, bytes));
  shape = (struct tt_join_shape *)memory;
  uint16_t *room = (uint16_t *)(shape + 1);
  shape->nranks = nranks;
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    struct tt_join_graph *graph = &shape->graphs[k];
    size_t each = (size_t)nchannels[k] * (tt_join_has_heads(k) ? 1 : (size_t)nranks);
    graph->nchannels = nchannels[k];
    graph->order = room + at;
    at += each;
    if (tt_join_has_heads(k)) continue;
    graph->place = room + at;
    at += each;
  }
  *out = shape;
  return ncclSuccess;
}

void tt_join_shape_free(struct tt_join_shape *shape)
{
  free(shape);
}

void tt_join_shapes_free(struct tt_join_shapes *shapes)
{
  for (int i = 0; i < shapes->count; i++) tt_join_shape_free(shapes->shapes[i]);
  free(shapes->shapes);
  *shapes = (struct tt_join_shapes){0};
}

static bool good_pattern(int kind, int pattern)
{
  switch (kind) {
  case TT_GRAPH_RING:
    return pattern == TT_PATTERN_RING;
  case TT_GRAPH_NVLS:
    return pattern == TT_PATTERN_NVLS || pattern == TT_PATTERN_TREE; /* of a single GPU */
  case TT_GRAPH_COLLNET_DIRECT:
    return pattern == TT_PATTERN_COLLNET_DIRECT || pattern == TT_PATTERN_TREE;
  default:
    return pattern >= TT_PATTERN_BALANCED_TREE && pattern <= TT_PATTERN_TREE;
  }
}

static bool good_speed(float value)
{
  return isfinite(value) && value >= 0;
}

static const char *check_numbers(const struct tt_join_graph *graph, int kind)
{
  if (graph->nchannels < 0 || graph->nchannels > TT_GRAPH_MOST_CHANNELS) return "has a wrong number of channels";
  if (graph->nchannels > 0 && !good_pattern(kind, (int)graph->pattern)) return "has a pattern of another kind";
  if (graph->cross_nic < 0 || graph->cross_nic > 2) return "has a wrong crossnic";
  if (!good_speed(graph->bandwidth_intra) || !good_speed(graph->bandwidth_inter) || !good_speed(graph->latency_inter))
    return "has a bandwidth or latency that is no number";
  if ((unsigned)graph->type_intra >= TT_PATH_TYPES || (unsigned)graph->type_inter >= TT_PATH_TYPES)
    return "has a type of path that there is not";
  return NULL;
}

const char *tt_join_shape_check(struct tt_join_shape *shape, int *kind)
{
  const int n = shape->nranks;
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    struct tt_join_graph *graph = &shape->graphs[k];
    *kind = k;
    const char *why = check_numbers(graph, k);
    if (why) return why;
    if (tt_join_has_heads(k)) {
      for (int c = 0; c < graph->nchannels; c++)
        if (graph->order[c] >= n) return "has a head that is not on the machine";
      continue;
    }
    for (int i = 0; i < graph->nchannels * n; i++) graph->place[i] = UINT16_MAX;
    for (int i = 0; i < graph->nchannels * n; i++) {
      const int channel = i / n;
      if (graph->order[i] >= n || graph->place[channel * n + graph->order[i]] != UINT16_MAX)
        return "has a channel that is no order of the machine's ranks";
      graph->place[channel * n + graph->order[i]] = (uint16_t)(i % n);
    }
  }
  return NULL;
}

static int compare_ranks(const void *a, const void *b)
{
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

/* UINT16_MAX where the rank is none of the machine, which the check then finds. */
static uint16_t local_of(const int32_t *ranks, int nranks, int32_t rank)
{
  const int32_t *found = bsearch(&rank, ranks, (size_t)nranks, sizeof(rank), compare_ranks);
  return found ? (uint16_t)(found - ranks) : UINT16_MAX;
}

static void copy_graph(const struct tt_graph *graph, const int32_t *ranks, int nranks, struct tt_join_graph *to)
{
  to->pattern = graph->pattern;
  to->cross_nic = graph->cross_nic;
  to->same_channels = graph->same_channels;
  to->bandwidth_intra = graph->bandwidth_intra;
  to->bandwidth_inter = graph->bandwidth_inter;
  to->latency_inter = graph->latency_inter;
  to->type_intra = graph->type_intra;
  to->type_inter = graph->type_inter;
  for (int c = 0; c < to->nchannels; c++) {
    const int32_t *order = &graph->ranks[(size_t)c * (size_t)graph->nranks];
    if (tt_join_has_heads((int)graph->kind)) {
      to->order[c] = local_of(ranks, nranks, order[0]);
      continue;
    }
    for (int i = 0; i < nranks; i++) to->order[c * nranks + i] = local_of(ranks, nranks, order[i]);
  }
}

ncclResult_t tt_join_shape_new(const struct tt_graph *const graphs[TT_GRAPH_KINDS], const int32_t *ranks, int nranks,
                               struct tt_join_shape **out)
{
  int nchannels[TT_GRAPH_KINDS], kind;
  struct tt_join_shape *shape;
  *out = NULL;
  if (nranks < 1 || nranks > TT_JOIN_MOST_LOCAL)
    return TT_FAIL(ncclInvalidUsage, "%d ranks on one machine; there may be %d", nranks, TT_JOIN_MOST_LOCAL);
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    nchannels[k] = graphs[k] ? TT_MIN(graphs[k]->nchannels, TT_GRAPH_MOST_CHANNELS) : 0;
    if (graphs[k] && ((int)graphs[k]->kind != k || graphs[k]->nranks != nranks || nchannels[k] < 0))
      return TT_FAIL(ncclInvalidUsage, "the %s graph is one of %d ranks, the machine has %d; search it anew",
                     tt_graph_name((enum tt_graph_kind)k), graphs[k]->nranks, nranks);
  }
  TT_TRY(tt_join_shape_room(nranks, nchannels, &shape));
  for (int k = 0; k < TT_GRAPH_KINDS; k++)
    if (graphs[k]) copy_graph(graphs[k], ranks, nranks, &shape->graphs[k]);
  const char *why = tt_join_shape_check(shape, &kind);
  if (why) {
    tt_join_shape_free(shape);
    return TT_FAIL(ncclInvalidUsage, "the %s graph %s; put the graph file right, or do without",
                   tt_graph_name((enum tt_graph_kind)kind), why);
  }
  uint8_t *packed;
  shape->bytes = tt_join_shape_pack(shape, NULL);
  ncclResult_t result = TT_CALLOC(&packed, shape->bytes);
  if (result != ncclSuccess) {
    tt_join_shape_free(shape);
    return result;
  }
  tt_join_shape_pack(shape, packed);
  shape->digest = tt_hash(packed, shape->bytes);
  free(packed);
  *out = shape;
  return ncclSuccess;
}
