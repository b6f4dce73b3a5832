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
  conn->config = (struct tt_proxy_conn_config){.send = true, .conn = config->conn, .peer = config->peer};
  snprintf(conn->label, sizeof(conn->label), "%s", config->label);
  conn->config.label = conn->label;
  conn->posted = conn->done = conn->expected = conn->rung = config->conn->step;
  conn->desk = config->desk;
  conn->relay = config->relay;
  conn->relay_bell = config->bell;
  tt_proxy_conn_add(conn);
  *out = conn;
  return ncclSuccess;
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

ncclResult_t tt_proxy_remote_advance(struct tt_proxy_conn *conn, bool *moved)
{
  const struct tt_conn *device = conn->config.conn;
  /* In this order: the head was at most the tail then. */
  uint64_t head = atomic_load_explicit(device->head, memory_order_acquire);
  uint64_t tail = atomic_load_explicit(device->tail, memory_order_acquire);
  bool told = announce(conn);
  if (told || tail != conn->rung) {
    conn->rung = tail;
    tt_doorbell_ring(conn->relay_bell);
    *moved = true;
  }
  if (tt_proxy_before(head, conn->done) || tt_proxy_before(tail, head))
    return TT_FAIL(ncclRemoteError,
                   "rank %d, through which rank %d sends to rank %d via %s, claims to have sent %llu "
                   "steps after the %llu that were filled",
                   conn->relay, conn->proxy->rank, conn->config.peer, conn->label, (unsigned long long)(head - tail),
                   (unsigned long long)tail);
  *moved |= head != conn->done;
  conn->done = head;
  conn->posted = tail;
  if (conn->done != conn->expected && (atomic_load_explicit(&conn->desk->state, memory_order_acquire) & TT_DESK_FAILED))
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
