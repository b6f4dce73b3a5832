/* The exported structs ncclNetPlugin_v8 to v12 of a net plugin, from one set of functions of the newest form. For one
 * source file, which defines before it includes this:
 *
 *     NET_NAME                          the plugin's name
 *     NET_RECVS                         the largest maxRecvs
 *     net_init(logger, profile)         counted
 *     net_finalize()
 *     net_forget(user)                  ends the attempts to connect that this user began and gave up
 *     net_devices(ndev)
 *     net_properties(dev, props)        of v12; older versions get those members that they have
 *     net_listen(dev, handle, listen_comm)
 *     net_connect(dev, user, traffic_class, handle, send_comm)
 *                                       user: 0, traffic class: NCCL_NET_TRAFFIC_CLASS_UNDEF, where nobody says
 *     net_accept(listen_comm, recv_comm)
 *     net_reg_mr(comm, data, size, type, mhandle), net_reg_mr_dmabuf(comm, data, size, type, offset, fd, mhandle),
 *     net_dereg_mr(comm, mhandle)
 *     net_isend(comm, data, size, tag, mhandle, request), net_irecv(comm, n, data, sizes, tags, mhandles, request)
 *     net_iflush(comm, n, data, sizes, mhandles, request), net_test(request, done, sizes)
 *     net_close_send(comm), net_close_recv(comm), net_close_listen(comm)
 *     net_make_vdevice(index, count, devices)                 only with NET_FUSES
 *
 * A plugin without regMrDmaBuf or without makeVDevice leaves out NET_DMABUF or NET_FUSES, whose functions it then need
 * not have. All connections are driven by the host, so there are no device handles. */
#ifndef TT_PLUGINS_NET_EXPORTS_H
#define TT_PLUGINS_NET_EXPORTS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include "base/check.h"
#include "tutti/net.h"

#define NET_EXPORT __attribute__((visibility("default")))

/* ---- v11, v12: a context a communicator, which is its traffic class and a number. It is no memory, so that one too
 * many finalize is only an error. ---- */

static void *exported_context(int traffic_class)
{
  static _Atomic uint32_t last;
  uintptr_t user = (atomic_fetch_add(&last, 1) + 1) & 0x7fffffffu;
  return (void *)(user << 33 | (uintptr_t)(uint32_t)traffic_class << 1 | 1); /* never NULL */
}

static uint64_t exported_user(const void *ctx)
{
  return (uint64_t)(uintptr_t)ctx >> 33;
}

static int exported_traffic_class(const void *ctx)
{
  return ctx ? (int)(uint32_t)((uintptr_t)ctx >> 1) : NCCL_NET_TRAFFIC_CLASS_UNDEF;
}

static ncclResult_t exported_init_v11(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config,
                                      ncclDebugLogger_t logger, ncclProfilerCallback_t profile)
{
  (void)comm_id;
  if (ctx) *ctx = exported_context(config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF);
  return net_init(logger, profile);
}

static ncclResult_t exported_finalize(void *ctx)
{
  if (exported_user(ctx)) net_forget(exported_user(ctx));
  return net_finalize();
}

static ncclResult_t exported_listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
  (void)ctx;
  return net_listen(dev, handle, listen_comm);
}

static ncclResult_t exported_connect_v11(void *ctx, int dev, void *handle, void **send_comm,
                                         ncclNetDeviceHandle_v11_t **device)
{
  if (device) *device = NULL;
  return net_connect(dev, exported_user(ctx), exported_traffic_class(ctx), handle, send_comm);
}

static ncclResult_t exported_accept(void *listen_comm, void **recv_comm, ncclNetDeviceHandle_v8_t **device)
{
  if (device) *device = NULL;
  return net_accept(listen_comm, recv_comm);
}

static ncclResult_t exported_isend_v10(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                                       void **request)
{
  (void)phandle;
  return net_isend(comm, data, size, tag, mhandle, request);
}

static ncclResult_t exported_irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                                       void **phandles, void **request)
{
  (void)phandles;
  return net_irecv(comm, n, data, sizes, tags, mhandles, request);
}

/* The members that all versions have; the structs differ in layout, so each gets its own copy of the lines. */
#define NET_COPY_V8(to, from)                                                                                          \
  do {                                                                                                                 \
    memset((to), 0, sizeof *(to));                                                                                     \
    (to)->name = (from).name;                                                                                          \
    (to)->pciPath = (from).pciPath;                                                                                    \
    (to)->guid = (from).guid;                                                                                          \
    (to)->ptrSupport = (from).ptrSupport;                                                                              \
    (to)->regIsGlobal = (from).regIsGlobal;                                                                            \
    (to)->speed = (from).speed;                                                                                        \
    (to)->port = (from).port;                                                                                          \
    (to)->latency = (from).latency;                                                                                    \
    (to)->maxComms = (from).maxComms;                                                                                  \
    (to)->maxRecvs = (from).maxRecvs;                                                                                  \
    (to)->netDeviceType = (from).netDeviceType;                                                                        \
    (to)->netDeviceVersion = (from).netDeviceVersion;                                                                  \
  } while (0)
#define NET_COPY_V9(to, from)                                                                                          \
  do {                                                                                                                 \
    NET_COPY_V8(to, from);                                                                                             \
    (to)->forceFlush = (from).forceFlush;                                                                              \
    (to)->vProps.ndevs = TT_MIN((from).vProps.ndevs, NCCL_NET_MAX_DEVS_PER_NIC);                                       \
    for (int i_ = 0; i_ < (to)->vProps.ndevs; i_++) (to)->vProps.devs[i_] = (from).vProps.devs[i_];                    \
    (to)->maxP2pBytes = (from).maxP2pBytes;                                                                            \
    (to)->maxCollBytes = (from).maxCollBytes;                                                                          \
  } while (0)

static ncclResult_t exported_properties_v11(int dev, ncclNetProperties_v11_t *props)
{
  ncclNetProperties_v12_t newest;
  TT_TRY(net_properties(dev, &newest));
  NET_COPY_V9(props, newest);
  props->maxMultiRequestSize = newest.maxMultiRequestSize;
  return ncclSuccess;
}

#ifdef NET_FUSES
static ncclResult_t exported_vdevice_v12(int *index, ncclNetVDeviceProps_v12_t *props)
{
  return net_make_vdevice(index, props->ndevs, props->devs);
}

static ncclResult_t exported_vdevice_v9(int *index, ncclNetVDeviceProps_v9_t *props)
{
  return net_make_vdevice(index, props->ndevs, props->devs);
}
#define NET_VDEVICE_V12 .makeVDevice = exported_vdevice_v12,
#define NET_VDEVICE_V9 .makeVDevice = exported_vdevice_v9,
#else
#define NET_VDEVICE_V12
#define NET_VDEVICE_V9
#endif
#ifdef NET_DMABUF
#define NET_REG_DMABUF .regMrDmaBuf = net_reg_mr_dmabuf,
#else
#define NET_REG_DMABUF
#endif

/* What is the same in all of them. */
#define NET_COMMON                                                                                                     \
  .name = NET_NAME, .devices = net_devices, .accept = exported_accept, .regMr = net_reg_mr,                            \
  NET_REG_DMABUF.deregMr = net_dereg_mr, .iflush = net_iflush, .test = net_test, .closeSend = net_close_send,          \
  .closeRecv = net_close_recv, .closeListen = net_close_listen
#define NET_COMMON_V11                                                                                                 \
  NET_COMMON, .init = exported_init_v11, .listen = exported_listen_v11, .connect = exported_connect_v11,               \
              .isend = exported_isend_v10, .irecv = exported_irecv_v10, .finalize = exported_finalize

NET_EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {
    NET_VDEVICE_V12.getProperties = net_properties,
    NET_COMMON_V11,
};

NET_EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
    NET_VDEVICE_V9.getProperties = exported_properties_v11,
    NET_COMMON_V11,
};

/* ---- v10: no context; the last user never says that it is the last ---- */

static ncclResult_t exported_properties_v9(int dev, ncclNetProperties_v9_t *props)
{
  ncclNetProperties_v12_t newest;
  TT_TRY(net_properties(dev, &newest));
  NET_COPY_V9(props, newest);
  return ncclSuccess;
}

static ncclResult_t exported_connect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **send_comm,
                                         ncclNetDeviceHandle_v10_t **device)
{
  if (device) *device = NULL;
  return net_connect(dev, 0, config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

NET_EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = {
    NET_VDEVICE_V9.getProperties = exported_properties_v9,
    .init = net_init,
    .listen = net_listen,
    .connect = exported_connect_v10,
    .isend = exported_isend_v10,
    .irecv = exported_irecv_v10,
    NET_COMMON,
};

/* ---- v9: no profiler, no traffic class ---- */

static ncclResult_t exported_init_v9(ncclDebugLogger_t logger)
{
  return net_init(logger, NULL);
}

static ncclResult_t exported_connect_v8(int dev, void *handle, void **send_comm, ncclNetDeviceHandle_v8_t **device)
{
  if (device) *device = NULL;
  return net_connect(dev, 0, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

static ncclResult_t exported_irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                                      void **request)
{
  return net_irecv(comm, n, data, sizes, tags, mhandles, request);
}

NET_EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = {
    NET_VDEVICE_V9.getProperties = exported_properties_v9,
    .init = exported_init_v9,
    .listen = net_listen,
    .connect = exported_connect_v8,
    .isend = net_isend,
    .irecv = exported_irecv_v9,
    NET_COMMON,
};

/* ---- v8: sizes are int ---- */

static ncclResult_t exported_properties_v8(int dev, ncclNetProperties_v8_t *props)
{
  ncclNetProperties_v12_t newest;
  TT_TRY(net_properties(dev, &newest));
  NET_COPY_V8(props, newest);
  return ncclSuccess;
}

static ncclResult_t exported_isend_v8(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
  *request = NULL;
  if (size < 0) return TT_FAIL(ncclInternalError, "net " NET_NAME ": isend of %d bytes", size);
  return net_isend(comm, data, (size_t)size, tag, mhandle, request);
}

static ncclResult_t exported_irecv_v8(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                                      void **request)
{
  size_t wide[NET_RECVS] = {0};
  *request = NULL;
  for (int i = 0; i < n && i < NET_RECVS; i++) {
    if (sizes[i] < 0) return TT_FAIL(ncclInternalError, "net " NET_NAME ": irecv of %d bytes", sizes[i]);
    wide[i] = (size_t)sizes[i];
  }
  return net_irecv(comm, n, data, wide, tags, mhandles, request);
}

NET_EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
    .getProperties = exported_properties_v8,
    .init = exported_init_v9,
    .listen = net_listen,
    .connect = exported_connect_v8,
    .isend = exported_isend_v8,
    .irecv = exported_irecv_v8,
    NET_COMMON,
};

#endif
