/* The calls of plugin/net.h: NULL rules and defaults first, then the plugin, directly where the member never changed
 * and through the shim where it did. */
#include <string.h>
#include "base/check.h"
#include "plugin/net_list.h"
#include "plugin/shim.h"

const char *tt_net_name(const struct tt_net *net)
{
  return net->plugin->abi.v12.name;
}

int tt_net_version(const struct tt_net *net)
{
  return net->plugin->shim->version;
}

unsigned tt_net_can(const struct tt_net *net)
{
  return net->plugin->can;
}

/* Calls a member and reports an error that the plugin did not explain. */
#define CALL(net, member, call) (tt_net_before(), tt_net_checked((net), (member), (call)))

ncclResult_t tt_net_devices(struct tt_net *net, int *ndev)
{
  *ndev = 0;
  tt_net_list_lock();
  ncclResult_t result = CALL(net, "devices", net->plugin->abi.v12.devices(ndev));
  tt_net_list_unlock();
  if (result != ncclSuccess || *ndev < 0) *ndev = 0;
  if (*ndev <= TT_NET_MOST_DEVICES) return result;
  result = TT_FAIL(ncclInvalidUsage, "net plugin %s (%s) counts %d devices by now; have it offer at most %d",
                   tt_net_name(net), net->plugin->path, *ndev, TT_NET_MOST_DEVICES);
  *ndev = 0;
  return result;
}

ncclResult_t tt_net_get_properties(struct tt_net *net, int dev, ncclNetProperties_v12_t *props)
{
  tt_net_default_properties(dev, props);
  TT_TRY(CALL(net, "getProperties", net->plugin->shim->get_properties(net, dev, props)));
  if (!props->name) props->name = (char *)tt_net_name(net);
  if (props->maxRecvs < 1) props->maxRecvs = 1;
  if (props->maxRecvs > TT_NET_MAX_RECVS) props->maxRecvs = TT_NET_MAX_RECVS;
  if (!(net->plugin->can & TT_NET_CAN_DMABUF)) props->ptrSupport &= ~NCCL_PTR_DMABUF;
  if (props->maxP2pBytes < 1 || props->maxP2pBytes > NCCL_MAX_NET_SIZE_BYTES) {
    return TT_FAIL(ncclInternalError, "net plugin %s (%s): device %d (%s) reports maxP2pBytes %zu, outside 1..%lld",
                   tt_net_name(net), net->plugin->path, dev, props->name, props->maxP2pBytes, NCCL_MAX_NET_SIZE_BYTES);
  }
  if (props->vProps.ndevs < 1 || props->vProps.ndevs > NCCL_NET_MAX_DEVS_PER_NIC_V12) {
    /* Plugins without virtual devices often leave this at zero. */
    props->vProps.ndevs = 1;
    props->vProps.devs[0] = dev;
  }
  return ncclSuccess;
}

int tt_net_most_fused(const struct tt_net *net)
{
  return net->plugin->can & TT_NET_CAN_VDEVICE ? net->plugin->shim->max_fused : 0;
}

ncclResult_t tt_net_make_vdevice(struct tt_net *net, int *dev, const ncclNetVDeviceProps_v12_t *props)
{
  if (!(net->plugin->can & TT_NET_CAN_VDEVICE)) {
    return TT_FAIL(ncclInvalidUsage, "net plugin %s (%s) cannot fuse devices: it has no makeVDevice", tt_net_name(net),
                   net->plugin->path);
  }
  if (props->ndevs < 2 || props->ndevs > net->plugin->shim->max_fused) {
    return TT_FAIL(ncclInvalidUsage, "net plugin %s (%s) speaks ABI v%d and fuses 2 to %d devices, not %d",
                   tt_net_name(net), net->plugin->path, tt_net_version(net), net->plugin->shim->max_fused,
                   props->ndevs);
  }
  tt_net_list_lock();
  ncclResult_t result = CALL(net, "makeVDevice", net->plugin->shim->make_vdevice(net, dev, props));
  tt_net_list_unlock();
  return result;
}

void tt_net_set_attr(struct tt_net *net, const ncclNetAttr_v12_t *attr)
{
  if (!(net->plugin->can & TT_NET_CAN_ATTR)) return;
  ncclNetAttr_v12_t copy = *attr;
  net->plugin->abi.v12.setNetAttr(net->ctx, &copy);
}

ncclResult_t tt_net_listen(struct tt_net *net, int dev, void *handle, void **comm)
{
  *comm = NULL;
  memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
  TT_TRY(CALL(net, "listen", net->plugin->shim->listen(net, dev, handle, comm)));
  if (*comm) return ncclSuccess;
  return TT_FAIL(ncclInternalError, "net plugin %s (%s): listen on device %d succeeded without a listenComm",
                 tt_net_name(net), net->plugin->path, dev);
}

ncclResult_t tt_net_connect(struct tt_net *net, int dev, void *handle, void **comm)
{
  ncclResult_t result = CALL(net, "connect", net->plugin->shim->connect(net, dev, handle, comm));
  if (result != ncclSuccess && *comm) {
    net->plugin->abi.v12.closeSend(*comm);
    *comm = NULL;
  }
  return result;
}

ncclResult_t tt_net_accept(struct tt_net *net, void *listen_comm, void **comm)
{
  ncclResult_t result = CALL(net, "accept", net->plugin->shim->accept(net, listen_comm, comm));
  if (result != ncclSuccess && *comm) {
    net->plugin->abi.v12.closeRecv(*comm);
    *comm = NULL;
  }
  return result;
}

ncclResult_t tt_net_reg_mr(struct tt_net *net, void *comm, void *data, size_t bytes, int type, void **mhandle)
{
  *mhandle = NULL;
  size_t limit = net->plugin->shim->max_registration;
  if (limit && bytes > limit) {
    return TT_FAIL(ncclInternalError,
                   "net plugin %s (%s) speaks ABI v%d and registers less than 2 GiB at once; %zu bytes were asked for: "
                   "register smaller pieces, or install a release of the plugin that exports v8 or newer",
                   tt_net_name(net), net->plugin->path, tt_net_version(net), bytes);
  }
  return CALL(net, "regMr", net->plugin->shim->reg_mr(net, comm, data, bytes, type, mhandle));
}

ncclResult_t tt_net_reg_mr_dmabuf(struct tt_net *net, void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                  int fd, void **mhandle)
{
  *mhandle = NULL;
  if (!(net->plugin->can & TT_NET_CAN_DMABUF)) {
    return TT_FAIL(ncclInternalError, "net plugin %s (%s) has no regMrDmaBuf", tt_net_name(net), net->plugin->path);
  }
  return CALL(net, "regMrDmaBuf", net->plugin->abi.v12.regMrDmaBuf(comm, data, bytes, type, offset, fd, mhandle));
}

ncclResult_t tt_net_dereg_mr(struct tt_net *net, void *comm, void *mhandle)
{
  return CALL(net, "deregMr", net->plugin->abi.v12.deregMr(comm, mhandle));
}

static ncclResult_t check_message(const struct tt_net *net, size_t bytes)
{
  size_t limit = net->plugin->shim->max_message;
  if (!limit || bytes <= limit) return ncclSuccess;
  return TT_FAIL(
      ncclInternalError,
      "net plugin %s (%s) speaks ABI v%d, whose messages have at most %zu bytes; %zu were asked for: keep to "
      "maxP2pBytes, or install a release of the plugin that exports v9 or newer",
      tt_net_name(net), net->plugin->path, tt_net_version(net), limit, bytes);
}

ncclResult_t tt_net_isend(struct tt_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
                          void *phandle, void **request)
{
  *request = NULL;
  TT_TRY(check_message(net, bytes));
  return CALL(net, "isend", net->plugin->shim->isend(net, comm, data, bytes, tag, mhandle, phandle, request));
}

ncclResult_t tt_net_irecv(struct tt_net *net, void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles,
                          void **phandles, void **request)
{
  static void *no_handles[TT_NET_MAX_RECVS]; /* never written: plugins only hand the entries on */
  void *const optional = (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;
  if (*request != optional) *request = NULL;
  if (n < 1 || n > TT_NET_MAX_RECVS) {
    return TT_FAIL(ncclInternalError, "a grouped receive of %d buffers; 1 to %d are possible", n, TT_NET_MAX_RECVS);
  }
  for (int i = 0; i < n; i++) TT_TRY(check_message(net, bytes[i]));
  if (!phandles) phandles = no_handles;
  ncclResult_t result =
      CALL(net, "irecv", net->plugin->shim->irecv(net, comm, n, data, bytes, tags, mhandles, phandles, request));
  /* A plugin that could not post and wrote nothing leaves the mark, which is no request. */
  if (*request == optional) *request = NULL;
  return result;
}

ncclResult_t tt_net_iflush(struct tt_net *net, void *comm, int n, void **data, int *bytes, void **mhandles,
                           void **request)
{
  *request = NULL;
  if (!(net->plugin->can & TT_NET_CAN_FLUSH)) return ncclSuccess;
  return CALL(net, "iflush", net->plugin->abi.v12.iflush(comm, n, data, bytes, mhandles, request));
}

ncclResult_t tt_net_test(struct tt_net *net, void *request, int *done, int *bytes)
{
  *done = 0;
  ncclResult_t result = CALL(net, "test", net->plugin->abi.v12.test(request, done, bytes));
  *done = *done != 0;
  return result;
}

ncclResult_t tt_net_irecv_consumed(struct tt_net *net, void *comm, int n, void *request)
{
  if (!(net->plugin->can & TT_NET_CAN_CONSUMED)) return ncclSuccess;
  return CALL(net, "irecvConsumed", net->plugin->abi.v12.irecvConsumed(comm, n, request));
}

struct reading {
  tt_counters_visit *visit;
  void *context;
};

/* What an older plugin does not have is 0; what a newer one has beyond is left out. */
static void show_counters(void *argument, const struct tt_counters *counters)
{
  const struct reading *reading = argument;
  struct tt_counters whole = {0};
  memcpy(&whole, counters, TT_MIN(counters->size, sizeof(whole)));
  whole.size = sizeof(whole);
  if (!whole.name) whole.name = "";
  if (!whole.peer) whole.peer = "";
  reading->visit(reading->context, &whole);
}

ncclResult_t tt_net_read_counters(struct tt_net *net, tt_counters_visit *visit, void *context)
{
  struct reading reading = {visit, context};
  if (!(net->plugin->can & TT_NET_CAN_COUNT)) return ncclSuccess;
  return CALL(net, "tuttiNetCounters.read", net->plugin->counters->read(show_counters, &reading));
}

ncclResult_t tt_net_close_send(struct tt_net *net, void *comm)
{
  return comm ? CALL(net, "closeSend", net->plugin->abi.v12.closeSend(comm)) : ncclSuccess;
}

ncclResult_t tt_net_close_recv(struct tt_net *net, void *comm)
{
  return comm ? CALL(net, "closeRecv", net->plugin->abi.v12.closeRecv(comm)) : ncclSuccess;
}

ncclResult_t tt_net_close_listen(struct tt_net *net, void *comm)
{
  return comm ? CALL(net, "closeListen", net->plugin->abi.v12.closeListen(comm)) : ncclSuccess;
}
