/* Net ABI v8: message sizes are ints, at most 1 GiB (checked before the shim); no virtual devices. */
#include <string.h>
#include "base/check.h"
#include "plugin/shim.h"

static ncclResult_t get_properties(struct tt_net *net, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v8_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(net->plugin->abi.v8.getProperties(dev, &old));
  TT_NET_COPY_V8(props, &old);
  return ncclSuccess;
}

ncclResult_t tt_net_v8_isend(struct tt_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
                             void *phandle, void **request)
{
  (void)phandle;
  return net->plugin->abi.v8.isend(comm, data, (int)bytes, tag, mhandle, request);
}

/* These versions do not know optional completion: the mark would look like a request. */
ncclResult_t tt_net_v8_irecv(struct tt_net *net, void *comm, int n, void **data, size_t *bytes, int *tags,
                             void **mhandles, void **phandles, void **request)
{
  (void)phandles;
  int narrow[TT_NET_MAX_RECVS];
  for (int i = 0; i < n; i++) narrow[i] = (int)bytes[i];
  *request = NULL;
  return net->plugin->abi.v8.irecv(comm, n, data, narrow, tags, mhandles, request);
}

const struct tt_net_shim tt_net_shim_v8 = {
    .version = 8,
    .symbol = "ncclNetPlugin_v8",
    .bytes = sizeof(ncclNet_v8_t),
    .max_message = MAX_NET_SIZE,
    .init = tt_net_v9_init,
    .finalize = tt_net_v10_finalize,
    .get_properties = get_properties,
    .listen = tt_net_v10_listen,
    .connect = tt_net_v9_connect,
    .accept = tt_net_v12_accept,
    .reg_mr = tt_net_v12_reg_mr,
    .isend = tt_net_v8_isend,
    .irecv = tt_net_v8_irecv,
};
