/* Graphs in the log, for NCCL_DEBUG_SUBSYS=GRAPH, in NCCL's shape. They cost nothing where nobody listens. */
#ifndef TT_GRAPH_LOG_H
#define TT_GRAPH_LOG_H

#include "graph/graph.h"

/* Pattern, channels, bandwidths and types of a graph, then each channel: NET, GPUs, NET. */
void tt_graph_log(const struct tt_topology *topology, const struct tt_graph *graph);

#endif
