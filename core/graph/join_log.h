/* What was joined in the log, in the shape in which NCCL prints it, so that tools and eyes that know that one can read
 * this one. */
#ifndef TT_GRAPH_JOIN_LOG_H
#define TT_GRAPH_JOIN_LOG_H

#include "graph/join.h"

/* Rank 0: whole rings, and the heads of NVLS. Each rank: its neighbours in rings, its places in trees, and how many
 * channels there are. Rank 0, and the rank itself, warn of one that found other graphs than its leader. The subsystems
 * are GRAPH and, for the sums, INIT. Costs nothing where nobody listens. */
void tt_join_log(const struct tt_joined *joined, int rank);

#endif
