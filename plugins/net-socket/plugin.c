/* The exported structs, v8 to v12, and the thin functions in which their signatures differ. The newest version's are
 * the real ones. Members that only device memory or device offload need are NULL. */
#include "net_socket.h"

#include <string.h>

/* ---- The same in all versions ---- */

static ncclResult_t devices(int *ndev)
{
  *ndev = tt_netsocket_device_count();
  return ncclSuccess;
}

/* Host memory needs no registration, but NULL would mean "not registered". */
static ncclResult_t reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
  static char registered;
  (void)data;
  *mhandle = NULL;
  if (!comm || type != NCCL_PTR_HOST)
    return TT_FAIL(ncclInternalError, "net socket: cannot register %zu bytes of memory type %d; only host memory (%d)",
                   size, type, NCCL_PTR_HOST);
  *mhandle = &registered;
  return ncclSuccess;
}

static ncclResult_t dereg_mr(void *comm, void *mhandle)
{
  (void)comm, (void)mhandle;
  return ncclSuccess;
}

static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
  (void)comm, (void)n, (void)data, (void)sizes, (void)mhandles;
  *request = NULL; /* complete: host memory is visible as it is */
  return ncclSuccess;
}

static ncclResult_t test(void *request, int *done, int *sizes)
{
  struct tt_netsocket_request *base = request;
  *done = 0;
  if (!base || !base->live) return TT_FAIL(ncclInternalError, "net socket: test of a request that is not in flight");
  return base->sends ? tt_netsocket_send_test(base, done, sizes) : tt_netsocket_recv_test(base, done, sizes);
}

__attribute__((visibility("default"))) const struct tt_net_counters tuttiNetCounters = {
    .size = sizeof(struct tt_net_counters),
    .read = tt_counted_read,
};

/* ---- v11, v12 ---- */

static ncclResult_t init_v11(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t logger,
                             ncclProfilerCallback_t profile)
{
  (void)comm_id, (void)config, (void)profile;
  if (ctx) *ctx = NULL;
  return tt_netsocket_open(logger);
}

static ncclResult_t finalize(void *ctx)
{
  (void)ctx;
  return tt_netsocket_close();
}

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
  (void)ctx;
  return tt_netsocket_listen(dev, handle, listen_comm);
}

/* The device handle is the same type in all versions; NULL says that the host drives the connection. */
static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **send_comm, ncclNetDeviceHandle_v11_t **device)
{
  (void)ctx;
  if (device) *device = NULL;
  return tt_netsocket_connect(dev, handle, send_comm);
}

static ncclResult_t accept_v8(void *listen_comm, void **recv_comm, ncclNetDeviceHandle_v8_t **device)
{
  if (device) *device = NULL;
  return tt_netsocket_accept(listen_comm, recv_comm);
}

static ncclResult_t isend_v10(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                              void **request)
{
  (void)mhandle, (void)phandle;
  return tt_netsocket_isend(comm, data, size, tag, request);
}

static ncclResult_t irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **request)
{
  (void)mhandles, (void)phandles;
  return tt_netsocket_irecv(comm, n, data, sizes, tags, request);
}

/* What all versions of the properties have; the structs differ in layout, so each gets its own copy of the lines. */
#define FILL_COMMON(props, device, dev)                                                                                \
  do {                                                                                                                 \
    memset((props), 0, sizeof *(props));                                                                               \
    (props)->name = (device)->name;                                                                                    \
    (props)->pciPath = (device)->pci_path[0] ? (device)->pci_path : NULL;                                              \
    (props)->guid = (uint64_t)(dev);                                                                                   \
    (props)->ptrSupport = NCCL_PTR_HOST;                                                                               \
    (props)->regIsGlobal = 1;                                                                                          \
    (props)->speed = (device)->speed;                                                                                  \
    (props)->maxComms = 65536;                                                                                         \
    (props)->maxRecvs = TT_NETSOCKET_RECVS;                                                                            \
    (props)->netDeviceType = NCCL_NET_DEVICE_HOST;                                                                     \
    (props)->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;                                                       \
  } while (0)
#define FILL_V9(props, dev)                                                                                            \
  do {                                                                                                                 \
    (props)->vProps.ndevs = 1;                                                                                         \
    (props)->vProps.devs[0] = (dev);                                                                                   \
    (props)->maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES;                                                                    \
    (props)->maxCollBytes = NCCL_MAX_NET_SIZE_BYTES;                                                                   \
  } while (0)

static ncclResult_t properties_v12(int dev, ncclNetProperties_v12_t *props)
{
  struct tt_netsocket_device *device;
  TT_TRY(tt_netsocket_device(dev, &device));
  FILL_COMMON(props, device, dev);
  FILL_V9(props, dev);
  props->maxMultiRequestSize = 1;
  props->railId = NCCL_NET_ID_UNDEF;
  props->planeId = NCCL_NET_ID_UNDEF;
  return ncclSuccess;
}

static ncclResult_t properties_v11(int dev, ncclNetProperties_v11_t *props)
{
  struct tt_netsocket_device *device;
  TT_TRY(tt_netsocket_device(dev, &device));
  FILL_COMMON(props, device, dev);
  FILL_V9(props, dev);
  props->maxMultiRequestSize = 1;
  return ncclSuccess;
}

__attribute__((visibility("default"))) const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = "Socket",
    .init = init_v11,
    .devices = devices,
    .getProperties = properties_v12,
    .listen = listen_v11,
    .connect = connect_v11,
    .accept = accept_v8,
    .regMr = reg_mr,
    .deregMr = dereg_mr,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .iflush = iflush,
    .test = test,
    .closeSend = tt_netsocket_close_send,
    .closeRecv = tt_netsocket_close_recv,
    .closeListen = tt_netsocket_close_listen,
    .finalize = finalize,
};

__attribute__((visibility("default"))) const ncclNet_v11_t ncclNetPlugin_v11 = {
    .name = "Socket",
    .init = init_v11,
    .devices = devices,
    .getProperties = properties_v11,
    .listen = listen_v11,
    .connect = connect_v11,
    .accept = accept_v8,
    .regMr = reg_mr,
    .deregMr = dereg_mr,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .iflush = iflush,
    .test = test,
    .closeSend = tt_netsocket_close_send,
    .closeRecv = tt_netsocket_close_recv,
    .closeListen = tt_netsocket_close_listen,
    .finalize = finalize,
};

/* ---- v10: no context; the last user never says that it is the last ---- */

static ncclResult_t init_v10(ncclDebugLogger_t logger, ncclProfilerCallback_t profile)
{
  (void)profile;
  return tt_netsocket_open(logger);
}

static ncclResult_t properties_v9(int dev, ncclNetProperties_v9_t *props)
{
  struct tt_netsocket_device *device;
  TT_TRY(tt_netsocket_device(dev, &device));
  FILL_COMMON(props, device, dev);
  FILL_V9(props, dev);
  return ncclSuccess;
}

static ncclResult_t connect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **send_comm,
                                ncclNetDeviceHandle_v10_t **device)
{
  (void)config;
  return connect_v11(NULL, dev, handle, send_comm, device);
}

__attribute__((visibility("default"))) const ncclNet_v10_t ncclNetPlugin_v10 = {
    .name = "Socket",
    .init = init_v10,
    .devices = devices,
    .getProperties = properties_v9,
    .listen = tt_netsocket_listen,
    .connect = connect_v10,
    .accept = accept_v8,
    .regMr = reg_mr,
    .deregMr = dereg_mr,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .iflush = iflush,
    .test = test,
    .closeSend = tt_netsocket_close_send,
    .closeRecv = tt_netsocket_close_recv,
    .closeListen = tt_netsocket_close_listen,
};

/* ---- v9: no profiler ---- */

static ncclResult_t connect_v8(int dev, void *handle, void **send_comm, ncclNetDeviceHandle_v8_t **device)
{
  return connect_v11(NULL, dev, handle, send_comm, device);
}

static ncclResult_t isend_v9(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
  (void)mhandle;
  return tt_netsocket_isend(comm, data, size, tag, request);
}

static ncclResult_t irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
  (void)mhandles;
  return tt_netsocket_irecv(comm, n, data, sizes, tags, request);
}

__attribute__((visibility("default"))) const ncclNet_v9_t ncclNetPlugin_v9 = {
    .name = "Socket",
    .init = tt_netsocket_open,
    .devices = devices,
    .getProperties = properties_v9,
    .listen = tt_netsocket_listen,
    .connect = connect_v8,
    .accept = accept_v8,
    .regMr = reg_mr,
    .deregMr = dereg_mr,
    .isend = isend_v9,
    .irecv = irecv_v9,
    .iflush = iflush,
    .test = test,
    .closeSend = tt_netsocket_close_send,
    .closeRecv = tt_netsocket_close_recv,
    .closeListen = tt_netsocket_close_listen,
};

/* ---- v8: sizes are int ---- */

static ncclResult_t properties_v8(int dev, ncclNetProperties_v8_t *props)
{
  struct tt_netsocket_device *device;
  TT_TRY(tt_netsocket_device(dev, &device));
  FILL_COMMON(props, device, dev);
  return ncclSuccess;
}

static ncclResult_t isend_v8(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
  (void)mhandle;
  *request = NULL;
  if (size < 0) return TT_FAIL(ncclInternalError, "net socket: isend of %d bytes", size);
  return tt_netsocket_isend(comm, data, (size_t)size, tag, request);
}

static ncclResult_t irecv_v8(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
  size_t wide[TT_NETSOCKET_RECVS] = {0};
  (void)mhandles;
  *request = NULL;
  for (int i = 0; i < n && i < TT_NETSOCKET_RECVS; i++) {
    if (sizes[i] < 0) return TT_FAIL(ncclInternalError, "net socket: irecv of %d bytes", sizes[i]);
    wide[i] = (size_t)sizes[i];
  }
  return tt_netsocket_irecv(comm, n, data, wide, tags, request);
}

__attribute__((visibility("default"))) const ncclNet_v8_t ncclNetPlugin_v8 = {
    .name = "Socket",
    .init = tt_netsocket_open,
    .devices = devices,
    .getProperties = properties_v8,
    .listen = tt_netsocket_listen,
    .connect = connect_v8,
    .accept = accept_v8,
    .regMr = reg_mr,
    .deregMr = dereg_mr,
    .isend = isend_v8,
    .irecv = irecv_v8,
    .iflush = iflush,
    .test = test,
    .closeSend = tt_netsocket_close_send,
    .closeRecv = tt_netsocket_close_recv,
    .closeListen = tt_netsocket_close_listen,
};
