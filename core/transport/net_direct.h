/* Slots of an end of a network connection in the memory of this rank's device, from and to which the NIC moves data
 * itself (GPUDirect RDMA). Each end decides for itself; the other does not know. */
#ifndef TT_TRANSPORT_NET_DIRECT_H
#define TT_TRANSPORT_NET_DIRECT_H

#include "transport/transport.h"

/* Whether an end is to have such slots, which are set up as *direct says: by its route, what the network can, and what
 * has failed before. Slots of LL are the proxy's to read and write, so they stay in the host's memory, as do those of a
 * pool, and what another rank sends. */
bool tt_net_direct_wanted(struct tt_transport_env *env, const struct tt_connector *connector,
                          const struct tt_route *route, const ncclNetProperties_v12_t *props,
                          struct tt_proxy_direct *direct);
/* Memory for slots of `bytes` in all, the first at *slots: sets what *direct says of it. It is the env's until its end,
 * used or not. */
ncclResult_t tt_net_direct_alloc(const struct tt_transport_env *env, size_t bytes, struct tt_proxy_direct *direct,
                                 unsigned char **slots);
/* Whether that has failed before, for a connection that was set up earlier than that. */
bool tt_net_direct_fails(const struct tt_transport_env *env, int device);
/* The network's device could not register such memory: says why, and keeps others from trying it. */
void tt_net_direct_failed(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                          const char *why);

#endif
