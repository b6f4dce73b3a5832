/* N copies of the machine of a file: what their ranks would tell each other. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "graph/find.h"
#include "graph/join_exchange.h"
#include "join.h"

static int compare(const void *a, const void *b)
{
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

/* The ranks that the file names. Whether they are different is for the topology to say. */
static ncclResult_t list_ranks(const struct tt_xml *xml, struct join_fleet *fleet)
{
  TT_TRY(TT_CALLOC(&fleet->names, (size_t)xml->count + 1));
  for (int e = 0; e < xml->count; e++) {
    int rank;
    if (!tt_xml_is(xml, e, "gpu") || !tt_xml_get(xml, e, "rank")) continue;
    TT_TRY(tt_xml_need_int(xml, e, "rank", 0, INT32_MAX, &rank));
    fleet->names[fleet->nlocal++] = rank;
  }
  if (fleet->nlocal == 0) return TT_FAIL(ncclInvalidUsage, "%s has no <gpu> with a rank; nothing to join", xml->source);
  qsort(fleet->names, (size_t)fleet->nlocal, sizeof(*fleet->names), compare);
  return ncclSuccess;
}

static int number_of(const struct join_fleet *fleet, int32_t rank)
{
  const int32_t *found = bsearch(&rank, fleet->names, (size_t)fleet->nlocal, sizeof(rank), compare);
  return found ? (int)(found - fleet->names) : -1;
}

/* What a rank of a machine tells. */
static ncclResult_t add_rank(const struct join_part *part, int32_t rank, const struct tt_join_rules *rules,
                             struct join_fleet *fleet)
{
  struct tt_join_shape *shape;
  const int number = number_of(fleet, rank);
  struct tt_join_card *card = &fleet->cards[number];
  TT_TRY(tt_join_describe(part->topology, (const struct tt_graph *const *)part->graphs, rank, rules, card, &shape));
  card->leader = number_of(fleet, card->leader);
  fleet->part_of[number] = (int)(part - fleet->parts);
  bool known = false;
  for (int s = 0; s < fleet->shapes.count; s++) known |= fleet->shapes.shapes[s]->digest == shape->digest;
  if (known)
    tt_join_shape_free(shape);
  else
    fleet->shapes.shapes[fleet->shapes.count++] = shape;
  return ncclSuccess;
}

/* The machine of a rank that is on none yet. */
static ncclResult_t add_part(const struct tt_xml *xml, const struct topo_join *what, int first,
                             struct join_fleet *fleet)
{
  struct join_part *part = &fleet->parts[fleet->nparts++];
  TT_TRY(tt_topology_create(xml, &what->topology, fleet->names[first], fleet->nlocal * what->nodes, &part->topology));
  TT_TRY(tt_graph_find(what->load, part->topology, &what->search, part->graphs, NULL, NULL));
  for (int g = 0; g < part->topology->count[TT_NODE_GPU]; g++) {
    const int node = tt_topology_node(part->topology, TT_NODE_GPU, g);
    TT_TRY(add_rank(part, part->topology->nodes[node].gpu.rank, &what->rules, fleet));
  }
  return ncclSuccess;
}

ncclResult_t join_fleet_build(const struct tt_xml *xml, const struct topo_join *what, struct join_fleet *fleet)
{
  TT_TRY(list_ranks(xml, fleet));
  const int n = fleet->nlocal;
  if ((int64_t)n * what->nodes > 1 << 24)
    return TT_FAIL(ncclInvalidArgument, "%d machines of %d GPUs are more than %d ranks; use fewer machines",
                   what->nodes, n, 1 << 24);
  TT_TRY(TT_CALLOC(&fleet->cards, (size_t)n * (size_t)what->nodes));
  TT_TRY(TT_CALLOC(&fleet->parts, (size_t)n));
  TT_TRY(TT_CALLOC(&fleet->part_of, (size_t)n));
  TT_TRY(TT_CALLOC(&fleet->shapes.shapes, (size_t)n));
  for (int i = 0; i < n; i++) fleet->part_of[i] = -1;
  for (int i = 0; i < n; i++)
    if (fleet->part_of[i] < 0) TT_TRY(add_part(xml, what, i, fleet));
  for (int i = n; i < n * what->nodes; i++) {
    fleet->cards[i] = fleet->cards[i % n];
    fleet->cards[i].leader += i / n * n;
  }
  return ncclSuccess;
}

void join_fleet_free(struct join_fleet *fleet)
{
  for (int i = 0; i < fleet->nparts; i++) {
    for (int k = 0; k < TT_GRAPH_KINDS; k++) tt_graph_free(fleet->parts[i].graphs[k]);
    tt_topology_free(fleet->parts[i].topology);
  }
  tt_join_shapes_free(&fleet->shapes);
  free(fleet->names);
  free(fleet->parts);
  free(fleet->part_of);
  free(fleet->cards);
}
