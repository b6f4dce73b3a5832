/* What all collnet shims share: the table of versions and the check of a plugin's struct. */
#include <string.h>
#include "plugin/collnet_shim.h"

const struct tt_collnet_shim *tt_collnet_shim_of(int version)
{
  static const struct tt_collnet_shim *const shims[] = {&tt_collnet_shim_v6, &tt_collnet_shim_v7,  &tt_collnet_shim_v8,
                                                        &tt_collnet_shim_v9, &tt_collnet_shim_v10, &tt_collnet_shim_v11,
                                                        &tt_collnet_shim_v12};
  return version < TT_COLLNET_OLDEST || version > TT_COLLNET_NEWEST ? NULL : shims[version - TT_COLLNET_OLDEST];
}

const char *tt_collnet_bind(struct tt_collnet_plugin *plugin, const struct tt_collnet_shim *shim, const void *symbol)
{
  memset(plugin, 0, sizeof(*plugin));
  plugin->shim = shim;
  memcpy(&plugin->abi, symbol, shim->bytes);
  plugin->can = shim->can;
  shim->bind(plugin);
  if (plugin->abi.v12.regMrDmaBuf) plugin->can |= TT_COLLNET_CAN_DMABUF;
  const ncclCollNet_v12_t *abi = &plugin->abi.v12;
  if (!abi->name || !abi->name[0]) return "name";
  return !abi->init ? "init" : !abi->devices ? "devices" : NULL;
}

const char *tt_collnet_incomplete(const struct tt_collnet_plugin *plugin)
{
#define REQUIRE(member)                                                                                                \
  if (!plugin->abi.v12.member) return #member
  REQUIRE(getProperties);
  REQUIRE(listen);
  REQUIRE(connect);
  REQUIRE(reduceSupport);
  REQUIRE(regMr);
  REQUIRE(deregMr);
  REQUIRE(iallreduce);
#undef REQUIRE
  return !plugin->test ? "test" : !plugin->close_coll ? "closeColl" : !plugin->close_listen ? "closeListen" : NULL;
}
