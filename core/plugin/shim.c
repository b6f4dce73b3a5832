/* What all shims share: the table of versions, the check of a plugin's struct, default properties, the logger. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "plugin/shim.h"

const struct tt_net_shim *tt_net_shim_of(int version)
{
  static const struct tt_net_shim *const shims[] = {&tt_net_shim_v6, &tt_net_shim_v7,  &tt_net_shim_v8,
                                                    &tt_net_shim_v9, &tt_net_shim_v10, &tt_net_shim_v11,
                                                    &tt_net_shim_v12};
  return version < TT_NET_OLDEST || version > TT_NET_NEWEST ? NULL : shims[version - TT_NET_OLDEST];
}

const char *tt_net_bind(struct tt_net_plugin *plugin, const struct tt_net_shim *shim, const void *symbol)
{
  memset(plugin, 0, sizeof(*plugin));
  plugin->shim = shim;
  memcpy(&plugin->abi, symbol, shim->bytes);

  const ncclNet_v12_t *abi = &plugin->abi.v12;
  /* Ranks compare networks by name, so an empty one is none. */
  if (!abi->name || !abi->name[0]) return "name";
#define REQUIRE(member)                                                                                                \
  if (!abi->member) return #member
  REQUIRE(init);
  REQUIRE(devices);
  REQUIRE(getProperties);
  REQUIRE(listen);
  REQUIRE(connect);
  REQUIRE(accept);
  REQUIRE(regMr);
  REQUIRE(deregMr);
  REQUIRE(isend);
  REQUIRE(irecv);
  REQUIRE(test);
  REQUIRE(closeSend);
  REQUIRE(closeRecv);
  REQUIRE(closeListen);
#undef REQUIRE
  plugin->can = shim->can;
  if (abi->regMrDmaBuf) plugin->can |= TT_NET_CAN_DMABUF;
  if (abi->iflush) plugin->can |= TT_NET_CAN_FLUSH;
  if (abi->getDeviceMr) plugin->can |= TT_NET_CAN_DEVICE_MR;
  if (abi->irecvConsumed) plugin->can |= TT_NET_CAN_CONSUMED;
  if (abi->makeVDevice) plugin->can |= TT_NET_CAN_VDEVICE;
  if (abi->setNetAttr) plugin->can |= TT_NET_CAN_ATTR;
  return NULL;
}

void tt_net_default_properties(int dev, ncclNetProperties_v12_t *props)
{
  memset(props, 0, sizeof(*props));
  props->netDeviceType = NCCL_NET_DEVICE_HOST;
  props->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
  props->vProps.ndevs = 1;
  props->vProps.devs[0] = dev;
  props->maxP2pBytes = MAX_NET_SIZE;
  props->maxCollBytes = MAX_COLLNET_SIZE;
  props->maxMultiRequestSize = 1;
  props->railId = NCCL_NET_ID_UNDEF;
  props->planeId = NCCL_NET_ID_UNDEF;
}

void tt_net_copy_vprops(ncclNetVDeviceProps_v12_t *to, const ncclNetVDeviceProps_v11_t *from)
{
  memset(to, 0, sizeof(*to));
  to->ndevs = from->ndevs;
  memcpy(to->devs, from->devs, sizeof(from->devs));
}

/* Whether the plugin explained an error itself during the call that this thread is in. */
static _Thread_local bool plugin_warned;

void tt_net_log(ncclDebugLogLevel level, unsigned long flags, const char *where, int line, const char *format, ...)
{
  if (level == NCCL_LOG_WARN) plugin_warned = true;
  if (level != NCCL_LOG_WARN && !tt_log_enabled((enum tt_log_level)level, flags)) return;
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  tt_log_plugin((int)level, flags, where, line, "%s", text);
}

void tt_net_before(void)
{
  plugin_warned = false;
}

static const char *result_name(ncclResult_t result)
{
  static const char *const names[] = {"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                                      "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                                      "ncclRemoteError",   "ncclInProgress"};
  return (unsigned)result < TT_COUNT(names) ? names[result] : "an unknown result";
}

ncclResult_t tt_plugin_checked(const struct tt_plugin_identity *plugin, const char *member, ncclResult_t result)
{
  if (result == ncclSuccess) return ncclSuccess;
  if (plugin_warned) {
    TT_INFO(TT_NET, "NET/Plugin: %s (v%d, %s) failed in %s with %s", plugin->name, plugin->version, plugin->path,
            member, result_name(result));
    return result;
  }
  return TT_FAIL(result,
                 "%s plugin %s (ABI v%d, %s) failed in %s with %s and gave no reason; NCCL_DEBUG=INFO may show more",
                 plugin->kind, plugin->name, plugin->version, plugin->path, member, result_name(result));
}

ncclResult_t tt_net_checked(const struct tt_net *net, const char *member, ncclResult_t result)
{
  const struct tt_net_plugin *plugin = net->plugin;
  const struct tt_plugin_identity identity = {
      .kind = "net", .name = plugin->abi.v12.name, .version = plugin->shim->version, .path = plugin->path};
  return tt_plugin_checked(&identity, member, result);
}
