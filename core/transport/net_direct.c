/* See net_direct.h. */
#include "transport/net_direct.h"

#include <unistd.h>
#include "base/check.h"
#include "base/param.h"

/* In front of the slots, which begin at 64 modulo 128. */
#define LEAD (128 - TT_SLOT_HEADER)

static uint64_t bit_of(int device)
{
  return device < 64 ? UINT64_C(1) << device : 0;
}

bool tt_net_direct_fails(const struct tt_transport_env *env, int device)
{
  return (env->no_direct & bit_of(device)) != 0;
}

/* Whether the device is to flush, and can. */
static bool device_flushes(struct tt_transport_env *env)
{
  if (!tt_param_int(TT_PARAM_NCCL_GDRCOPY_ENABLE) || !tt_param_int(TT_PARAM_NCCL_GDRCOPY_FLUSH_ENABLE)) return false;
  if (!(env->device->features & TT_DEVICE_FLUSH)) return false;
  if (env->device_flush != 0) return env->device_flush > 0;
  tt_log_hush(true);
  env->device_flush = env->device->flush(env->context->handle) == ncclSuccess ? 1 : -1;
  tt_log_hush(false);
  if (env->device_flush > 0)
    TT_INFO(TT_NET, "Rank %d flushes what NICs put into its device's memory by reading there", env->rank);
  else
    TT_INFO(TT_NET, "Rank %d cannot flush by itself what NICs put into its device's memory, so network %s does: %s",
            env->rank, tt_net_name(env->net), tt_log_thread_error());
  return env->device_flush > 0;
}

bool tt_net_direct_wanted(struct tt_transport_env *env, const struct tt_connector *connector,
                          const struct tt_route *route, const ncclNetProperties_v12_t *props,
                          struct tt_proxy_direct *direct)
{
  *direct = (struct tt_proxy_direct){0};
  if (route->direct == TT_NET_STAGED || route->rank != env->rank || !tt_transport_device_memory(env)) return false;
  if (tt_connect_far_protocol(connector->index) != TT_PROTO_SIMPLE) return false;
  if (tt_net_direct_fails(env, route->device)) return false;
  *direct = (struct tt_proxy_direct){.device = env->device,
                                     .context = env->context->handle,
                                     .cuda = (props->ptrSupport & NCCL_PTR_CUDA) != 0,
                                     .dmabuf = (props->ptrSupport & NCCL_PTR_DMABUF) != 0 &&
                                               tt_param_int(TT_PARAM_NCCL_DMABUF_ENABLE) != 0 &&
                                               (env->device->features & TT_DEVICE_DMABUF) != 0,
                                     .pci = route->direct == TT_NET_DIRECT_PCI,
                                     .flush = !connector->send && (route->flush || props->forceFlush) &&
                                              !tt_param_int(TT_PARAM_NCCL_GDR_FLUSH_DISABLE)};
  if (!direct->cuda && !direct->dmabuf) return false;
  direct->own = direct->flush && device_flushes(env);
  return true;
}

/* Whole pages, for plugins that register nothing less. */
ncclResult_t tt_net_direct_alloc(const struct tt_transport_env *env, size_t bytes, struct tt_proxy_direct *direct,
                                 unsigned char **slots)
{
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  struct tt_slab_piece piece;
  direct->bytes = (LEAD + bytes + page - 1) / page * page;
  TT_TRY(tt_slabs_alloc(env->slabs, direct->bytes + page, &piece));
  unsigned char *begin = piece.ptr + (page - (uintptr_t)piece.ptr % page) % page;
  direct->memory = begin;
  *slots = begin + LEAD;
  return ncclSuccess;
}

void tt_net_direct_failed(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                          const char *why)
{
  env->no_direct |= bit_of(device);
  TT_INFO(TT_NET, "GPU Direct RDMA Disabled for rank %d, device %d of network %s: %s rank %d by the host's memory: %s",
          env->rank, device, tt_net_name(env->net), connector->send ? "sending to" : "receiving from", connector->peer,
          why);
}
