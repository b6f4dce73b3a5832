/* Collnet ABI v12, the newest: nothing to translate. These functions also serve older versions with the same member. */
#include <stddef.h>
#include "plugin/collnet_shim.h"

/* Older versions are called through abi.v12 where a member kept its place. */
#define SAME_PLACE(member)                                                                                             \
  _Static_assert(offsetof(ncclCollNet_v6_t, member) == offsetof(ncclCollNet_v12_t, member) &&                          \
                     offsetof(ncclCollNet_v8_t, member) == offsetof(ncclCollNet_v12_t, member) &&                      \
                     offsetof(ncclCollNet_v9_t, member) == offsetof(ncclCollNet_v12_t, member),                        \
                 #member " moved")
SAME_PLACE(devices);
SAME_PLACE(connect);
SAME_PLACE(reduceSupport);
SAME_PLACE(regMr);
SAME_PLACE(regMrDmaBuf);
SAME_PLACE(deregMr);
SAME_PLACE(iallreduce);

void tt_collnet_v12_bind(struct tt_collnet_plugin *plugin)
{
  TT_COLLNET_BIND_MOVED(plugin, v12);
  if (plugin->abi.v12.iallgather) plugin->can |= TT_COLLNET_CAN_ALL_GATHER;
  if (plugin->abi.v12.ireducescatter) plugin->can |= TT_COLLNET_CAN_REDUCE_SCATTER;
  if (plugin->abi.v12.makeVDevice) plugin->can |= TT_COLLNET_CAN_VDEVICE;
}

ncclResult_t tt_collnet_v12_init(struct tt_collnet *collnet)
{
  return collnet->plugin->abi.v12.init(&collnet->ctx, collnet->comm_id, tt_net_log);
}

ncclResult_t tt_collnet_v12_finalize(struct tt_collnet *collnet)
{
  return collnet->plugin->abi.v12.finalize ? collnet->plugin->abi.v12.finalize(collnet->ctx) : ncclSuccess;
}

static ncclResult_t get_properties(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props)
{
  return collnet->plugin->abi.v12.getProperties(dev, props);
}

ncclResult_t tt_collnet_v12_listen(struct tt_collnet *collnet, int dev, void *handle, void **comm)
{
  return collnet->plugin->abi.v12.listen(collnet->ctx, dev, handle, comm);
}

ncclResult_t tt_collnet_v12_reg_mr(struct tt_collnet *collnet, void *comm, void *data, size_t bytes, int type,
                                   void **mhandle)
{
  return collnet->plugin->abi.v12.regMr(comm, data, bytes, type, mhandle);
}

ncclResult_t tt_collnet_v12_iallreduce(struct tt_collnet *collnet, void *comm, const struct tt_collnet_all_reduce *what,
                                       void **request)
{
  return collnet->plugin->abi.v12.iallreduce(comm, what->send, what->recv, what->count, what->datatype, what->op,
                                             what->send_mhandle, what->recv_mhandle, request);
}

const struct tt_collnet_shim tt_collnet_shim_v12 = {
    .version = 12,
    .bytes = sizeof(ncclCollNet_v12_t),
    .can = TT_COLLNET_CAN_LARGE | TT_COLLNET_CAN_CONTEXT,
    .bind = tt_collnet_v12_bind,
    .init = tt_collnet_v12_init,
    .finalize = tt_collnet_v12_finalize,
    .get_properties = get_properties,
    .listen = tt_collnet_v12_listen,
    .reg_mr = tt_collnet_v12_reg_mr,
    .iallreduce = tt_collnet_v12_iallreduce,
};
