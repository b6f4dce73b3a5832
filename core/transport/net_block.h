/* The memory of one end of a connection over a network: counters, FIFO and slots, in this process's own memory. A
 * device with memory of its own has it mapped, perhaps at other addresses; the proxy uses it where it lies. The slots
 * may lie in the device's memory instead. */
#ifndef TT_TRANSPORT_NET_BLOCK_H
#define TT_TRANSPORT_NET_BLOCK_H

#include "proxy/pool.h"
#include "transport/buffers.h"

struct tt_net_block {
  unsigned char *memory; /* NULL: there is none */
  size_t bytes;
  bool mapped; /* by the device */
  /* As the proxy sees it. On the host's device the connector's is used. */
  struct tt_conn conn;
};

/* `pool`: the slots come from a pool of the proxy's. Fills connector->conn with what the device is to use. */
ncclResult_t tt_net_block_make(const struct tt_transport_env *env, struct tt_connector *connector,
                               const struct tt_buffers *buffers, bool pool, struct tt_net_block *block);
/* With slots in the device's memory: sets what *direct says of them. The only protocol is Simple. */
ncclResult_t tt_net_block_make_direct(const struct tt_transport_env *env, struct tt_connector *connector,
                                      const struct tt_buffers *buffers, struct tt_proxy_direct *direct,
                                      struct tt_net_block *block);
/* How a device with memory of its own is shown slots of a pool. Outlived by the env. */
struct tt_proxy_pool_map tt_net_pool_map(const struct tt_transport_env *env);
/* The device uses it no more. One that is all zero is allowed. */
void tt_net_block_free(const struct tt_transport_env *env, struct tt_net_block *block);

#endif
