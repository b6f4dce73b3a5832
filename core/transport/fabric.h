/* Which ranks reach each other's device memory by a fabric that spans hosts (multi-node NVLink). */
#ifndef TT_TRANSPORT_FABRIC_H
#define TT_TRANSPORT_FABRIC_H

#include "nccl.h"
#include "bootstrap/bootstrap.h"
#include "device/context.h"
#include "transport/peer_info.h"

/* Sets peers[r].machine on every rank alike, once the ranks of each host are proved: the lowest rank of r's clique
 * (topology/clique.h), or of its host where there are no cliques; and peers[r].fabric. Takes part of all ranks.
 * context: NULL for devices without one, which have no fabric; `index`: of the device. */
ncclResult_t tt_fabric_agree(const struct tt_context *context, int index, struct tt_bootstrap *bootstrap, int rank,
                             int nranks, struct tt_peer_info *peers);

#endif
