/* Which GPUs are left to a rank: those that it reaches without a network. See internal.h. */
#include <stdlib.h>
#include "base/check.h"
#include "topology/internal.h"

/* Takes nodes away, and the links to them. */
static ncclResult_t remove_nodes(struct tt_topology *t, const bool *gone)
{
  int *placed, kept = 0, nlinks = 0;
  TT_TRY(TT_CALLOC(&placed, (size_t)t->nnodes));
  for (int type = 0, n = 0; type < TT_NODE_TYPES; type++) {
    int end = n + t->count[type];
    t->first[type] = kept;
    for (; n < end; n++) placed[n] = gone[n] ? -1 : kept++;
    t->count[type] = kept - t->first[type];
  }
  for (int n = 0; n < t->nnodes; n++) {
    struct tt_node node = t->nodes[n];
    if (placed[n] < 0) continue;
    int first = nlinks;
    for (int l = node.first_link; l < node.first_link + node.nlinks; l++) {
      struct tt_link link = t->links[l];
      if (placed[link.to] < 0) continue;
      link.from = placed[n];
      link.to = placed[link.to];
      t->links[nlinks++] = link;
    }
    node.first_link = first;
    node.nlinks = nlinks - first;
    node.index = placed[n] - t->first[node.type];
    t->nodes[placed[n]] = node;
  }
  t->nnodes = kept;
  t->nlinks = nlinks;
  free(placed);
  return ncclSuccess;
}

ncclResult_t tt_topology_trim(struct tt_topology *t, int rank, bool *trimmed)
{
  ncclResult_t result;
  const int ngpus = t->count[TT_NODE_GPU];
  int *domain = NULL, mine = 0;
  bool *gone = NULL;
  *trimmed = false;
  TT_TRY_GOTO(TT_CALLOC(&domain, (size_t)ngpus), result, out);
  TT_TRY_GOTO(TT_CALLOC(&gone, (size_t)t->nnodes), result, out);
  for (int g = 0; g < ngpus; g++) {
    domain[g] = g;
    for (int p = 0; p < g; p++)
      if (tt_topology_path_between(t, TT_NODE_GPU, g, TT_NODE_GPU, p)->type < TT_PATH_NET)
        domain[g] = TT_MIN(domain[g], domain[p]);
    if (t->nodes[tt_topology_node(t, TT_NODE_GPU, g)].gpu.rank == rank) mine = domain[g];
  }
  for (int g = 0; g < ngpus; g++)
    if (domain[g] != mine) *trimmed = gone[tt_topology_node(t, TT_NODE_GPU, g)] = true;
  if (*trimmed) TT_TRY_GOTO(remove_nodes(t, gone), result, out);
out:
  free(domain);
  free(gone);
  return result;
}
