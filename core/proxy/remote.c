/* See remote.h. */
#include "proxy/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "proxy/internal.h"

ncclResult_t tt_proxy_remote_create(struct tt_proxy *proxy, const struct tt_proxy_remote_config *config,
                                    struct tt_proxy_conn **out)
{
  struct tt_proxy_conn *conn;
  *out = NULL;
  TT_TRY(TT_CALLOC(&conn, 1));
  conn->proxy = proxy;
  conn->config = (struct tt_proxy_conn_config){.send = true,
                                               .conn = config->conn,
                                               .peer = config->peer,
                                               .pool_units = config->pool_units,
                                               .device = config->device,
                                               .map = config->map,
                                               .free_running = config->free_running};
  snprintf(conn->label, sizeof(conn->label), "%s", config->label);
  conn->config.label = conn->label;
  conn->posted = conn->done = conn->expected = conn->rung = config->conn->step;
  conn->granted = conn->freed = conn->done;
  conn->shm = config->shm;
  conn->desk = config->desk;
  conn->relay = config->relay;
  conn->relay_bell = config->bell;
  pthread_mutex_lock(&proxy->lock);
  ncclResult_t result = tt_proxy_conn_find_pool(conn);
  pthread_mutex_unlock(&proxy->lock);
  conn->lines.on = tt_proxy_lines_wanted(&conn->config);
  if (result == ncclSuccess && config->free_running) result = tt_proxy_running_prepare(conn);
  if (result != ncclSuccess) {
    if (conn->pool) tt_proxy_pool_part(conn->pool);
    free(conn);
    return result;
  }
  if (conn->pool) atomic_store(config->conn->head, conn->granted - TT_SLOTS);
  tt_proxy_conn_add(conn);
  if (config->free_running) tt_proxy_running_start(conn);
  *out = conn;
  return ncclSuccess;
}

void tt_proxy_remote_lose(struct tt_proxy_conn *conn)
{
  if (!conn->pool) return;
  pthread_mutex_lock(&conn->proxy->lock);
  for (int i = 0; i < TT_SLOTS; i++) {
    if (!conn->units[i]) continue;
    tt_proxy_slab_lose(conn->units[i]->slab);
    conn->units[i] = NULL;
    conn->held--;
  }
  pthread_mutex_unlock(&conn->proxy->lock);
}

ncclResult_t tt_proxy_desk_failure(const struct tt_proxy_desk *desk, int rank, int relay, int peer, const char *label)
{
  char why[TT_DESK_TEXT];
  memcpy(why, desk->why, sizeof(why));
  why[sizeof(why) - 1] = '\0';
  ncclResult_t result = (ncclResult_t)desk->result;
  if (result <= ncclSuccess || result >= ncclNumResults) result = ncclRemoteError;
  return TT_FAIL(result, "rank %d: sending to rank %d via %s, through rank %d, failed: %s", rank, peer, label, relay,
                 why);
}

/* Tells the relay of operations, as far as its desk has room. */
static bool announce(struct tt_proxy_conn *conn)
{
  struct tt_proxy_desk *desk = conn->desk;
  uint64_t announced = atomic_load_explicit(&desk->announced, memory_order_relaxed);
  uint64_t before = announced, taken = atomic_load_explicit(&desk->taken, memory_order_acquire);
  size_t told = 0;
  for (; told < conn->noperations && announced - taken < TT_DESK_OPERATIONS; told++, announced++)
    desk->operations[announced % TT_DESK_OPERATIONS] =
        (struct tt_desk_operation){.end = conn->operations[told].end, .protocol = conn->operations[told].protocol};
  if (announced == before) return false;
  conn->noperations -= told;
  memmove(conn->operations, conn->operations + told, conn->noperations * sizeof(*conn->operations));
  atomic_store_explicit(&desk->announced, announced, memory_order_release);
  return true;
}

/* Passes on what the device has filled of a pool's units. */
static ncclResult_t pass_on(struct tt_proxy_conn *conn, uint64_t tail)
{
  size_t room = tt_proxy_pool_unit_bytes(conn->pool), bytes;
  for (uint64_t step = conn->rung; step != tail; step++) {
    const struct tt_proxy_unit *unit = conn->units[step % TT_SLOTS];
    int64_t size = conn->config.conn->fifo[step % TT_SLOTS].size;
    if (!unit || size < TT_SLOT_HEADER || (uint64_t)size > room)
      return TT_FAIL(ncclInternalError, "rank %d to rank %d via %s: step %llu does not fit (%lld bytes, limit %zu)",
                     conn->proxy->rank, conn->config.peer, conn->label, (unsigned long long)step, (long long)size,
                     room);
    const unsigned char *slab = tt_proxy_slab_memory(unit->slab, &bytes);
    conn->desk->units[step % TT_SLOTS] = (struct tt_desk_unit){.slab = tt_proxy_slab_offset(unit->slab),
                                                               .slab_bytes = bytes,
                                                               .at = (uint64_t)(unit->data - slab),
                                                               .bytes = (uint64_t)size};
  }
  atomic_store_explicit(&conn->desk->filled, tail, memory_order_release);
  return ncclSuccess;
}

/* The relay has sent the steps before `head`. */
static void complete(struct tt_proxy_conn *conn, uint64_t head)
{
  for (; conn->pool && conn->done != head; conn->done++) tt_proxy_pooled_complete(conn, conn->done, 0);
  conn->done = head;
}

static ncclResult_t lies(const struct tt_proxy_conn *conn, uint64_t head, uint64_t tail)
{
  return TT_FAIL(
      ncclRemoteError,
      "rank %d, through which rank %d sends to rank %d via %s, claims to have sent the steps before %llu, of "
      "%llu that were filled",
      conn->relay, conn->proxy->rank, conn->config.peer, conn->label, (unsigned long long)head,
      (unsigned long long)tail);
}

/* The step before which the relay has sent all. */
static uint64_t sent(const struct tt_proxy_conn *conn)
{
  return atomic_load_explicit(conn->pool ? &conn->desk->sent : conn->config.conn->head, memory_order_acquire);
}

static bool has_failed(const struct tt_proxy_conn *conn)
{
  return atomic_load_explicit(&conn->desk->state, memory_order_acquire) & TT_DESK_FAILED;
}

ncclResult_t tt_proxy_remote_advance(struct tt_proxy_conn *conn, bool *moved)
{
  const struct tt_conn *device = conn->config.conn;
  if (conn->pool) TT_TRY(tt_proxy_pooled_grant(conn, moved));
  /* In this order: the head was at most the tail then. */
  uint64_t head = sent(conn);
  uint64_t tail = conn->config.free_running ? tt_proxy_running_filled(conn, head)
                                            : atomic_load_explicit(device->tail, memory_order_acquire);
  bool told = !conn->config.free_running && announce(conn);
  if (conn->pool && tail != conn->rung) TT_TRY(pass_on(conn, tail));
  if (told || tail != conn->rung) {
    conn->rung = tail;
    tt_doorbell_ring(conn->relay_bell);
    *moved = true;
  }
  if (tt_proxy_before(head, conn->done) || tt_proxy_before(tail, head)) return lies(conn, head, tail);
  *moved |= head != conn->done;
  complete(conn, head);
  conn->posted = tail;
  /* What it sent before it failed may be all that is expected. */
  if (conn->done != conn->expected && has_failed(conn) && sent(conn) == head)
    return tt_proxy_desk_failure(conn->desk, conn->proxy->rank, conn->relay, conn->config.peer, conn->label);
  return ncclSuccess;
}

ncclResult_t tt_proxy_desk_take(struct tt_proxy_desk *desk, struct tt_desk_reader *reader, struct tt_proxy_conn *conn,
                                bool *more)
{
  uint64_t announced = atomic_load_explicit(&desk->announced, memory_order_acquire);
  *more = announced != reader->taken;
  if (announced - reader->taken > TT_DESK_OPERATIONS)
    return TT_FAIL(ncclRemoteError, "%s to rank %d: the sender announces more operations than there is room for",
                   conn->label, conn->config.peer);
  for (; reader->taken != announced; reader->taken++) {
    struct tt_desk_operation operation = desk->operations[reader->taken % TT_DESK_OPERATIONS];
    if (!tt_proxy_before(reader->expected, operation.end))
      return TT_FAIL(ncclRemoteError, "%s to rank %d: the sender announces an operation that ends where it begins",
                     conn->label, conn->config.peer);
    TT_TRY(tt_proxy_expect(conn, operation.protocol, operation.end - reader->expected));
    reader->expected = operation.end;
  }
  if (*more) atomic_store_explicit(&desk->taken, announced, memory_order_release);
  return ncclSuccess;
}

void tt_proxy_desk_fail(struct tt_proxy_desk *desk, ncclResult_t result, const char *why)
{
  if (atomic_load(&desk->state) & TT_DESK_FAILED) return;
  desk->result = (int32_t)result;
  snprintf(desk->why, sizeof(desk->why), "%s", why);
  atomic_fetch_or(&desk->state, TT_DESK_FAILED);
}
