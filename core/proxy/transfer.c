/* Slots on their way: from the FIFO to the plugin and back.
 *
 * Sending: a slot that the device filled (step < tail) is handed to the plugin; when its request is complete the slot
 * is the device's again (head). Receiving: as many receives as the FIFO has free slots are posted ahead; when one is
 * complete its slot is published (tail). Requests are tested in the order of their steps, since the FIFO moves in
 * order; one that completed early stays valid until it is tested. */
#include "proxy/internal.h"

#include <string.h>
#include "base/check.h"

/* What is needed of steps is their order and distance, which survive a wrap. */
static bool before(uint64_t a, uint64_t b)
{
  return (int64_t)(a - b) < 0;
}

static ncclResult_t bad(const struct tt_proxy_conn *conn, uint64_t step, const char *what, size_t bytes, size_t limit)
{
  return TT_FAIL(ncclInternalError, "rank %d %s rank %d via %s: step %llu %s (%zu bytes, limit %zu)", conn->proxy->rank,
                 conn->config.send ? "to" : "from", conn->config.peer, conn->label, (unsigned long long)step, what,
                 bytes, limit);
}

void tt_proxy_transfer_clear(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer)
{
  if (transfer->registered) tt_net_dereg_mr(conn->proxy->net, conn->config.comm, transfer->mhandle);
  memset(transfer, 0, sizeof(*transfer));
}

/* Where the message of `step` lies, or goes to. */
static ncclResult_t prepare(struct tt_proxy_conn *conn, uint64_t step, int protocol, struct tt_proxy_transfer *transfer)
{
  const struct tt_conn *device = conn->config.conn;
  unsigned slot = (unsigned)(step % TT_SLOTS);
  const struct tt_conn_fifo *entry = &device->fifo[slot];
  size_t slot_bytes = device->slot_bytes[protocol], limit = slot_bytes;
  unsigned char *data = device->slots[protocol] + slot * slot_bytes;
  int32_t mode = entry->mode, offset = entry->offset;
  if (mode == TT_FIFO_OFFSET) {
    if (offset < 0 || (size_t)offset >= TT_SLOTS * slot_bytes)
      return bad(conn, step, "lies outside its buffer", (size_t)(uint32_t)offset, TT_SLOTS * slot_bytes);
    data = device->slots[protocol] + offset;
    limit = TT_SLOTS * slot_bytes - (size_t)offset;
  } else if (mode == TT_FIFO_POINTER) {
    data = entry->pointer;
    limit = conn->config.max_bytes;
  } else if (mode != TT_FIFO_NORMAL) {
    return bad(conn, step, "has a mode that does not exist", (size_t)(uint32_t)mode, TT_FIFO_POINTER);
  }
  limit = TT_MIN(limit, conn->config.max_bytes);
  bool own_place = mode == TT_FIFO_NORMAL && !conn->config.send;
  int64_t size = own_place ? (int64_t)slot_bytes : entry->size;
  if (size < TT_SLOT_HEADER || (uint64_t)size > limit) return bad(conn, step, "does not fit", (size_t)size, limit);
  transfer->protocol = protocol;
  transfer->data = data;
  transfer->bytes = (size_t)size;
  transfer->mhandle = conn->mhandles[protocol];
  transfer->registered = false;
  transfer->request = NULL;
  if (mode == TT_FIFO_POINTER) {
    TT_TRY(tt_net_reg_mr(conn->proxy->net, conn->config.comm, data, (size_t)size, NCCL_PTR_HOST, &transfer->mhandle));
    transfer->registered = true;
  }
  transfer->prepared = true;
  return ncclSuccess;
}

/* The network's own sentence is this thread's last error. */
static ncclResult_t failed(const struct tt_proxy_conn *conn, ncclResult_t result)
{
  return TT_FAIL(result, "rank %d: %s rank %d via %s failed: %s", conn->proxy->rank,
                 conn->config.send ? "sending to" : "receiving from", conn->config.peer, conn->label,
                 tt_log_thread_error());
}

static ncclResult_t post(struct tt_proxy_conn *conn, struct tt_proxy_transfer *t)
{
  struct tt_net *net = conn->proxy->net;
  int tag = conn->config.tag;
  ncclResult_t result;
  if (conn->config.send)
    result = tt_net_isend(net, conn->config.comm, t->data, t->bytes, tag, t->mhandle, NULL, &t->request);
  else {
    t->request = NULL;
    result = tt_net_irecv(net, conn->config.comm, 1, &t->data, &t->bytes, &tag, &t->mhandle, NULL, &t->request);
  }
  if (result != ncclSuccess) return failed(conn, result);
  return ncclSuccess;
}

/* Posts while the FIFO has work and the plugin takes it. */
static ncclResult_t post_all(struct tt_proxy_conn *conn, bool *moved)
{
  const struct tt_conn *device = conn->config.conn;
  uint64_t limit;
  if (conn->config.send)
    limit = atomic_load_explicit(device->tail, memory_order_acquire);
  else
    limit = atomic_load_explicit(device->head, memory_order_acquire) + TT_SLOTS;
  while (conn->posted != conn->expected && before(conn->posted, limit) && conn->posted - conn->done < TT_SLOTS) {
    struct tt_proxy_transfer *transfer = &conn->transfers[conn->posted % TT_SLOTS];
    struct tt_proxy_operation *operation = &conn->operations[0];
    if (!transfer->prepared) TT_TRY(prepare(conn, conn->posted, operation->protocol, transfer));
    TT_TRY(post(conn, transfer));
    if (!transfer->request) break;
    *moved = true;
    if (++conn->posted == operation->end) memmove(operation, operation + 1, --conn->noperations * sizeof(*operation));
  }
  return ncclSuccess;
}

/* A message has come. That it is the right one is the executor's to check, which knows what it expects and can name
 * both sides of a disagreement; it must only be a message. */
static ncclResult_t check_message(const struct tt_proxy_conn *conn, const struct tt_proxy_transfer *transfer, int size)
{
  if (size >= TT_SLOT_HEADER && (size_t)size <= transfer->bytes) return ncclSuccess;
  return bad(conn, conn->done, "received a message of the wrong size", (size_t)size, transfer->bytes);
}

static ncclResult_t complete_all(struct tt_proxy_conn *conn, bool *moved)
{
  const struct tt_conn *device = conn->config.conn;
  while (conn->done != conn->posted) {
    unsigned slot = (unsigned)(conn->done % TT_SLOTS);
    struct tt_proxy_transfer *transfer = &conn->transfers[slot];
    int done = 0, size = 0;
    ncclResult_t result = tt_net_test(conn->proxy->net, transfer->request, &done, &size);
    if (result != ncclSuccess) return failed(conn, result);
    if (!done) break;
    if (!conn->config.send) {
      TT_TRY(check_message(conn, transfer, size));
      device->fifo[slot].size = size;
    }
    tt_proxy_transfer_clear(conn, transfer);
    conn->done++;
    *moved = true;
    atomic_store_explicit(conn->config.send ? device->head : device->tail, conn->done, memory_order_release);
  }
  return ncclSuccess;
}

ncclResult_t tt_proxy_conn_advance(struct tt_proxy_conn *conn, bool *moved)
{
  TT_TRY(post_all(conn, moved));
  TT_TRY(complete_all(conn, moved));
  return ncclSuccess;
}
