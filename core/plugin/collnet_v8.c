/* Collnet ABI v8: counts are ints, at most MAX_COLLNET_SIZE bytes (checked before the shim); no virtual devices. */
#include <string.h>
#include "base/check.h"
#include "plugin/collnet_shim.h"

static ncclResult_t get_properties(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v8_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(collnet->plugin->abi.v8.getProperties(dev, &old));
  TT_NET_COPY_V8(props, &old);
  return ncclSuccess;
}

ncclResult_t tt_collnet_v8_iallreduce(struct tt_collnet *collnet, void *comm, const struct tt_collnet_all_reduce *what,
                                      void **request)
{
  return collnet->plugin->abi.v8.iallreduce(comm, what->send, what->recv, (int)what->count, what->datatype, what->op,
                                            what->send_mhandle, what->recv_mhandle, request);
}

static void bind(struct tt_collnet_plugin *plugin)
{
  TT_COLLNET_BIND_MOVED(plugin, v8);
  if (plugin->abi.v8.iallgather) plugin->can |= TT_COLLNET_CAN_ALL_GATHER;
  if (plugin->abi.v8.ireducescatter) plugin->can |= TT_COLLNET_CAN_REDUCE_SCATTER;
}

const struct tt_collnet_shim tt_collnet_shim_v8 = {
    .version = 8,
    .bytes = sizeof(ncclCollNet_v8_t),
    .max_bytes = MAX_COLLNET_SIZE,
    .bind = bind,
    .init = tt_collnet_v10_init,
    .finalize = tt_collnet_v10_finalize,
    .get_properties = get_properties,
    .listen = tt_collnet_v10_listen,
    .reg_mr = tt_collnet_v12_reg_mr,
    .iallreduce = tt_collnet_v8_iallreduce,
};
