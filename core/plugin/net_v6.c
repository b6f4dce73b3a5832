/* Net ABI v6, the oldest: no device offload, so connect and accept have one argument less. */
#include <limits.h>
#include <string.h>
#include "base/check.h"
#include "plugin/shim.h"

static ncclResult_t get_properties(struct tt_net *net, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v6_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(net->plugin->abi.v6.getProperties(dev, &old));
  TT_NET_COPY_V6(props, &old);
  return ncclSuccess;
}

static ncclResult_t connect(struct tt_net *net, int dev, void *handle, void **comm)
{
  return net->plugin->abi.v6.connect(dev, handle, comm);
}

static ncclResult_t accept(struct tt_net *net, void *listen_comm, void **comm)
{
  return net->plugin->abi.v6.accept(listen_comm, comm);
}

const struct tt_net_shim tt_net_shim_v6 = {
    .version = 6,
    .symbol = "ncclNetPlugin_v6",
    .bytes = sizeof(ncclNet_v6_t),
    .max_message = MAX_NET_SIZE,
    .max_registration = INT_MAX,
    .init = tt_net_v9_init,
    .finalize = tt_net_v10_finalize,
    .get_properties = get_properties,
    .listen = tt_net_v10_listen,
    .connect = connect,
    .accept = accept,
    .reg_mr = tt_net_v7_reg_mr,
    .isend = tt_net_v8_isend,
    .irecv = tt_net_v8_irecv,
};
