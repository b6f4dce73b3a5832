/* What the plugin exports. */
#include "net_ofi.h"

#include <string.h>

#define NET_NAME "OFI"
#define NET_RECVS TT_OFI_RECVS
#define NET_FUSES
#define NET_DMABUF

static ncclResult_t net_init(ncclDebugLogger_t logger, ncclProfilerCallback_t profile)
{
  (void)profile;
  return tt_ofi_open(logger);
}

static ncclResult_t net_finalize(void)
{
  return tt_ofi_close();
}

static ncclResult_t net_devices(int *ndev)
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

static ncclResult_t net_properties(int dev, ncclNetProperties_v12_t *props)
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

/* libfabric has classes of its own, by endpoint; NCCL's are not passed on. */
static ncclResult_t net_connect(int dev, uint64_t user, int traffic_class, void *handle, void **send_comm)
{
  (void)traffic_class;
  return tt_ofi_connect(dev, user, handle, send_comm);
}

static ncclResult_t net_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                      void **mhandle)
{
  return tt_ofi_memory_make(comm, data, size, type, offset, fd, (struct tt_ofi_memory **)mhandle);
}

static ncclResult_t net_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
  return net_reg_mr_dmabuf(comm, data, size, type, 0, -1, mhandle);
}

static ncclResult_t net_dereg_mr(void *comm, void *mhandle)
{
  return tt_ofi_memory_free(comm, mhandle);
}

static ncclResult_t net_test(void *request, int *done, int *sizes)
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

static ncclResult_t net_make_vdevice(int *index, int count, const int *devices)
{
  return tt_ofi_device_fuse(devices, count, index);
}

__attribute__((visibility("default"))) const struct tt_net_counters tuttiNetCounters = {
    .size = sizeof(struct tt_net_counters),
    .read = tt_counted_read,
};

#define net_forget tt_ofi_connect_forget
#define net_listen tt_ofi_listen
#define net_accept tt_ofi_accept
#define net_isend tt_ofi_isend
#define net_irecv tt_ofi_irecv
#define net_iflush tt_ofi_iflush
#define net_close_send tt_ofi_close_send
#define net_close_recv tt_ofi_close_recv
#define net_close_listen tt_ofi_close_listen

#include "plugins/common/net_exports.h"
