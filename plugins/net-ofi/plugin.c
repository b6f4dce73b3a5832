/* The exported struct of version 12; plugins/common/exports.c makes the older ones from it. */
#include "net_ofi.h"

#include <string.h>

static ncclResult_t init(void **ctx, uint64_t comm_id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t logger,
                         ncclProfilerCallback_t profile)
{
  (void)comm_id, (void)config, (void)profile;
  if (ctx) *ctx = NULL;
  return tt_ofi_open(logger);
}

static ncclResult_t finalize(void *ctx)
{
  (void)ctx;
  return tt_ofi_close();
}

static ncclResult_t devices(int *ndev)
{
  *ndev = tt_ofi_device_count();
  return ncclSuccess;
}

static int pointers_of(const struct tt_ofi_device *device)
{
  bool hmem = true;
  for (int i = 0; i < device->count; i++) hmem = hmem && device->nic[i]->hmem;
#ifdef FI_MR_DMABUF
  int gpu = NCCL_PTR_CUDA | NCCL_PTR_DMABUF;
#else
  int gpu = NCCL_PTR_CUDA;
#endif
  return hmem ? NCCL_PTR_HOST | gpu : NCCL_PTR_HOST;
}

/* A comm takes an endpoint of each NIC. */
static int comms_of(const struct tt_ofi_device *device)
{
  size_t most = 65536;
  for (int i = 0; i < device->count; i++) {
    size_t endpoints = device->nic[i]->info->domain_attr->ep_cnt;
    if (endpoints) most = TT_MIN(most, endpoints);
  }
  return (int)most;
}

static ncclResult_t properties(int dev, ncclNetProperties_v12_t *props)
{
  struct tt_ofi_device *device;
  TT_TRY(tt_ofi_device(dev, &device));
  memset(props, 0, sizeof *props);
  props->name = device->name;
  props->pciPath = device->nic[0]->pci_path[0] ? device->nic[0]->pci_path : NULL;
  props->guid = (uint64_t)dev;
  props->ptrSupport = pointers_of(device);
  for (int i = 0; i < device->count; i++) props->speed += device->nic[i]->speed;
  props->maxComms = comms_of(device);
  props->maxRecvs = TT_OFI_RECVS;
  props->netDeviceType = NCCL_NET_DEVICE_HOST;
  props->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
  props->vProps.ndevs = device->count;
  memcpy(props->vProps.devs, device->members, sizeof(int) * (size_t)device->count);
  props->maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES;
  props->maxCollBytes = NCCL_MAX_NET_SIZE_BYTES;
  props->maxMultiRequestSize = 1;
  props->railId = NCCL_NET_ID_UNDEF;
  props->planeId = NCCL_NET_ID_UNDEF;
  return ncclSuccess;
}

static ncclResult_t listen_(void *ctx, int dev, void *handle, void **listen_comm)
{
  (void)ctx;
  return tt_ofi_listen(dev, handle, listen_comm);
}

/* NULL for the device says that the host drives the connection. */
static ncclResult_t connect_(void *ctx, int dev, void *handle, void **send_comm, ncclNetDeviceHandle_v12_t **device)
{
  (void)ctx;
  if (device) *device = NULL;
  return tt_ofi_connect(dev, handle, send_comm);
}

static ncclResult_t accept_(void *listen_comm, void **recv_comm, ncclNetDeviceHandle_v12_t **device)
{
  if (device) *device = NULL;
  return tt_ofi_accept(listen_comm, recv_comm);
}

static ncclResult_t reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                  void **mhandle)
{
  return tt_ofi_memory_make(comm, data, size, type, offset, fd, (struct tt_ofi_memory **)mhandle);
}

static ncclResult_t reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
  return reg_mr_dmabuf(comm, data, size, type, 0, -1, mhandle);
}

static ncclResult_t dereg_mr(void *comm, void *mhandle)
{
  return tt_ofi_memory_free(comm, mhandle);
}

static ncclResult_t isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request)
{
  (void)phandle;
  return tt_ofi_isend(comm, data, size, tag, mhandle, request);
}

static ncclResult_t irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                          void **request)
{
  (void)phandles;
  return tt_ofi_irecv(comm, n, data, sizes, tags, mhandles, request);
}

static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
  return tt_ofi_iflush(comm, n, data, sizes, mhandles, request);
}

static ncclResult_t test(void *request, int *done, int *sizes)
{
  struct tt_ofi_request *base = request;
  *done = 0;
  if (!base || !base->live) return TT_FAIL(ncclInternalError, "net ofi: test of a request that is not in flight");
  switch (base->kind) {
  case TT_OFI_SEND:
    return tt_ofi_send_test(base, done, sizes);
  case TT_OFI_RECV:
    return tt_ofi_recv_test(base, done, sizes);
  default:
    return tt_ofi_flush_test(base, done);
  }
}

static ncclResult_t make_vdevice(int *d, ncclNetVDeviceProps_v12_t *props)
{
  return tt_ofi_device_fuse(props->devs, props->ndevs, d);
}

__attribute__((visibility("default"))) const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = TT_NET_NAME,
    .init = init,
    .devices = devices,
    .getProperties = properties,
    .listen = listen_,
    .connect = connect_,
    .accept = accept_,
    .regMr = reg_mr,
    .regMrDmaBuf = reg_mr_dmabuf,
    .deregMr = dereg_mr,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .closeSend = tt_ofi_close_send,
    .closeRecv = tt_ofi_close_recv,
    .closeListen = tt_ofi_close_listen,
    .makeVDevice = make_vdevice,
    .finalize = finalize,
};
