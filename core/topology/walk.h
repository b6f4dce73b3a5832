/* A walk down the PCI tree: from a CPU to bridges, devices, the GPUs and NETs on them. Without recursion. */
#ifndef TT_TOPOLOGY_WALK_H
#define TT_TOPOLOGY_WALK_H

#include "topology/topology.h"

struct tt_topology_walk {
  const struct tt_topology *topology;
  int node;                       /* where the walk is */
  int depth;                      /* levels below the start */
  int next;                       /* link to look at next */
  int via[TT_XML_MOST_DEPTH + 4]; /* the link by which each level was reached */
};

void tt_topology_walk_begin(struct tt_topology_walk *walk, const struct tt_topology *topology, int node);
/* The link to the next node, which is walk->node then, parents before children; -1: there is no more. */
int tt_topology_walk_next(struct tt_topology_walk *walk);
/* Whether a link is one of the tree, up or down; all others lead across it. */
bool tt_topology_walks_along(const struct tt_topology *topology, const struct tt_link *link);

#endif
