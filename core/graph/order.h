/* The order in which ranks follow each other in rings and trees: ranks that share a host side by side, hosts in the
 * order of their lowest ranks, so that each host is entered and left once. */
#ifndef TT_GRAPH_ORDER_H
#define TT_GRAPH_ORDER_H

#include <stdint.h>

/* node[r] is the lowest rank on the host of rank r. Writes nranks ranks to `order`, and to *nnodes and *max_local the
 * number of hosts and of ranks on the fullest one. */
void tt_graph_order(int nranks, const int32_t *node, int32_t *order, int *nnodes, int *max_local);

#endif
