/* Rank order by host. */
#include "graph/order.h"

void tt_graph_order(int nranks, const int32_t *node, int32_t *order, int *nnodes, int *max_local)
{
  int at = 0;
  *nnodes = 0;
  *max_local = 0;
  for (int first = 0; first < nranks; first++) {
    if (node[first] != first) continue;
    int start = at;
    for (int rank = first; rank < nranks; rank++)
      if (node[rank] == first) order[at++] = rank;
    (*nnodes)++;
    if (at - start > *max_local) *max_local = at - start;
  }
}
