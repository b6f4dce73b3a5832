/* The engine: its connections, and one pass over those that have work. */
#include "proxy/internal.h"
#include "proxy/copy.h"
#include "proxy/reduce.h"

#include <stdlib.h>
#include <unistd.h>
#include "base/check.h"
#include "base/timer.h"

/* How often, and with what pause, a report tries to look. */
#define LOOKS 20
#define LOOK_USEC 100

ncclResult_t tt_proxy_create(struct tt_net *net, int rank, struct tt_proxy **out)
{
  *out = NULL;
  struct tt_proxy *proxy;
  TT_TRY(TT_CALLOC(&proxy, 1));
  proxy->net = net;
  proxy->rank = rank;
  proxy->active_end = &proxy->active;
  proxy->idle_end = &proxy->idle;
  pthread_mutex_init(&proxy->lock, NULL);
  *out = proxy;
  return ncclSuccess;
}

void tt_proxy_destroy(struct tt_proxy *proxy)
{
  if (!proxy) return;
  while (proxy->conns) tt_proxy_conn_destroy(proxy->conns);
  while (proxy->reduces) tt_proxy_reduce_destroy(proxy->reduces);
  while (proxy->copies) tt_proxy_copy_destroy(proxy->copies);
  while (proxy->pools) {
    struct tt_proxy_pool_entry *next = proxy->pools->next;
    tt_proxy_pool_destroy(proxy->pools->pool);
    free(proxy->pools);
    proxy->pools = next;
  }
  pthread_mutex_destroy(&proxy->lock);
  free(proxy);
}

static ncclResult_t advance(struct tt_proxy_conn *conn, bool *moved)
{
  if (conn->desk) return tt_proxy_remote_advance(conn, moved);
  if (conn->config.free_running && !conn->config.send) return tt_proxy_running_receive(conn, moved);
  return tt_proxy_conn_advance(conn, moved);
}

static ncclResult_t serve(struct tt_proxy_conn *conn, bool *moved)
{
  if (conn->asks) tt_proxy_running_hear(conn);
  TT_TRY(advance(conn, moved));
  if (conn->done == conn->expected && conn->held == 0) tt_proxy_conn_rest(conn);
  return ncclSuccess;
}

ncclResult_t tt_proxy_progress(struct tt_proxy *proxy, bool *moved, bool *idle)
{
  *moved = false;
  pthread_mutex_lock(&proxy->lock);
  tt_proxy_running_hear_some(proxy);
  for (struct tt_proxy_conn *conn = proxy->active, *next; conn && proxy->error == ncclSuccess; conn = next) {
    next = conn->active_next;
    proxy->error = serve(conn, moved);
  }
  if (proxy->listed && proxy->error == ncclSuccess) proxy->error = tt_proxy_groups_post(proxy, moved);
  if (proxy->nactive > 0 && proxy->error == ncclSuccess) proxy->error = tt_proxy_reduces_progress(proxy, moved);
  if (proxy->copies && proxy->error == ncclSuccess) proxy->error = tt_proxy_copies_progress(proxy, moved);
  proxy->moved = *moved;
  proxy->moves += *moved;
  *idle = proxy->nactive == 0;
  ncclResult_t result = proxy->error;
  pthread_mutex_unlock(&proxy->lock);
  return result;
}

bool tt_proxy_try_lock(struct tt_proxy *proxy)
{
  for (int tries = 0; pthread_mutex_trylock(&proxy->lock) != 0; tries++) {
    if (tries == LOOKS) return false;
    usleep(LOOK_USEC);
  }
  return true;
}

void tt_proxy_count_active(struct tt_proxy *proxy, int change)
{
  if (proxy->nactive == 0) proxy->busy_since = tt_timer_ns();
  proxy->nactive += change;
  if (proxy->nactive == 0) proxy->busy_ns += tt_timer_ns() - proxy->busy_since;
}

bool tt_proxy_look(struct tt_proxy *proxy, struct tt_proxy_conn *conn, struct tt_proxy_state *state)
{
  *state = (struct tt_proxy_state){0};
  if (!tt_proxy_try_lock(proxy)) return false;
  state->active = proxy->nactive + tt_proxy_running_busy(proxy);
  state->busy_ns = proxy->busy_ns + (proxy->nactive > 0 ? tt_timer_ns() - proxy->busy_since : 0);
  for (struct tt_proxy_pool_entry *entry = proxy->pools; entry; entry = entry->next) {
    struct tt_proxy_pool_state pool = tt_proxy_pool_look(entry->pool);
    state->pool_bytes += pool.bytes;
    state->spares += pool.spares;
  }
  if (conn != NULL) {
    state->posted = conn->posted;
    state->done = conn->done;
    state->expected = conn->config.free_running ? tt_proxy_running_end(conn) : conn->expected;
  }
  pthread_mutex_unlock(&proxy->lock);
  return true;
}

bool tt_proxy_each_figures(struct tt_proxy *proxy, tt_proxy_figures_visit *visit, void *context)
{
  if (!tt_proxy_try_lock(proxy)) return false;
  for (const struct tt_proxy_conn *conn = proxy->conns; conn; conn = conn->next) {
    if (!conn->wire) continue;
    struct tt_proxy_figures figures = conn->figures;
    figures.send = conn->config.send;
    figures.peer = conn->config.peer;
    figures.label = conn->label;
    figures.comm = conn->wire->comm;
    visit(context, &figures);
  }
  pthread_mutex_unlock(&proxy->lock);
  return true;
}
