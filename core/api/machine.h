/* Where a communicator runs, and the ways that its data takes there: the ranks of a host find out together what their
 * machine is (topology/detect.h), each searches it for rings and trees (graph/search.h), and what the ranks of all
 * machines found is joined (graph/join.h). */
#ifndef TT_API_MACHINE_H
#define TT_API_MACHINE_H

#include "graph/graph.h"
#include "graph/join.h"
#include "plan/comm.h"
#include "topology/detect.h"

struct tt_machine {
  int rank;
  const struct tt_peer_info *peers; /* the env's */
  struct tt_topology *topology;     /* this rank's machine */
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  struct tt_joined *joined;
  struct tt_detect_outcome detected;
  int ndevices;          /* of the net plugin, those that were fused included */
  int gpu;               /* of this rank in the topology */
  struct tt_tree *trees; /* of tt_programs_ways; NULL: no rank has a GPU */
};

/* Takes part of all ranks, once it is proved which share a host. Sets comm->machine, and what follows from it: node,
 * nnodes, local_ranks, rounds and programs; *most_local is the number of ranks on the fullest machine. One rank has no
 * machine, but the rest. Tells the transports their routes. */
ncclResult_t tt_machine_find(struct ncclComm *comm, int *most_local);
/* Channels of collectives in multicast memory; 0: there is none, or nothing says how many. */
int tt_machine_multicast_channels(const struct ncclComm *comm);
/* Rings that differ in the NICs, or links, that they use, as all ranks know it; 0: unknown. */
int tt_machine_paths(const struct ncclComm *comm);
/* For tt_comm_at_end: after the connections, whose thread asks for routes until its end. */
void tt_machine_end(struct ncclComm *comm);

#endif
