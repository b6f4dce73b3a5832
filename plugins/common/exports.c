/* The exported structs of versions 8 to 11, made from a plugin's ncclNetPlugin_v12 by thin functions in which the
 * signatures differ. Compiled into each plugin that uses it, with
 *
 *     TT_NET_NAME     the network's name, as in version 12
 *     TT_NET_FUSES    if the plugin has makeVDevice
 *     TT_NET_DMABUF   if it has regMrDmaBuf
 *
 * The plugin takes NULL for what older versions do not have: contexts, configurations, profilers. */
#include <string.h>
#include "base/check.h"
#include "tutti/net.h"

#define EXPORT __attribute__((visibility("default"))) const
#define RECVS 8 /* in a group, at most: what own plugins say */

extern const ncclNet_v12_t ncclNetPlugin_v12;
#define PLUGIN ncclNetPlugin_v12

/* ---- The same in all of them ---- */

static ncclResult_t devices(int *ndev)
{
  return PLUGIN.devices(ndev);
}
static ncclResult_t accept_v8(void *listen_comm, void **recv_comm, ncclNetDeviceHandle_v8_t **device)
{
  return PLUGIN.accept(listen_comm, recv_comm, device);
}
static ncclResult_t reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
  return PLUGIN.regMr(comm, data, size, type, mhandle);
}
#ifdef TT_NET_DMABUF
static ncclResult_t reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                  void **mhandle)
{
  return PLUGIN.regMrDmaBuf(comm, data, size, type, offset, fd, mhandle);
}
#else
#define reg_mr_dmabuf NULL
#endif
static ncclResult_t dereg_mr(void *comm, void *mhandle)
{
  return PLUGIN.deregMr(comm, mhandle);
}
static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
  return PLUGIN.iflush(comm, n, data, sizes, mhandles, request);
}
static ncclResult_t test(void *request, int *done, int *sizes)
{
  return PLUGIN.test(request, done, sizes);
}
static ncclResult_t close_send(void *comm)
{
  return PLUGIN.closeSend(comm);
}
static ncclResult_t close_recv(void *comm)
{
  return PLUGIN.closeRecv(comm);
}
static ncclResult_t close_listen(void *comm)
{
  return PLUGIN.closeListen(comm);
}
#define SAME                                                                                                           \
  .name = TT_NET_NAME, .devices = devices, .accept = accept_v8, .regMr = reg_mr, .regMrDmaBuf = reg_mr_dmabuf,         \
  .deregMr = dereg_mr, .iflush = iflush, .test = test, .closeSend = close_send, .closeRecv = close_recv,               \
  .closeListen = close_listen

/* Members of the properties that a version has; the structs differ in layout. */
#define COPY_V8(to, from)                                                                                              \
  do {                                                                                                                 \
    memset((to), 0, sizeof *(to));                                                                                     \
    (to)->name = (from)->name;                                                                                         \
    (to)->pciPath = (from)->pciPath;                                                                                   \
    (to)->guid = (from)->guid;                                                                                         \
    (to)->ptrSupport = (from)->ptrSupport;                                                                             \
    (to)->regIsGlobal = (from)->regIsGlobal;                                                                           \
    (to)->speed = (from)->speed;                                                                                       \
    (to)->port = (from)->port;                                                                                         \
    (to)->latency = (from)->latency;                                                                                   \
    (to)->maxComms = (from)->maxComms;                                                                                 \
    (to)->maxRecvs = (from)->maxRecvs;                                                                                 \
    (to)->netDeviceType = (from)->netDeviceType;                                                                       \
    (to)->netDeviceVersion = (from)->netDeviceVersion;                                                                 \
  } while (0)
#define COPY_V9(to, from)                                                                                              \
  do {                                                                                                                 \
    COPY_V8(to, from);                                                                                                 \
    (to)->forceFlush = (from)->forceFlush;                                                                             \
    (to)->vProps.ndevs = TT_MIN((from)->vProps.ndevs, NCCL_NET_MAX_DEVS_PER_NIC);                                      \
    memcpy((to)->vProps.devs, (from)->vProps.devs, sizeof(to)->vProps.devs);                                           \
    (to)->maxP2pBytes = (from)->maxP2pBytes;                                                                           \
    (to)->maxCollBytes = (from)->maxCollBytes;                                                                         \
  } while (0)

static ncclResult_t properties_v12(int dev, ncclNetProperties_v12_t *props)
{
  memset(props, 0, sizeof *props);
  return PLUGIN.getProperties(dev, props);
}

/* ---- v11 ---- */

static ncclResult_t init_v11(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t logger,
                             ncclProfilerCallback_t profile)
{
  return PLUGIN.init(ctx, comm_id, config, logger, profile);
}
static ncclResult_t finalize(void *ctx)
{
  return PLUGIN.finalize(ctx);
}
static ncclResult_t properties_v11(int dev, ncclNetProperties_v11_t *props)
{
  ncclNetProperties_v12_t newest;
  TT_TRY(properties_v12(dev, &newest));
  COPY_V9(props, &newest);
  props->maxMultiRequestSize = newest.maxMultiRequestSize;
  return ncclSuccess;
}
static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
  return PLUGIN.listen(ctx, dev, handle, listen_comm);
}
static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **send_comm, ncclNetDeviceHandle_v11_t **device)
{
  return PLUGIN.connect(ctx, dev, handle, send_comm, device);
}
static ncclResult_t isend_v10(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                              void **request)
{
  return PLUGIN.isend(comm, data, size, tag, mhandle, phandle, request);
}
static ncclResult_t irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **request)
{
  return PLUGIN.irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
}
#ifdef TT_NET_FUSES
static ncclResult_t make_v9(int *d, ncclNetVDeviceProps_v9_t *props)
{
  ncclNetVDeviceProps_v12_t newest = {.ndevs = props->ndevs};
  if (props->ndevs < 0 || props->ndevs > NCCL_NET_MAX_DEVS_PER_NIC)
    return TT_FAIL(ncclInvalidUsage, "net %s: %d devices cannot work as one; this version of the ABI has at most %d",
                   TT_NET_NAME, props->ndevs, NCCL_NET_MAX_DEVS_PER_NIC);
  memcpy(newest.devs, props->devs, sizeof props->devs);
  return PLUGIN.makeVDevice(d, &newest);
}
#else
#define make_v9 NULL
#endif

EXPORT ncclNet_v11_t ncclNetPlugin_v11 = {SAME,
                                          .init = init_v11,
                                          .getProperties = properties_v11,
                                          .listen = listen_v11,
                                          .connect = connect_v11,
                                          .isend = isend_v10,
                                          .irecv = irecv_v10,
                                          .makeVDevice = make_v9,
                                          .finalize = finalize};

/* ---- v10: no context; the last user never says that it is the last ---- */

static ncclResult_t init_v10(ncclDebugLogger_t logger, ncclProfilerCallback_t profile)
{
  void *context = NULL;
  return PLUGIN.init(&context, 0, NULL, logger, profile);
}
static ncclResult_t properties_v9(int dev, ncclNetProperties_v9_t *props)
{
  ncclNetProperties_v12_t newest;
  TT_TRY(properties_v12(dev, &newest));
  COPY_V9(props, &newest);
  return ncclSuccess;
}
static ncclResult_t listen_v8(int dev, void *handle, void **listen_comm)
{
  return PLUGIN.listen(NULL, dev, handle, listen_comm);
}
static ncclResult_t connect_v8(int dev, void *handle, void **send_comm, ncclNetDeviceHandle_v8_t **device)
{
  return PLUGIN.connect(NULL, dev, handle, send_comm, device);
}
static ncclResult_t connect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **send_comm,
                                ncclNetDeviceHandle_v10_t **device)
{
  (void)config;
  return connect_v8(dev, handle, send_comm, device);
}

EXPORT ncclNet_v10_t ncclNetPlugin_v10 = {SAME,
                                          .init = init_v10,
                                          .getProperties = properties_v9,
                                          .listen = listen_v8,
                                          .connect = connect_v10,
                                          .isend = isend_v10,
                                          .irecv = irecv_v10,
                                          .makeVDevice = make_v9};

/* ---- v9: no profiler ---- */

static ncclResult_t init_v8(ncclDebugLogger_t logger)
{
  return init_v10(logger, NULL);
}
static ncclResult_t isend_v9(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
  return PLUGIN.isend(comm, data, size, tag, mhandle, NULL, request);
}
static ncclResult_t irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
  void *phandles[RECVS] = {NULL};
  return PLUGIN.irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
}

EXPORT ncclNet_v9_t ncclNetPlugin_v9 = {SAME,
                                        .init = init_v8,
                                        .getProperties = properties_v9,
                                        .listen = listen_v8,
                                        .connect = connect_v8,
                                        .isend = isend_v9,
                                        .irecv = irecv_v9,
                                        .makeVDevice = make_v9};

/* ---- v8: sizes are int ---- */

static ncclResult_t properties_v8(int dev, ncclNetProperties_v8_t *props)
{
  ncclNetProperties_v12_t newest;
  TT_TRY(properties_v12(dev, &newest));
  COPY_V8(props, &newest);
  return ncclSuccess;
}
static ncclResult_t isend_v8(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
  *request = NULL;
  if (size < 0) return TT_FAIL(ncclInternalError, "net %s: isend of %d bytes", TT_NET_NAME, size);
  return isend_v9(comm, data, (size_t)size, tag, mhandle, request);
}
static ncclResult_t irecv_v8(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
  size_t wide[RECVS] = {0};
  *request = NULL;
  for (int i = 0; i < n && i < RECVS; i++) {
    if (sizes[i] < 0) return TT_FAIL(ncclInternalError, "net %s: irecv of %d bytes", TT_NET_NAME, sizes[i]);
    wide[i] = (size_t)sizes[i];
  }
  return irecv_v9(comm, n, data, wide, tags, mhandles, request);
}

EXPORT ncclNet_v8_t ncclNetPlugin_v8 = {SAME,
                                        .init = init_v8,
                                        .getProperties = properties_v8,
                                        .listen = listen_v8,
                                        .connect = connect_v8,
                                        .isend = isend_v8,
                                        .irecv = irecv_v8};
