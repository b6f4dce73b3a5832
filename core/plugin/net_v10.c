/* Net ABI v10: one init for the process, the communicator's config with every connect. */
#include "plugin/shim.h"

/* The plugin is initialised while any communicator uses it, and is never told of the end. */
static ncclResult_t init(struct tt_net *net)
{
  if (net->plugin->inits == 0) {
    ncclResult_t result = net->plugin->abi.v10.init(tt_net_log, net->profile);
    if (result != ncclSuccess) return result;
  }
  net->plugin->inits++;
  return ncclSuccess;
}

ncclResult_t tt_net_v10_finalize(struct tt_net *net)
{
  net->plugin->inits--;
  return ncclSuccess;
}

ncclResult_t tt_net_v10_listen(struct tt_net *net, int dev, void *handle, void **comm)
{
  return net->plugin->abi.v10.listen(dev, handle, comm);
}

static ncclResult_t connect(struct tt_net *net, int dev, void *handle, void **comm)
{
  ncclNetDeviceHandle_v10_t *no_offload = NULL;
  return net->plugin->abi.v10.connect(dev, &net->config, handle, comm, &no_offload);
}

const struct tt_net_shim tt_net_shim_v10 = {
    .version = 10,
    .symbol = "ncclNetPlugin_v10",
    .bytes = sizeof(ncclNet_v10_t),
    .max_fused = NCCL_NET_MAX_DEVS_PER_NIC,
    .can = TT_NET_CAN_LARGE | TT_NET_CAN_OPTIONAL_RECV | TT_NET_CAN_PROFILE | TT_NET_CAN_TRAFFIC_CLASS,
    .init = init,
    .finalize = tt_net_v10_finalize,
    .get_properties = tt_net_v9_get_properties,
    .listen = tt_net_v10_listen,
    .connect = connect,
    .accept = tt_net_v12_accept,
    .reg_mr = tt_net_v12_reg_mr,
    .isend = tt_net_v12_isend,
    .irecv = tt_net_v12_irecv,
    .make_vdevice = tt_net_v11_make_vdevice,
};
