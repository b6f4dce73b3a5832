/* Collnet ABI v11: v12 with properties without rail and plane. */
#include <string.h>
#include "base/check.h"
#include "plugin/collnet_shim.h"

static ncclResult_t get_properties(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v11_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(collnet->plugin->abi.v11.getProperties(dev, &old));
  TT_NET_COPY_V11(props, &old);
  return ncclSuccess;
}

const struct tt_collnet_shim tt_collnet_shim_v11 = {
    .version = 11,
    .bytes = sizeof(ncclCollNet_v11_t),
    .can = TT_COLLNET_CAN_LARGE | TT_COLLNET_CAN_CONTEXT,
    .bind = tt_collnet_v12_bind,
    .init = tt_collnet_v12_init,
    .finalize = tt_collnet_v12_finalize,
    .get_properties = get_properties,
    .listen = tt_collnet_v12_listen,
    .reg_mr = tt_collnet_v12_reg_mr,
    .iallreduce = tt_collnet_v12_iallreduce,
};
