/* Slots on their way: from the FIFO to the plugin and back.
 *
 * Sending: a slot that the device filled (step < tail) is handed to the plugin; when its request is complete the slot
 * is the device's again (head). Receiving: as many receives as the FIFO has free slots are posted ahead; when one is
 * complete its slot is published (tail). Requests are tested in the order of their steps, since the FIFO moves in
 * order; one that completed early stays valid until it is tested. */
#include "proxy/internal.h"

#include <string.h>
#include "base/check.h"
#include "base/timer.h"

static ncclResult_t bad(const struct tt_proxy_conn *conn, uint64_t step, const char *what, size_t bytes, size_t limit)
{
  return TT_FAIL(ncclInternalError, "rank %d %s rank %d via %s: step %llu %s (%zu bytes, limit %zu)", conn->proxy->rank,
                 conn->config.send ? "to" : "from", conn->config.peer, conn->label, (unsigned long long)step, what,
                 bytes, limit);
}

void tt_proxy_transfer_clear(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer)
{
  if (transfer->registered) tt_net_dereg_mr(conn->proxy->net, conn->wire->comm, transfer->mhandle);
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
  } else if (mode == TT_FIFO_POINTER && !conn->config.foreign && !conn->config.direct.memory) {
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
    TT_TRY(tt_net_reg_mr(conn->proxy->net, conn->wire->comm, data, (size_t)size, NCCL_PTR_HOST, &transfer->mhandle));
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

void tt_proxy_conn_posted(struct tt_proxy_conn *conn)
{
  struct tt_proxy_operation *operation = &conn->operations[0];
  if (conn->posted % TT_SLOTS == 0) conn->begun_ns = tt_timer_ns();
  conn->figures.open += conn->posted + 1 - conn->done;
  if (++conn->posted == operation->end) memmove(operation, operation + 1, --conn->noperations * sizeof(*operation));
}

static ncclResult_t post(struct tt_proxy_conn *conn, struct tt_proxy_transfer *t)
{
  struct tt_net *net = conn->proxy->net;
  int tag = conn->config.tag;
  ncclResult_t result;
  if (conn->config.send)
    result = tt_net_isend(net, conn->wire->comm, t->data, t->bytes, tag, t->mhandle, NULL, &t->request);
  else {
    t->request = NULL;
    result = tt_net_irecv(net, conn->wire->comm, 1, &t->data, &t->bytes, &tag, &t->mhandle, NULL, &t->request);
  }
  if (result != ncclSuccess) return failed(conn, result);
  return ncclSuccess;
}

/* Up to which step the device's counter allows to post. */
static uint64_t allowed(struct tt_proxy_conn *conn)
{
  const struct tt_conn *device = conn->config.conn;
  if (conn->config.send && conn->lines.on) return tt_proxy_lines_filled(conn);
  if (conn->config.send) return atomic_load_explicit(device->tail, memory_order_acquire);
  return atomic_load_explicit(device->head, memory_order_acquire) + TT_SLOTS;
}

/* The message of `step` lies where the rank says that it is sent for. */
static ncclResult_t prepare_found(struct tt_proxy_conn *conn, uint64_t step, int protocol,
                                  struct tt_proxy_transfer *transfer)
{
  struct tt_proxy_found found;
  size_t limit = TT_MIN(conn->config.conn->slot_bytes[protocol], conn->config.max_bytes);
  TT_TRY(conn->config.find(conn->config.find_context, step, &found));
  if (found.bytes < TT_SLOT_HEADER || found.bytes > limit) return bad(conn, step, "does not fit", found.bytes, limit);
  TT_TRY(tt_proxy_link_register(conn->wire, found.slab, &transfer->mhandle));
  transfer->protocol = protocol;
  transfer->data = found.data;
  transfer->bytes = found.bytes;
  transfer->prepared = true;
  return ncclSuccess;
}

/* Makes the next step's transfer ready to be posted. */
static ncclResult_t prepare_next(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer, bool *ready)
{
  *ready = transfer->prepared;
  if (*ready) return ncclSuccess;
  if (conn->pool) return tt_proxy_pooled_prepare(conn, conn->posted, transfer, ready);
  int protocol = conn->operations[0].protocol;
  if (conn->lines.on)
    TT_TRY(tt_proxy_lines_prepare(conn, conn->posted, transfer));
  else
    TT_TRY(conn->config.find ? prepare_found(conn, conn->posted, protocol, transfer)
                             : prepare(conn, conn->posted, protocol, transfer));
  *ready = true;
  return ncclSuccess;
}

/* How many of the requests that a comm takes at a time, by the ABI, are this connection's: one at least, so that none
 * of those that share the comm waits for another. */
static uint64_t requests(const struct tt_proxy_conn *conn)
{
  int most = conn->lines.on ? conn->lines.ahead : TT_SLOTS;
  return (uint64_t)TT_MAX(1, TT_MIN(most, conn->wire->requests / TT_MAX(conn->wire->conns, 1)));
}

/* Posts while the FIFO has work and the plugin takes it. */
static ncclResult_t post_all(struct tt_proxy_conn *conn, bool *moved)
{
  uint64_t limit = allowed(conn);
  if (conn->pool && conn->config.send) TT_TRY(tt_proxy_pooled_grant(conn, moved));
  if (conn->pool && !conn->config.send) tt_proxy_pooled_free(conn, limit - TT_SLOTS, moved);
  while (conn->posted != conn->expected && tt_proxy_before(conn->posted, limit) &&
         conn->posted - conn->done < requests(conn)) {
    struct tt_proxy_transfer *transfer = &conn->transfers[conn->posted % TT_SLOTS];
    bool ready;
    TT_TRY(prepare_next(conn, transfer, &ready));
    if (!ready) break;
    if (tt_proxy_group_fits(conn)) {
      tt_proxy_group_offer(conn);
      break;
    }
    TT_TRY(post(conn, transfer));
    if (!transfer->request) break;
    *moved = true;
    tt_proxy_conn_posted(conn);
  }
  return ncclSuccess;
}

/* Whether messages are flushed between their coming and their publication. */
static bool is_flushed(const struct tt_proxy_conn *conn)
{
  return !conn->config.send && conn->config.direct.flush;
}

/* A message has come. That it is the right one is the executor's to check, which knows what it expects and can name
 * both sides of a disagreement; it must only be a message. */
static ncclResult_t check_message(const struct tt_proxy_conn *conn, const struct tt_proxy_transfer *transfer, int size)
{
  if (size >= TT_SLOT_HEADER && (size_t)size <= transfer->bytes) return ncclSuccess;
  return bad(conn, is_flushed(conn) ? conn->received : conn->done, "received a message of the wrong size", (size_t)size,
             transfer->bytes);
}

static ncclResult_t test(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer, int *done, int *size)
{
  ncclResult_t result = transfer->group ? tt_proxy_group_test(conn, transfer, done, size)
                                        : tt_net_test(conn->proxy->net, transfer->request, done, size);
  if (result != ncclSuccess) return failed(conn, result);
  return *done && !conn->config.send ? check_message(conn, transfer, *size) : ncclSuccess;
}

/* Begins to flush what has come, without waiting for earlier flushes. */
static ncclResult_t flush_all(struct tt_proxy_conn *conn, bool *moved)
{
  while (conn->received != conn->posted) {
    struct tt_proxy_transfer *transfer = &conn->transfers[conn->received % TT_SLOTS];
    int done = 0;
    TT_TRY(test(conn, transfer, &done, &transfer->size));
    if (!done) break;
    ncclResult_t result = tt_proxy_direct_flush(conn, transfer);
    if (result != ncclSuccess) return failed(conn, result);
    conn->received++;
    *moved = true;
  }
  return ncclSuccess;
}

static ncclResult_t test_flush(struct tt_proxy_conn *conn, const struct tt_proxy_transfer *transfer, int *done,
                               int *size)
{
  *done = conn->done != conn->received;
  *size = transfer->size;
  if (!*done || !transfer->request) return ncclSuccess;
  ncclResult_t result = tt_net_test(conn->proxy->net, transfer->request, done, NULL);
  if (result == ncclSuccess) return ncclSuccess;
  conn->received = conn->done; /* nothing that came later is waited for */
  return failed(conn, result);
}

bool tt_proxy_conn_flushes(const struct tt_proxy_conn *conn)
{
  return is_flushed(conn) && conn->done != conn->received;
}

/* Step conn->done is complete. At most TT_SLOTS are under way, so one that is timed has ended before the next begins.
 */
static void count_step(struct tt_proxy_conn *conn, const struct tt_proxy_transfer *transfer, int size)
{
  struct tt_proxy_figures *figures = &conn->figures;
  figures->steps++;
  figures->bytes += conn->config.send ? transfer->bytes : (uint64_t)size;
  figures->room +=
      conn->pool ? tt_proxy_pool_unit_bytes(conn->pool) : conn->config.conn->slot_bytes[transfer->protocol];
  if (conn->done % TT_SLOTS != 0) return;
  uint64_t ns = tt_timer_ns() - conn->begun_ns;
  figures->timed++;
  figures->ns += ns;
  figures->most_ns = TT_MAX(figures->most_ns, ns);
}

/* Whether what was posted is still tested. */
static bool may_come(const struct tt_proxy_conn *conn)
{
  return conn->lost == ncclSuccess || conn->refused;
}

static ncclResult_t complete_all(struct tt_proxy_conn *conn, bool *moved)
{
  const struct tt_conn *device = conn->config.conn;
  const bool flushed = is_flushed(conn);
  if (flushed && may_come(conn)) TT_TRY(flush_all(conn, moved));
  while (conn->done != conn->posted) {
    unsigned slot = (unsigned)(conn->done % TT_SLOTS);
    struct tt_proxy_transfer *transfer = &conn->transfers[slot];
    int done = 0, size = 0;
    TT_TRY(flushed ? test_flush(conn, transfer, &done, &size) : test(conn, transfer, &done, &size));
    if (!done) break;
    count_step(conn, transfer, size);
    if (!conn->config.send && conn->lines.on) TT_TRY(tt_proxy_lines_publish(conn, conn->done, transfer->data, size));
    tt_proxy_group_leave(transfer);
    tt_proxy_transfer_clear(conn, transfer);
    if (conn->pool)
      tt_proxy_pooled_complete(conn, conn->done, size);
    else if (!conn->config.send && !conn->lines.on)
      device->fifo[slot].size = size;
    conn->done++;
    *moved = true;
    if (!conn->config.send)
      atomic_store_explicit(device->tail, conn->done, memory_order_release);
    else if (!conn->pool)
      atomic_store_explicit(device->head, conn->done, memory_order_release);
  }
  return ncclSuccess;
}

/* What was posted before a network took no more receives is looked at all the same: the other end may have left after
 * its last message, of which parts are on their way. Where works are announced each receive is of a message that is
 * needed, so that its refusal is a failure at once. */
ncclResult_t tt_proxy_conn_advance(struct tt_proxy_conn *conn, bool *moved)
{
  pthread_mutex_lock(&conn->wire->lock);
  ncclResult_t result = conn->lost == ncclSuccess ? post_all(conn, moved) : ncclSuccess;
  if (result != ncclSuccess) conn->refused = conn->config.free_running && !conn->config.send;
  if (result == ncclSuccess || conn->refused) {
    ncclResult_t completed = complete_all(conn, moved);
    if (completed != ncclSuccess) conn->refused = false;
    if (result == ncclSuccess) result = completed;
  }
  pthread_mutex_unlock(&conn->wire->lock);
  return result;
}
