/* From draft to topology: nodes sorted by type, links in one array, each with its reverse. See draft.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/draft.h"
#include "topology/internal.h"

/* Where each kept node goes: sorted by type, in order within it. -1: nowhere. */
static void place(struct tt_topology *t, const struct tt_draft *draft, int *placed)
{
  t->nnodes = 0;
  for (int type = 0; type < TT_NODE_TYPES; type++) {
    t->first[type] = t->nnodes;
    for (int n = 0; n < draft->count; n++) {
      const struct tt_draft_node *d = &draft->nodes[n];
      if ((int)d->node.type != type) continue;
      placed[n] = d->gone ? -1 : t->nnodes++;
    }
    t->count[type] = t->nnodes - t->first[type];
  }
}

static void fill(struct tt_topology *t, const struct tt_draft *draft, const int *placed)
{
  for (int n = 0; n < draft->count; n++) {
    if (placed[n] < 0) continue;
    struct tt_node *node = &t->nodes[placed[n]];
    *node = draft->nodes[n].node;
    node->index = placed[n] - t->first[node->type];
    node->nlinks = draft->nodes[n].nlinks;
    if (node->type == TT_NODE_DEV) node->gpu.device = node->index;
  }
  t->nlinks = 0;
  for (int n = 0; n < t->nnodes; n++) {
    t->nodes[n].first_link = t->nlinks;
    t->nlinks += t->nodes[n].nlinks;
  }
  for (int n = 0; n < draft->count; n++)
    for (int i = 0; placed[n] >= 0 && i < draft->nodes[n].nlinks; i++) {
      const struct tt_draft_link *link = &draft->nodes[n].links[i];
      t->links[t->nodes[placed[n]].first_link + i] = (struct tt_link){
          .from = placed[n], .to = placed[link->to], .reverse = -1, .type = link->type, .bandwidth = link->bandwidth};
    }
}

/* The link between two nodes; -1: none. */
static int find_link(const struct tt_topology *t, int from, int to, enum tt_link_type type)
{
  const struct tt_node *node = &t->nodes[from];
  for (int l = node->first_link; l < node->first_link + node->nlinks; l++)
    if (t->links[l].to == to && t->links[l].type == type) return l;
  return -1;
}

ncclResult_t tt_topology_pair_links(struct tt_topology *t, const char *source)
{
  for (int l = 0; l < t->nlinks; l++) {
    struct tt_link *link = &t->links[l];
    link->reverse = find_link(t, link->to, link->from, link->type);
    if (link->reverse >= 0) continue;
    char from[64], to[64];
    return TT_FAIL(ncclInvalidUsage, "%s:%d: %s has a link of type %s to %s (line %d), which lists none back; add it",
                   source, t->nodes[link->from].line, tt_topology_label(t, link->from, from, sizeof(from)),
                   tt_topology_name_link(link->type), tt_topology_label(t, link->to, to, sizeof(to)),
                   t->nodes[link->to].line);
  }
  return ncclSuccess;
}

/* The DEV of each GPU is what its one link leads to. */
static ncclResult_t check_gpus(struct tt_topology *t, const char *source)
{
  for (int g = 0; g < t->count[TT_NODE_GPU]; g++) {
    struct tt_node *gpu = &t->nodes[tt_topology_node(t, TT_NODE_GPU, g)];
    gpu->gpu.device = t->nodes[t->links[gpu->first_link].to].index;
    int other = tt_topology_gpu_of_rank(t, gpu->gpu.rank);
    if (other != g)
      return TT_FAIL(ncclInvalidUsage, "%s:%d: rank %d is that of another GPU too (line %d); number them differently",
                     source, gpu->line, gpu->gpu.rank, t->nodes[tt_topology_node(t, TT_NODE_GPU, other)].line);
  }
  return ncclSuccess;
}

ncclResult_t tt_draft_finish(const struct tt_draft *draft, struct tt_topology *t)
{
  ncclResult_t result;
  int *placed = NULL, nlinks = 0;
  for (int n = 0; n < draft->count; n++) nlinks += draft->nodes[n].nlinks;
  TT_TRY_GOTO(TT_CALLOC(&placed, (size_t)draft->count), result, out);
  place(t, draft, placed);
  TT_TRY_GOTO(TT_CALLOC(&t->nodes, (size_t)t->nnodes), result, out);
  TT_TRY_GOTO(TT_CALLOC(&t->links, (size_t)nlinks + 1), result, out);
  fill(t, draft, placed);
  t->nhosts = draft->nhosts;
  t->nranks = t->count[TT_NODE_GPU];
  TT_TRY_GOTO(tt_topology_pair_links(t, draft->xml->source), result, out);
  for (int n = 0; n < t->count[TT_NODE_NET]; n++) {
    struct tt_node *net = &t->nodes[tt_topology_node(t, TT_NODE_NET, n)];
    net->net.same_as = tt_topology_find(t, TT_NODE_NET, net->host, net->id);
  }
  TT_TRY_GOTO(check_gpus(t, draft->xml->source), result, out);
out:
  free(placed);
  return result;
}
