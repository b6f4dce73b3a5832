/* The ways that a channel of a graph uses inside the machine: from node to node, each along the path between both. */
#ifndef TOPO_HOPS_H
#define TOPO_HOPS_H

#include "graph/graph.h"

struct topo_hop {
  int from, to;    /* nodes */
  float bandwidth; /* GB/s that the channel uses of each link on this path */
  bool both;       /* data also goes the way back, which a search does not count */
};

/* Writes a channel's hops (room for topo_most_hops) in the order of its GPUs, and returns how many. Of chains the way
 * up is listed, as a search counts: the way down uses the same links in the other direction. */
int topo_hops(const struct tt_topology *topology, const struct tt_graph *graph, int channel, struct topo_hop *hops);
int topo_most_hops(const struct tt_topology *topology, const struct tt_graph *graph);

#endif
