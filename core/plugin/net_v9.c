/* Net ABI v9: no profiler handles, no config. */
#include <string.h>
#include "base/check.h"
#include "plugin/shim.h"

ncclResult_t tt_net_v9_init(struct tt_net *net)
{
  if (net->plugin->inits == 0) TT_TRY(net->plugin->abi.v9.init(tt_net_log));
  net->plugin->inits++;
  return ncclSuccess;
}

ncclResult_t tt_net_v9_get_properties(struct tt_net *net, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v9_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(net->plugin->abi.v9.getProperties(dev, &old));
  TT_NET_COPY_V9(props, &old);
  return ncclSuccess;
}

ncclResult_t tt_net_v9_connect(struct tt_net *net, int dev, void *handle, void **comm)
{
  ncclNetDeviceHandle_v9_t *no_offload = NULL;
  return net->plugin->abi.v9.connect(dev, handle, comm, &no_offload);
}

static ncclResult_t isend(struct tt_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
                          void *phandle, void **request)
{
  (void)phandle;
  return net->plugin->abi.v9.isend(comm, data, bytes, tag, mhandle, request);
}

static ncclResult_t irecv(struct tt_net *net, void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles,
                          void **phandles, void **request)
{
  (void)phandles;
  return net->plugin->abi.v9.irecv(comm, n, data, bytes, tags, mhandles, request);
}

const struct tt_net_shim tt_net_shim_v9 = {
    .version = 9,
    .symbol = "ncclNetPlugin_v9",
    .bytes = sizeof(ncclNet_v9_t),
    .max_fused = NCCL_NET_MAX_DEVS_PER_NIC,
    .can = TT_NET_CAN_LARGE | TT_NET_CAN_OPTIONAL_RECV,
    .init = tt_net_v9_init,
    .finalize = tt_net_v10_finalize,
    .get_properties = tt_net_v9_get_properties,
    .listen = tt_net_v10_listen,
    .connect = tt_net_v9_connect,
    .accept = tt_net_v12_accept,
    .reg_mr = tt_net_v12_reg_mr,
    .isend = isend,
    .irecv = irecv,
    .make_vdevice = tt_net_v11_make_vdevice,
};
