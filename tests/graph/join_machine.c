/* See join_machine.h. */
#include "join_machine.h"

#include <stdlib.h>
#include "base/check.h"
#include "graph/join_exchange.h"

static void add_shape(struct fleet *fleet, struct tt_join_shape *shape)
{
  for (int i = 0; i < fleet->shapes.count; i++)
    if (fleet->shapes.shapes[i]->digest == shape->digest) {
      tt_join_shape_free(shape);
      return;
    }
  fleet->shapes.shapes =
      realloc(fleet->shapes.shapes, (size_t)(fleet->shapes.count + 1) * sizeof(*fleet->shapes.shapes));
  if (!fleet->shapes.shapes) abort();
  fleet->shapes.shapes[fleet->shapes.count++] = shape;
}

void fleet_add(struct fleet *fleet, const struct tt_graph *const graphs[TT_GRAPH_KINDS], const int32_t *ranks,
               int nlocal)
{
  int32_t *own = calloc((size_t)nlocal, sizeof(*own));
  struct tt_join_shape *shape;
  if (!own) abort();
  for (int i = 0; i < nlocal; i++) own[i] = i;
  if (tt_join_shape_new(graphs, own, nlocal, &shape) != ncclSuccess) abort();
  for (int i = 0; i < nlocal; i++) own[i] = ranks ? ranks[i] : fleet->nranks + i;
  const int most = TT_MAX(fleet->nranks, own[nlocal - 1] + 1);
  fleet->cards = realloc(fleet->cards, (size_t)most * sizeof(*fleet->cards));
  if (!fleet->cards) abort();
  for (int i = 0; i < nlocal; i++)
    fleet->cards[own[i]] = (struct tt_join_card){.leader = own[0],
                                                 .digest = shape->digest,
                                                 .shape_bytes = (uint32_t)shape->bytes,
                                                 .peer_channels = 2,
                                                 .sm = 80,
                                                 .arch = TT_ARCH_X86,
                                                 .vendor = TT_VENDOR_INTEL,
                                                 .net_bandwidth = 25};
  fleet->nranks = most;
  fleet->nnodes++;
  add_shape(fleet, shape);
  free(own);
}

struct tt_joined *fleet_join(struct fleet *fleet, const struct tt_join_rules *rules)
{
  const struct tt_join_rules usual = tt_join_rules_default();
  struct tt_joined *joined;
  tt_graph_join(fleet->cards, fleet->nranks, &fleet->shapes, rules ? rules : &usual, &joined);
  fleet_free(fleet);
  return joined;
}

void fleet_free(struct fleet *fleet)
{
  tt_join_shapes_free(&fleet->shapes);
  free(fleet->cards);
  *fleet = (struct fleet){0};
}

/* xorshift64* */
uint64_t random_next(uint64_t *state)
{
  *state = *state ? *state : 1;
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545f4914f6cdd1dULL >> 16;
}

int random_below(uint64_t *state, int n)
{
  return (int)(random_next(state) % (uint64_t)n);
}

static struct tt_graph *orders(uint64_t *state, enum tt_graph_kind kind, enum tt_graph_pattern pattern, int nlocal,
                               int nchannels)
{
  struct tt_graph *graph;
  if (tt_graph_new(kind, nchannels, nlocal, &graph) != ncclSuccess) abort();
  graph->pattern = pattern;
  graph->nchannels = nchannels;
  graph->bandwidth_intra = 40;
  graph->bandwidth_inter = 24;
  graph->latency_inter = 2;
  graph->type_intra = TT_PATH_NVL;
  graph->type_inter = TT_PATH_PXB;
  for (int c = 0; c < nchannels; c++) {
    int32_t *order = &graph->ranks[c * nlocal];
    for (int i = 0; i < nlocal; i++) {
      const int other = random_below(state, i + 1);
      order[i] = order[other];
      order[other] = i;
    }
  }
  return graph;
}

struct graphs graphs_random(uint64_t *state, int nlocal, int nchannels, int nheads)
{
  const enum tt_graph_pattern tree = (enum tt_graph_pattern)(TT_PATTERN_BALANCED_TREE + random_below(state, 3));
  struct graphs g = {{orders(state, TT_GRAPH_RING, TT_PATTERN_RING, nlocal, nchannels),
                      orders(state, TT_GRAPH_TREE, tree, nlocal, nchannels),
                      orders(state, TT_GRAPH_COLLNET_CHAIN, TT_PATTERN_TREE, nlocal, nchannels),
                      orders(state, TT_GRAPH_NVLS, TT_PATTERN_NVLS, nlocal, nheads),
                      orders(state, TT_GRAPH_COLLNET_DIRECT, TT_PATTERN_COLLNET_DIRECT, nlocal, nheads)}};
  g.kinds[TT_GRAPH_RING]->cross_nic = 2 * random_below(state, 2);
  return g;
}

void graphs_free(struct graphs *graphs)
{
  for (int k = 0; k < TT_GRAPH_KINDS; k++) tt_graph_free(graphs->kinds[k]);
}
