/* Which devices of a host can map each other's memory, so that both ends of a connection decide alike. */
#ifndef TT_TRANSPORT_REACH_H
#define TT_TRANSPORT_REACH_H

#include <stdbool.h>
#include "nccl.h"
#include "bootstrap/bootstrap.h"
#include "transport/peer_info.h"
#include "tutti/device.h"

struct tt_reach;

/* Asks the device about those of this rank's host (peers[].node), and tells all ranks. Takes part of all of them;
 * without a `bootstrap` (NULL) only what this rank's device says counts. A device that this process does not see, as
 * one that CUDA_VISIBLE_DEVICES hides, cannot be asked about; it counts as mappable unless the other side, which may
 * see more, says otherwise. */
ncclResult_t tt_reach_create(const struct tt_device *device, int rank, int nranks, const struct tt_peer_info *peers,
                             struct tt_bootstrap *bootstrap, struct tt_reach **out);
void tt_reach_destroy(struct tt_reach *reach); /* NULL is allowed */
/* Whether two ranks of one host can map each other's memory, both ways. */
bool tt_reach_both_ways(const struct tt_reach *reach, const struct tt_peer_info *peers, int a, int b);

#endif
