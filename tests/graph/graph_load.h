/* Proves what a search found, by counting of its own: channels are orders of all GPUs, NETs are there and go together,
 * paths are of the types that the graph names, and no link carries more than it can. */
#ifndef TEST_GRAPH_LOAD_H
#define TEST_GRAPH_LOAD_H

#include "graph/graph.h"

/* NULL, or what is wrong, in a text that lasts until the next call. `known`: the bandwidth is, so it is checked. */
const char *graph_is_wrong(const struct tt_topology *t, const struct tt_graph *graph, bool known);

#endif
