/* Net ABI v7: registrations are shorter than 2 GiB (checked before the shim). */
#include <limits.h>
#include <string.h>
#include "base/check.h"
#include "plugin/shim.h"

static ncclResult_t get_properties(struct tt_net *net, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v7_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(net->plugin->abi.v7.getProperties(dev, &old));
  TT_NET_COPY_V7(props, &old);
  return ncclSuccess;
}

ncclResult_t tt_net_v7_reg_mr(struct tt_net *net, void *comm, void *data, size_t bytes, int type, void **mhandle)
{
  return net->plugin->abi.v7.regMr(comm, data, (int)bytes, type, mhandle);
}

const struct tt_net_shim tt_net_shim_v7 = {
    .version = 7,
    .symbol = "ncclNetPlugin_v7",
    .bytes = sizeof(ncclNet_v7_t),
    .max_message = MAX_NET_SIZE,
    .max_registration = INT_MAX,
    .init = tt_net_v9_init,
    .finalize = tt_net_v10_finalize,
    .get_properties = get_properties,
    .listen = tt_net_v10_listen,
    .connect = tt_net_v9_connect,
    .accept = tt_net_v12_accept,
    .reg_mr = tt_net_v7_reg_mr,
    .isend = tt_net_v8_isend,
    .irecv = tt_net_v8_irecv,
};
