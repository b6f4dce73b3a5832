/* Slots in a device's memory, which the network reads and writes itself (GPUDirect RDMA): how they are registered, and
 * flushed. A NIC's writes into a GPU's memory and its news of them may take different ways, so that a device which has
 * heard of a message does not see all of it yet; a flush makes sure of that, before the device hears. */
#include "proxy/internal.h"

#include <unistd.h>
#include "base/check.h"

/* The plugin keeps no copy of the descriptor that it does not make itself. */
static ncclResult_t register_dmabuf(struct tt_proxy_conn *conn, void **mhandle)
{
  const struct tt_proxy_direct *direct = &conn->config.direct;
  int fd = -1;
  TT_TRY(direct->device->export_dmabuf(direct->context, direct->memory, direct->bytes, direct->pci, &fd));
  ncclResult_t result = tt_net_reg_mr_dmabuf(conn->proxy->net, conn->wire->comm, direct->memory, direct->bytes,
                                             NCCL_PTR_CUDA, 0, fd, mhandle);
  close(fd);
  return result;
}

ncclResult_t tt_proxy_direct_register(struct tt_proxy_conn *conn, void **mhandle)
{
  const struct tt_proxy_direct *direct = &conn->config.direct;
  if (direct->dmabuf) {
    ncclResult_t result = register_dmabuf(conn, mhandle);
    if (result == ncclSuccess || !direct->cuda) return result;
    TT_INFO(TT_NET, "%s for rank %d: no dma-buf, but addresses: %s", conn->label, conn->config.peer,
            tt_log_thread_error());
  }
  return tt_net_reg_mr(conn->proxy->net, conn->wire->comm, direct->memory, direct->bytes, NCCL_PTR_CUDA, mhandle);
}

ncclResult_t tt_proxy_direct_flush(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer)
{
  const struct tt_proxy_direct *direct = &conn->config.direct;
  if (direct->own) {
    transfer->request = NULL;
    return direct->device->flush(direct->context);
  }
  return tt_net_iflush(conn->proxy->net, conn->wire->comm, 1, &transfer->data, &transfer->size, &transfer->mhandle,
                       &transfer->request);
}
