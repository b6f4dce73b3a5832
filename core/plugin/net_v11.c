/* Net ABI v11: v12 with virtual devices of at most 4 and without rail and plane. */
#include <string.h>
#include "base/check.h"
#include "plugin/shim.h"

static ncclResult_t get_properties(struct tt_net *net, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v11_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(net->plugin->abi.v11.getProperties(dev, &old));
  TT_NET_COPY_V11(props, &old);
  return ncclSuccess;
}

ncclResult_t tt_net_v11_make_vdevice(struct tt_net *net, int *dev, const ncclNetVDeviceProps_v12_t *props)
{
  ncclNetVDeviceProps_v11_t old = {.ndevs = props->ndevs};
  memcpy(old.devs, props->devs, sizeof(old.devs));
  return net->plugin->abi.v11.makeVDevice(dev, &old);
}

const struct tt_net_shim tt_net_shim_v11 = {
    .version = 11,
    .symbol = "ncclNetPlugin_v11",
    .bytes = sizeof(ncclNet_v11_t),
    .max_fused = NCCL_NET_MAX_DEVS_PER_NIC,
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
    .make_vdevice = tt_net_v11_make_vdevice,
};
