/* Net ABI v12, the newest: nothing to translate. These functions also serve older versions with the same member. */
#include <stddef.h>
#include "plugin/shim.h"

/* Older versions are called through abi.v12 where a member kept its place. */
#define SAME_PLACE(member)                                                                                             \
  _Static_assert(offsetof(ncclNet_v6_t, member) == offsetof(ncclNet_v12_t, member) &&                                  \
                     offsetof(ncclNet_v9_t, member) == offsetof(ncclNet_v12_t, member) &&                              \
                     offsetof(ncclNet_v10_t, member) == offsetof(ncclNet_v12_t, member) &&                             \
                     offsetof(ncclNet_v11_t, member) == offsetof(ncclNet_v12_t, member),                               \
                 #member " moved")
SAME_PLACE(devices);
SAME_PLACE(accept);
SAME_PLACE(regMr);
SAME_PLACE(regMrDmaBuf);
SAME_PLACE(deregMr);
SAME_PLACE(isend);
SAME_PLACE(irecv);
SAME_PLACE(iflush);
SAME_PLACE(test);
SAME_PLACE(closeSend);
SAME_PLACE(closeRecv);
SAME_PLACE(closeListen);

ncclResult_t tt_net_v12_init(struct tt_net *net)
{
  return net->plugin->abi.v12.init(&net->ctx, net->comm_id, &net->config, tt_net_log, net->profile);
}

ncclResult_t tt_net_v12_finalize(struct tt_net *net)
{
  return net->plugin->abi.v12.finalize ? net->plugin->abi.v12.finalize(net->ctx) : ncclSuccess;
}

static ncclResult_t get_properties(struct tt_net *net, int dev, ncclNetProperties_v12_t *props)
{
  return net->plugin->abi.v12.getProperties(dev, props);
}

ncclResult_t tt_net_v12_listen(struct tt_net *net, int dev, void *handle, void **comm)
{
  return net->plugin->abi.v12.listen(net->ctx, dev, handle, comm);
}

/* Plugins are given a place for a device handle that asks for none: some write to it without looking. */
ncclResult_t tt_net_v12_connect(struct tt_net *net, int dev, void *handle, void **comm)
{
  ncclNetDeviceHandle_v12_t *no_offload = NULL;
  return net->plugin->abi.v12.connect(net->ctx, dev, handle, comm, &no_offload);
}

ncclResult_t tt_net_v12_accept(struct tt_net *net, void *listen_comm, void **comm)
{
  ncclNetDeviceHandle_v12_t *no_offload = NULL;
  return net->plugin->abi.v12.accept(listen_comm, comm, &no_offload);
}

ncclResult_t tt_net_v12_reg_mr(struct tt_net *net, void *comm, void *data, size_t bytes, int type, void **mhandle)
{
  return net->plugin->abi.v12.regMr(comm, data, bytes, type, mhandle);
}

ncclResult_t tt_net_v12_isend(struct tt_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
                              void *phandle, void **request)
{
  return net->plugin->abi.v12.isend(comm, data, bytes, tag, mhandle, phandle, request);
}

ncclResult_t tt_net_v12_irecv(struct tt_net *net, void *comm, int n, void **data, size_t *bytes, int *tags,
                              void **mhandles, void **phandles, void **request)
{
  return net->plugin->abi.v12.irecv(comm, n, data, bytes, tags, mhandles, phandles, request);
}

static ncclResult_t make_vdevice(struct tt_net *net, int *dev, const ncclNetVDeviceProps_v12_t *props)
{
  ncclNetVDeviceProps_v12_t copy = *props;
  return net->plugin->abi.v12.makeVDevice(dev, &copy);
}

const struct tt_net_shim tt_net_shim_v12 = {
    .version = 12,
    .symbol = "ncclNetPlugin_v12",
    .bytes = sizeof(ncclNet_v12_t),
    .max_fused = NCCL_NET_MAX_DEVS_PER_NIC_V12,
    .can = TT_NET_CAN_LARGE | TT_NET_CAN_OPTIONAL_RECV | TT_NET_CAN_PROFILE | TT_NET_CAN_TRAFFIC_CLASS |
           TT_NET_CAN_CONTEXT,
    .init = tt_net_v12_init,
    .finalize = tt_net_v12_finalize,
    .get_properties = get_properties,
    .listen = tt_net_v12_listen,
    .connect = tt_net_v12_connect,
    .accept = tt_net_v12_accept,
    .reg_mr = tt_net_v12_reg_mr,
    .isend = tt_net_v12_isend,
    .irecv = tt_net_v12_irecv,
    .make_vdevice = make_vdevice,
};
