/* Connections that are free running: nobody announces what devices will move, since graphs repeat works without a call.
 *
 * With slots of its own such a connection always has work. The sending end needs no more than its counter. The
 * receiving end has receives posted for all free slots, more than will ever come, so when the other end closes there
 * are always some left, and the network may call that a failure. Whether it is one shows when a work waits for a
 * message: so it is kept, and told to who asks (tt_proxy_lost).
 *
 * With slots of a pool all this would hold units for messages that never come. So the device asks: a work writes,
 * before it waits, up to which step it will move. From there on it is as with works that are announced. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/timer.h"
#include "proxy/copy.h"
#include "proxy/internal.h"

/* How long nothing comes of what was posted before a receive was refused, until nothing more is taken to come. */
#define REFUSED_NS 1000000000u
#define MOST_LOOKS 64 /* at idle connections, each time that something moves */

/* One operation without an end: it would end at the step before its first. */
ncclResult_t tt_proxy_running_prepare(struct tt_proxy_conn *conn)
{
  int protocol = -1;
  conn->asks = conn->config.pool_units != 0;
  if (conn->config.link && !conn->asks)
    return TT_FAIL(ncclInternalError,
                   "%s to rank %d shares a network connection: with slots of its own it cannot be "
                   "free running",
                   conn->label, conn->config.peer);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (!conn->config.conn->slots[p]) continue;
    if (protocol >= 0)
      return TT_FAIL(ncclInternalError, "%s to rank %d has slots of several protocols: it cannot be free running",
                     conn->label, conn->config.peer);
    protocol = p;
  }
  if (protocol < 0) return TT_FAIL(ncclInternalError, "%s to rank %d has no slots", conn->label, conn->config.peer);
  TT_TRY(TT_CALLOC(&conn->operations, 1));
  conn->capacity = conn->noperations = 1;
  conn->operations[0] = (struct tt_proxy_operation){.protocol = protocol, .end = conn->done - 1};
  if (conn->asks)
    atomic_store(tt_conn_asked(conn->config.conn), conn->expected);
  else
    conn->expected = conn->done - 1;
  return ncclSuccess;
}

void tt_proxy_running_start(struct tt_proxy_conn *conn)
{
  pthread_mutex_lock(&conn->proxy->lock);
  if (conn->asks)
    tt_proxy_conn_idle(conn, true);
  else
    tt_proxy_conn_wake(conn);
  atomic_fetch_add(&conn->proxy->running, 1);
  pthread_mutex_unlock(&conn->proxy->lock);
}

bool tt_proxy_running_hear(struct tt_proxy_conn *conn)
{
  uint64_t end = atomic_load_explicit(tt_conn_asked(conn->config.conn), memory_order_acquire);
  if (!tt_proxy_before(conn->expected, end)) return false;
  conn->expected = end;
  return true;
}

/* There may be thousands of them, and those at work wait for each look; while nothing moves nobody does. */
void tt_proxy_running_hear_some(struct tt_proxy *proxy)
{
  for (int looks = proxy->moved ? TT_MIN(proxy->nidle, MOST_LOOKS) : proxy->nidle; looks > 0; looks--) {
    struct tt_proxy_conn *conn = proxy->idle;
    tt_proxy_conn_idle(conn, false);
    if (tt_proxy_running_hear(conn))
      tt_proxy_conn_wake(conn);
    else
      tt_proxy_conn_idle(conn, true);
  }
}

static void lose(struct tt_proxy_conn *conn, ncclResult_t result)
{
  conn->lost = result;
  conn->lost_text = strdup(tt_log_thread_error());
  conn->came_ns = tt_timer_ns();
}

ncclResult_t tt_proxy_running_receive(struct tt_proxy_conn *conn, bool *moved)
{
  bool came = false, lost = conn->lost != ncclSuccess;
  if (lost && !conn->refused && !tt_proxy_conn_flushes(conn)) return ncclSuccess;
  tt_log_hush(true);
  ncclResult_t result = tt_proxy_conn_advance(conn, &came);
  tt_log_hush(false);
  if (!lost && result != ncclSuccess) lose(conn, result);
  if (lost && came) conn->came_ns = tt_timer_ns();
  *moved |= came;
  return ncclSuccess;
}

uint64_t tt_proxy_running_filled(const struct tt_proxy_conn *conn, uint64_t sent)
{
  if (conn->lines.on) return tt_proxy_lines_begun(conn, sent);
  return atomic_load_explicit(conn->config.conn->tail, memory_order_acquire);
}

uint64_t tt_proxy_running_end(const struct tt_proxy_conn *conn)
{
  if (conn->asks) return conn->expected;
  return conn->config.send ? tt_proxy_running_filled(conn, conn->done) : conn->posted;
}

static bool is_busy(const struct tt_proxy_conn *conn)
{
  return conn->config.free_running && conn->config.send && tt_proxy_running_filled(conn, conn->done) != conn->done;
}

int tt_proxy_running_busy(const struct tt_proxy *proxy)
{
  int busy = 0;
  for (const struct tt_proxy_conn *conn = proxy->active; conn; conn = conn->active_next) busy += is_busy(conn);
  return busy;
}

bool tt_proxy_runs(struct tt_proxy *proxy)
{
  return atomic_load(&proxy->running) > 0;
}

static int unsent_peer(const struct tt_proxy *proxy)
{
  for (const struct tt_proxy_conn *conn = proxy->active; conn; conn = conn->active_next)
    if (is_busy(conn)) return conn->config.peer;
  return tt_proxy_copies_peer(proxy);
}

bool tt_proxy_look_unsent(struct tt_proxy *proxy, struct tt_proxy_unsent *unsent)
{
  *unsent = (struct tt_proxy_unsent){.peer = -1};
  if (!tt_proxy_try_lock(proxy)) return false;
  *unsent = (struct tt_proxy_unsent){.peer = unsent_peer(proxy), .moves = proxy->moves};
  pthread_mutex_unlock(&proxy->lock);
  return true;
}

bool tt_proxy_quiet(struct tt_proxy *proxy)
{
  struct tt_proxy_unsent unsent;
  return tt_proxy_look_unsent(proxy, &unsent) && unsent.peer < 0;
}

/* What has come is shown first, as it is where nothing is flushed. */
static bool is_lost(const struct tt_proxy_conn *conn)
{
  if (conn->lost == ncclSuccess || tt_proxy_conn_flushes(conn)) return false;
  return !conn->refused || conn->done == conn->posted || tt_timer_ns() - conn->came_ns > REFUSED_NS;
}

ncclResult_t tt_proxy_lost(struct tt_proxy *proxy, int peer)
{
  ncclResult_t result = ncclSuccess;
  if (!tt_proxy_try_lock(proxy)) return ncclSuccess;
  for (const struct tt_proxy_conn *conn = proxy->active; conn && result == ncclSuccess; conn = conn->active_next)
    if (is_lost(conn) && (peer < 0 || conn->config.peer == peer))
      result = TT_FAIL(conn->lost, "%s", conn->lost_text ? conn->lost_text : "receiving failed");
  pthread_mutex_unlock(&proxy->lock);
  return result;
}
