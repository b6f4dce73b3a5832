/* Whether a communicator uses a network that reduces, and its connections with it. */
#ifndef TT_API_COLLNET_H
#define TT_API_COLLNET_H

#include "plan/comm.h"

/* Takes part of all ranks, once their places are known: finds the collnet plugin if one is wanted, and connects this
 * rank's channels with its network, as many as may be used within the communicator's limits. Says in the log whether
 * CollNet is used, and why not. That it cannot be used is no failure. */
ncclResult_t tt_comm_join_collnet(struct ncclComm *comm, const ncclConfig_t *config, int min_channels,
                                  int max_channels);
/* Closes the connections, while the transport env still is; then tt_collnet_close may follow. */
void tt_comm_leave_collnet(struct ncclComm *comm);

#endif
