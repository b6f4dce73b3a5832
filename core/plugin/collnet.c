/* The calls of plugin/collnet.h: NULL rules and limits first, then the plugin, directly where the member never changed
 * and through the shim where it did. */
#include "plugin/collnet.h"

#include <string.h>
#include "base/check.h"
#include "plugin/collnet_shim.h"
#include "plugin/net_list.h"

const char *tt_collnet_name(const struct tt_collnet *collnet)
{
  return collnet->plugin->abi.v12.name;
}

const char *tt_collnet_path(const struct tt_collnet *collnet)
{
  return collnet->plugin->path;
}

int tt_collnet_version(const struct tt_collnet *collnet)
{
  return collnet->plugin->shim->version;
}

unsigned tt_collnet_can(const struct tt_collnet *collnet)
{
  return collnet->plugin->can;
}

int tt_collnet_ndev(const struct tt_collnet *collnet)
{
  return collnet->ndev;
}

/* Calls a member and reports an error that the plugin did not explain. */
#define CALL(collnet, member, call) (tt_net_before(), checked((collnet), (member), (call)))

static ncclResult_t checked(const struct tt_collnet *collnet, const char *member, ncclResult_t result)
{
  const struct tt_plugin_identity identity = {.kind = "collnet",
                                              .name = tt_collnet_name(collnet),
                                              .version = tt_collnet_version(collnet),
                                              .path = tt_collnet_path(collnet)};
  return tt_plugin_checked(&identity, member, result);
}

ncclResult_t tt_collnet_get_properties(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props)
{
  tt_net_default_properties(dev, props);
  TT_TRY(CALL(collnet, "getProperties", collnet->plugin->shim->get_properties(collnet, dev, props)));
  if (!props->name) props->name = (char *)tt_collnet_name(collnet);
  if (!(collnet->plugin->can & TT_COLLNET_CAN_DMABUF)) props->ptrSupport &= ~NCCL_PTR_DMABUF;
  if (props->maxCollBytes < 1 || props->maxCollBytes > NCCL_MAX_NET_SIZE_BYTES) {
    return TT_FAIL(ncclInternalError,
                   "collnet plugin %s (%s): device %d (%s) reports maxCollBytes %zu, outside 1..%lld",
                   tt_collnet_name(collnet), tt_collnet_path(collnet), dev, props->name, props->maxCollBytes,
                   NCCL_MAX_NET_SIZE_BYTES);
  }
  return ncclSuccess;
}

static ncclResult_t need_comm(const struct tt_collnet *collnet, const char *member, const void *comm)
{
  if (comm) return ncclSuccess;
  return TT_FAIL(ncclInternalError, "collnet plugin %s (%s): %s succeeded without a comm", tt_collnet_name(collnet),
                 tt_collnet_path(collnet), member);
}

ncclResult_t tt_collnet_listen(struct tt_collnet *collnet, int dev, void *handle, void **comm)
{
  *comm = NULL;
  memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
  TT_TRY(CALL(collnet, "listen", collnet->plugin->shim->listen(collnet, dev, handle, comm)));
  return need_comm(collnet, "listen", *comm);
}

ncclResult_t tt_collnet_connect(struct tt_collnet *collnet, void *handles[], int nranks, int rank, void *listen_comm,
                                void **comm)
{
  *comm = NULL;
  ncclResult_t result =
      CALL(collnet, "connect", collnet->plugin->abi.v12.connect(handles, nranks, rank, listen_comm, comm));
  if (result != ncclSuccess && *comm) {
    collnet->plugin->close_coll(*comm);
    *comm = NULL;
  }
  return result == ncclSuccess ? need_comm(collnet, "connect", *comm) : result;
}

ncclResult_t tt_collnet_close_listen(struct tt_collnet *collnet, void *comm)
{
  return comm ? CALL(collnet, "closeListen", collnet->plugin->close_listen(comm)) : ncclSuccess;
}

ncclResult_t tt_collnet_close_coll(struct tt_collnet *collnet, void *comm)
{
  return comm ? CALL(collnet, "closeColl", collnet->plugin->close_coll(comm)) : ncclSuccess;
}

ncclResult_t tt_collnet_reg_mr(struct tt_collnet *collnet, void *comm, void *data, size_t bytes, int type,
                               void **mhandle)
{
  *mhandle = NULL;
  size_t limit = collnet->plugin->shim->max_registration;
  if (limit && bytes > limit) {
    return TT_FAIL(ncclInternalError,
                   "collnet plugin %s (%s) speaks ABI v%d and registers less than 2 GiB at once; %zu bytes were asked "
                   "for: register smaller pieces, or install a release of the plugin that exports v8 or newer",
                   tt_collnet_name(collnet), tt_collnet_path(collnet), tt_collnet_version(collnet), bytes);
  }
  return CALL(collnet, "regMr", collnet->plugin->shim->reg_mr(collnet, comm, data, bytes, type, mhandle));
}

ncclResult_t tt_collnet_dereg_mr(struct tt_collnet *collnet, void *comm, void *mhandle)
{
  return CALL(collnet, "deregMr", collnet->plugin->abi.v12.deregMr(comm, mhandle));
}

/* Bytes of an element; the types' numbers are nccl.h's. */
static size_t element_bytes(ncclDataType_t datatype)
{
  static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return (unsigned)datatype < TT_COUNT(bytes) ? bytes[datatype] : 0;
}

ncclResult_t tt_collnet_iallreduce(struct tt_collnet *collnet, void *comm, const struct tt_collnet_all_reduce *what,
                                   void **request)
{
  *request = NULL;
  size_t limit = collnet->plugin->shim->max_bytes, element = element_bytes(what->datatype);
  if (limit && element && what->count > limit / element) {
    return TT_FAIL(
        ncclInternalError,
        "collnet plugin %s (%s) speaks ABI v%d, which reduces at most %zu bytes at once; %zu elements of %zu "
        "were asked for: keep to maxCollBytes, or install a release of the plugin that exports v9 or newer",
        tt_collnet_name(collnet), tt_collnet_path(collnet), tt_collnet_version(collnet), limit, what->count, element);
  }
  return CALL(collnet, "iallreduce", collnet->plugin->shim->iallreduce(collnet, comm, what, request));
}

ncclResult_t tt_collnet_test(struct tt_collnet *collnet, void *request, int *done)
{
  int size = 0;
  *done = 0;
  ncclResult_t result = CALL(collnet, "test", collnet->plugin->test(request, done, &size));
  *done = *done != 0;
  return result;
}
