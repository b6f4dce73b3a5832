/* Which ranks share a host, proved. A name or a hash is only a hint: containers may share both. Ranks share a host when
 * they are one process, or when one got the other's memory over a socket that does not leave the network namespace. */
#ifndef TT_TRANSPORT_NODE_H
#define TT_TRANSPORT_NODE_H

#include "nccl.h"
#include "bootstrap/bootstrap.h"
#include "transport/memory.h"
#include "transport/peer_info.h"

/* Sets peers[r].node on every rank alike. Takes part of all ranks; tt_peer_memory_start came before. */
ncclResult_t tt_node_prove(struct tt_peer_memory *memory, struct tt_bootstrap *bootstrap, int rank, int nranks,
                           struct tt_peer_info *peers);

/* Agreement from claims: claims[r] is the lowest rank that r reached, itself if none. A claim counts only if the
 * claimed rank heads its own node; else the rank is alone. Pure. */
void tt_node_agree(const int *claims, int nranks, struct tt_peer_info *peers);

#endif
