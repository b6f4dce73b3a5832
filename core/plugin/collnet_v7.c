/* Collnet ABI v7: no iallgather and ireducescatter, so what follows iallreduce stands elsewhere; registrations are
 * shorter than 2 GiB (checked before the shim). */
#include <limits.h>
#include <string.h>
#include "base/check.h"
#include "plugin/collnet_shim.h"

static ncclResult_t get_properties(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props)
{
  ncclNetProperties_v7_t old;
  memset(&old, 0, sizeof(old));
  TT_TRY(collnet->plugin->abi.v7.getProperties(dev, &old));
  TT_NET_COPY_V7(props, &old);
  return ncclSuccess;
}

ncclResult_t tt_collnet_v7_reg_mr(struct tt_collnet *collnet, void *comm, void *data, size_t bytes, int type,
                                  void **mhandle)
{
  return collnet->plugin->abi.v7.regMr(comm, data, (int)bytes, type, mhandle);
}

void tt_collnet_v7_bind(struct tt_collnet_plugin *plugin)
{
  TT_COLLNET_BIND_MOVED(plugin, v7);
}

const struct tt_collnet_shim tt_collnet_shim_v7 = {
    .version = 7,
    .bytes = sizeof(ncclCollNet_v7_t),
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
