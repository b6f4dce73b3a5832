/* Collnet ABI v6, the oldest: properties without device offload. */
#include <limits.h>
#include <string.h>
#include "base/check.h"
#include "plugin/collnet_shim.h"

static ncclResult_t get_properties(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v6_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(collnet->plugin->abi.v6.getProperties(dev, &old));
  TT_NET_COPY_V6(props, &old);
  return ncclSuccess;
}

const struct tt_collnet_shim tt_collnet_shim_v6 = {
    .version = 6,
    .bytes = sizeof(ncclCollNet_v6_t),
    .max_bytes = MAX_COLLNET_SIZE,
    .max_registration = INT_MAX,
    .bind = tt_collnet_v7_bind,
    .init = tt_collnet_v10_init,
    .finalize = tt_collnet_v10_finalize,
    .get_properties = get_properties,
    .listen = tt_collnet_v10_listen,
    .reg_mr = tt_collnet_v7_reg_mr,
    .iallreduce = tt_collnet_v8_iallreduce,
};
