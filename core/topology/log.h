/* The machine in the log, for NCCL_DEBUG_SUBSYS=GRAPH: in the shape in which NCCL prints it, so that tools and eyes
 * that know that one can read this one. */
#ifndef TT_TOPOLOGY_LOG_H
#define TT_TOPOLOGY_LOG_H

#include "topology/topology.h"

/* "GPU/0-3b000", "CPU/0-1", "NET/0-0": type, host, id. Returns `text`. */
const char *tt_topology_log_label(const struct tt_topology *t, int node, char *text, size_t size);
/* The tree of each CPU, then the paths from each GPU and NET to GPUs, CPUs and NETs: hops, bandwidth, type. Costs
 * nothing where nobody listens. */
void tt_topology_log(const struct tt_topology *t);

#endif
