/* What the plugin exports. */
#include "net_socket.h"

#include <string.h>

#define NET_NAME "Socket"
#define NET_RECVS TT_NETSOCKET_RECVS

static ncclResult_t net_init(ncclDebugLogger_t logger, ncclProfilerCallback_t profile)
{
  (void)profile;
  return tt_netsocket_open(logger);
}

static ncclResult_t net_devices(int *ndev)
{
  *ndev = tt_netsocket_device_count();
  return ncclSuccess;
}

static ncclResult_t net_properties(int dev, ncclNetProperties_v12_t *props)
{
  struct tt_netsocket_device *device;
  TT_TRY(tt_netsocket_device(dev, &device));
  memset(props, 0, sizeof *props);
  props->name = device->name;
  props->pciPath = device->pci_path[0] ? device->pci_path : NULL;
  props->guid = (uint64_t)dev;
  props->ptrSupport = NCCL_PTR_HOST;
  props->regIsGlobal = 1;
  props->speed = device->speed;
  props->maxComms = 65536;
  props->maxRecvs = TT_NETSOCKET_RECVS;
  props->netDeviceType = NCCL_NET_DEVICE_HOST;
  props->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
  props->vProps.ndevs = 1;
  props->vProps.devs[0] = dev;
  props->maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES;
  props->maxCollBytes = NCCL_MAX_NET_SIZE_BYTES;
  props->maxMultiRequestSize = 1;
  props->railId = NCCL_NET_ID_UNDEF;
  props->planeId = NCCL_NET_ID_UNDEF;
  return ncclSuccess;
}

static ncclResult_t net_connect(int dev, uint64_t user, int traffic_class, void *handle, void **send_comm)
{
  (void)traffic_class;
  return tt_netsocket_connect(dev, user, handle, send_comm);
}

/* Host memory needs no registration, but NULL would mean "not registered". */
static ncclResult_t net_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
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

static ncclResult_t net_dereg_mr(void *comm, void *mhandle)
{
  (void)comm, (void)mhandle;
  return ncclSuccess;
}

static ncclResult_t net_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
  (void)mhandle;
  return tt_netsocket_isend(comm, data, size, tag, request);
}

static ncclResult_t net_irecv(void *comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                              void **request)
{
  (void)mhandles;
  return tt_netsocket_irecv(comm, n, data, sizes, tags, request);
}

static ncclResult_t net_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
  (void)comm, (void)n, (void)data, (void)sizes, (void)mhandles;
  *request = NULL; /* complete: host memory is visible as it is */
  return ncclSuccess;
}

static ncclResult_t net_test(void *request, int *done, int *sizes)
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

#define net_finalize tt_netsocket_close
#define net_forget tt_meeting_forget
#define net_listen tt_netsocket_listen
#define net_accept tt_netsocket_accept
#define net_close_send tt_netsocket_close_send
#define net_close_recv tt_netsocket_close_recv
#define net_close_listen tt_netsocket_close_listen

#include "plugins/common/net_exports.h"
