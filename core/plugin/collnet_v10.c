/* Collnet ABI v10, and v9, which is the same: one init for the process, which is never told of the end. */
#include <string.h>
#include "base/check.h"
#include "plugin/collnet_shim.h"

ncclResult_t tt_collnet_v10_init(struct tt_collnet *collnet)
{
  if (collnet->plugin->inits == 0) TT_TRY(collnet->plugin->abi.v10.init(tt_net_log));
  collnet->plugin->inits++;
  return ncclSuccess;
}

ncclResult_t tt_collnet_v10_finalize(struct tt_collnet *collnet)
{
  collnet->plugin->inits--;
  return ncclSuccess;
}

ncclResult_t tt_collnet_v10_listen(struct tt_collnet *collnet, int dev, void *handle, void **comm)
{
  return collnet->plugin->abi.v10.listen(dev, handle, comm);
}

ncclResult_t tt_collnet_v10_get_properties(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v10_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(collnet->plugin->abi.v10.getProperties(dev, &old));
  TT_NET_COPY_V9(props, &old);
  return ncclSuccess;
}

static void bind(struct tt_collnet_plugin *plugin)
{
  TT_COLLNET_BIND_MOVED(plugin, v10);
  if (plugin->abi.v10.iallgather) plugin->can |= TT_COLLNET_CAN_ALL_GATHER;
  if (plugin->abi.v10.ireducescatter) plugin->can |= TT_COLLNET_CAN_REDUCE_SCATTER;
  if (plugin->abi.v10.makeVDevice) plugin->can |= TT_COLLNET_CAN_VDEVICE;
}

#define SHIM(number)                                                                                                   \
  {                                                                                                                    \
    .version = (number), .bytes = sizeof(ncclCollNet_v10_t), .can = TT_COLLNET_CAN_LARGE, .bind = bind,                \
    .init = tt_collnet_v10_init, .finalize = tt_collnet_v10_finalize, .get_properties = tt_collnet_v10_get_properties, \
    .listen = tt_collnet_v10_listen, .reg_mr = tt_collnet_v12_reg_mr, .iallreduce = tt_collnet_v12_iallreduce          \
  }
const struct tt_collnet_shim tt_collnet_shim_v10 = SHIM(10);
const struct tt_collnet_shim tt_collnet_shim_v9 = SHIM(9);
