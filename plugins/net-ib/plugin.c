/* What the plugin exports. */
#include "net_ib.h"

#include <string.h>

#define NET_NAME "IB"
#define NET_RECVS TT_IB_RECVS
#define NET_FUSES
#define NET_DMABUF

static ncclResult_t net_init(ncclDebugLogger_t logger, ncclProfilerCallback_t profile)
{
  (void)profile;
  return tt_ib_open(logger);
}

static ncclResult_t net_finalize(void)
{
  return tt_ib_close();
}

static ncclResult_t net_devices(int *ndev)
{
  *ndev = tt_ib_device_count();
  return ncclSuccess;
}

static ncclResult_t net_properties(int dev, ncclNetProperties_v12_t *props)
{
  const struct tt_ib_device *device;
  TT_TRY(tt_ib_device(dev, &device));
  /* What a merged device's ports do not share is the first one's, but what only all can do together. */
  const struct tt_ib_port *port = tt_ib_port(device->port[0]);
  bool peer = true, dmabuf = true;
  memset(props, 0, sizeof *props);
  props->vProps.ndevs = device->count;
  for (int i = 0; i < device->count; i++) {
    props->vProps.devs[i] = device->port[i];
    peer &= tt_ib_port(device->port[i])->takes_peer_memory;
    dmabuf &= tt_ib_port(device->port[i])->takes_dmabuf;
  }
  props->name = (char *)(uintptr_t)device->name;
  props->pciPath = port->pci_path[0] ? (char *)(uintptr_t)port->pci_path : NULL;
  props->guid = port->guid;
  props->ptrSupport = NCCL_PTR_HOST | (peer ? NCCL_PTR_CUDA : 0) | (dmabuf ? NCCL_PTR_DMABUF : 0);
  props->regIsGlobal = 1;
  props->speed = device->speed;
  props->port = port->number + port->card_port;
  props->maxComms = port->nic->max_qp;
  props->maxRecvs = TT_IB_RECVS;
  props->netDeviceType = NCCL_NET_DEVICE_HOST;
  props->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
  props->maxP2pBytes = props->maxCollBytes = NCCL_MAX_NET_SIZE_BYTES;
  props->maxMultiRequestSize = 1;
  props->railId = (int16_t)device->rail;
  props->planeId = (int16_t)device->plane;
  return ncclSuccess;
}

static ncclResult_t net_make_vdevice(int *index, int count, const int *devices)
{
  return tt_ib_merge(devices, count, index);
}

/* Comms of both kinds begin with their link. */
static ncclResult_t net_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                      void **mhandle)
{
  return tt_ib_register(comm, data, size, type, offset, fd, (struct tt_ib_memory **)mhandle);
}

static ncclResult_t net_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
  return net_reg_mr_dmabuf(comm, data, size, type, 0, -1, mhandle);
}

static ncclResult_t net_dereg_mr(void *comm, void *mhandle)
{
  (void)comm;
  return tt_ib_deregister(mhandle);
}

static ncclResult_t net_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
  return tt_ib_iflush(comm, n, data, sizes, mhandles, request);
}

static ncclResult_t net_test(void *request, int *done, int *sizes)
{
  struct tt_ib_request *base = request;
  *done = 0;
  if (!base || base->kind == TT_IB_REQUEST_NONE)
    return TT_FAIL(ncclInternalError, "net ib: test of a request that is not in flight");
  return base->kind == TT_IB_REQUEST_SEND ? tt_ib_send_test(base, done, sizes) : tt_ib_recv_test(base, done, sizes);
}

#define net_listen tt_ib_listen
#define net_connect tt_ib_connect
#define net_forget tt_ib_connect_forget
#define net_accept tt_ib_accept
#define net_isend tt_ib_isend
#define net_irecv tt_ib_irecv
#define net_close_send tt_ib_close_send
#define net_close_recv tt_ib_close_recv
#define net_close_listen tt_ib_close_listen

#include "plugins/common/net_exports.h"

NET_EXPORT const struct tt_net_counters tuttiNetCounters = {.size = sizeof(struct tt_net_counters),
                                                            .read = tt_counted_read};
