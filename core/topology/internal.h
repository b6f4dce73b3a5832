/* What the files of this folder call of each other, once there is a topology. */
#ifndef TT_TOPOLOGY_INTERNAL_H
#define TT_TOPOLOGY_INTERNAL_H

#include "topology/topology.h"

/* Finds each link's reverse. `source` is the file, for messages. */
ncclResult_t tt_topology_pair_links(struct tt_topology *t, const char *source);

/* Best paths by the machine alone, and what rules, GPUDirect and PXN make of them. */
ncclResult_t tt_topology_find_paths(struct tt_topology *t);
ncclResult_t tt_topology_adjust_paths(struct tt_topology *t);
/* Replaces a path by the two that meet in a node. */
ncclResult_t tt_topology_go_through(struct tt_topology *t, int middle, int from, int to);
/* The type of two paths in a row. */
enum tt_path_type tt_topology_join_types(enum tt_path_type a, enum tt_path_type b);
/* Index of the GPU that is nearest to a NET as paths are at the moment; -1: none. */
int tt_topology_gpu_of_net(const struct tt_topology *t, int net);

/* Takes away the GPUs that `rank` reaches over the network only; *gone tells whether there were any. */
ncclResult_t tt_topology_trim(struct tt_topology *t, int rank, bool *gone);
void tt_topology_find_limits(struct tt_topology *t);

#endif
