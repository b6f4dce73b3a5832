/* Connections of the proxy: registrations, and the queue of what is expected. */
#include "proxy/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"

static ncclResult_t register_own(struct tt_proxy_conn *conn, int protocol)
{
  const struct tt_conn *device = conn->config.conn;
  if (conn->config.direct.memory) return tt_proxy_direct_register(conn, &conn->mhandles[protocol]);
  /* Lines come to memory of their own. */
  void *memory = conn->lines.memory ? conn->lines.memory : device->slots[protocol];
  size_t bytes = conn->lines.memory ? conn->lines.bytes : device->slot_bytes[protocol] * TT_SLOTS;
  ncclResult_t result =
      tt_net_reg_mr(conn->proxy->net, conn->wire->comm, memory, bytes, NCCL_PTR_HOST, &conn->mhandles[protocol]);
  if (result == ncclSuccess) return ncclSuccess;
  return TT_FAIL(result, "%s cannot register %zu bytes for rank %d: check `ulimit -l`", conn->label, bytes,
                 conn->config.peer);
}

static ncclResult_t register_buffers(struct tt_proxy_conn *conn)
{
  const struct tt_conn *device = conn->config.conn;
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (!device->slots[p]) continue;
    if (device->slot_bytes[p] > conn->config.max_bytes)
      return TT_FAIL(
          ncclInvalidUsage,
          "slots of %zu bytes are more than the %zu that %s sends at once: lower NCCL_BUFFSIZE to at most %zu",
          device->slot_bytes[p], conn->config.max_bytes, conn->label, conn->config.max_bytes * TT_SLOTS);
    if (conn->pool || conn->config.find) continue; /* registered as it is used */
    TT_TRY(register_own(conn, p));
    conn->registered[p] = true;
  }
  return ncclSuccess;
}

static void deregister(struct tt_proxy_conn *conn)
{
  for (int i = 0; i < TT_SLOTS; i++) tt_proxy_transfer_clear(conn, &conn->transfers[i]);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    if (conn->registered[p]) tt_net_dereg_mr(conn->proxy->net, conn->wire->comm, conn->mhandles[p]);
}

ncclResult_t tt_proxy_conn_find_pool(struct tt_proxy_conn *conn)
{
  struct tt_proxy *proxy = conn->proxy;
  struct tt_proxy_pool_config config = {.device = conn->config.device,
                                        .send = conn->config.send,
                                        .limit = conn->config.pool_units,
                                        .shm = conn->shm,
                                        .map = conn->config.map};
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    config.unit_bytes = TT_MAX(config.unit_bytes, (conn->config.conn->slot_bytes[p] + 127) / 128 * 128);
  if (config.limit == 0) return ncclSuccess;
  struct tt_proxy_pool_entry *entry = proxy->pools;
  while (entry && !tt_proxy_pool_matches(entry->pool, &config)) entry = entry->next;
  if (!entry) {
    TT_TRY(TT_CALLOC(&entry, 1));
    ncclResult_t result = tt_proxy_pool_create(&config, &entry->pool);
    if (result != ncclSuccess) {
      free(entry);
      return result;
    }
    entry->next = proxy->pools;
    proxy->pools = entry;
  }
  ncclResult_t result = tt_proxy_pool_join(entry->pool);
  if (result == ncclSuccess)
    conn->pool = entry->pool;
  else
    tt_proxy_pool_part(entry->pool);
  return result;
}

void tt_proxy_conn_add(struct tt_proxy_conn *conn)
{
  struct tt_proxy *proxy = conn->proxy;
  pthread_mutex_lock(&proxy->lock);
  conn->next = proxy->conns;
  conn->link = &proxy->conns;
  if (conn->next) conn->next->link = &conn->next;
  proxy->conns = conn;
  pthread_mutex_unlock(&proxy->lock);
}

ncclResult_t tt_proxy_conn_create(struct tt_proxy *proxy, const struct tt_proxy_conn_config *config,
                                  struct tt_proxy_conn **out)
{
  *out = NULL;
  struct tt_proxy_conn *conn;
  TT_TRY(TT_CALLOC(&conn, 1));
  conn->proxy = proxy;
  conn->config = *config;
  snprintf(conn->label, sizeof(conn->label), "%s", config->label);
  conn->config.label = conn->label;
  conn->posted = conn->done = conn->expected = config->conn->step;
  conn->granted = conn->freed = conn->received = conn->done;
  ncclResult_t result = ncclSuccess;
  if (config->free_running) TT_TRY_GOTO(tt_proxy_running_prepare(conn), result, out);
  conn->lines.on = tt_proxy_lines_wanted(config);
  if (conn->lines.on) TT_TRY_GOTO(tt_proxy_lines_create(conn), result, out);
  conn->wire = config->link;
  if (!conn->wire)
    TT_TRY_GOTO(tt_proxy_link_create(proxy->net, config->send, config->comm, 1, &conn->wire), result, out);
  pthread_mutex_lock(&proxy->lock);
  result = tt_proxy_conn_find_pool(conn);
  pthread_mutex_unlock(&proxy->lock);
  if (result != ncclSuccess) goto out;
  pthread_mutex_lock(&conn->wire->lock);
  result = register_buffers(conn);
  if (result != ncclSuccess) deregister(conn);
  pthread_mutex_unlock(&conn->wire->lock);
  if (result != ncclSuccess) goto out;
  tt_proxy_link_count(conn->wire, 1);
  /* A sender waits until it is granted the first unit. */
  if (conn->pool && config->send) atomic_store(config->conn->head, conn->granted - TT_SLOTS);
  tt_proxy_conn_add(conn);
  if (config->free_running) tt_proxy_running_start(conn);
  *out = conn;
out:
  if (result != ncclSuccess) {
    pthread_mutex_lock(&proxy->lock);
    if (conn->pool) tt_proxy_pool_part(conn->pool);
    pthread_mutex_unlock(&proxy->lock);
    if (!config->link) tt_proxy_link_abandon(conn->wire);
    tt_proxy_lines_free(conn);
    free(conn->operations);
    free(conn);
  }
  return result;
}

static void enlist(struct tt_proxy_conn *conn, struct tt_proxy_conn ***end)
{
  conn->active_next = NULL;
  conn->active_link = *end;
  **end = conn;
  *end = &conn->active_next;
}

static void unlist(struct tt_proxy_conn *conn, struct tt_proxy_conn ***end)
{
  *conn->active_link = conn->active_next;
  if (conn->active_next)
    conn->active_next->active_link = conn->active_link;
  else
    *end = conn->active_link;
}

void tt_proxy_conn_idle(struct tt_proxy_conn *conn, bool idle)
{
  struct tt_proxy *proxy = conn->proxy;
  if (conn->idle == idle) return;
  conn->idle = idle;
  proxy->nidle += idle ? 1 : -1;
  if (idle)
    enlist(conn, &proxy->idle_end);
  else
    unlist(conn, &proxy->idle_end);
}

/* Work left: at the end of the list, so that what was announced first comes first. */
void tt_proxy_conn_wake(struct tt_proxy_conn *conn)
{
  struct tt_proxy *proxy = conn->proxy;
  if (conn->active) return;
  tt_proxy_conn_idle(conn, false);
  conn->active = true;
  enlist(conn, &proxy->active_end);
  if (conn->pool) tt_proxy_pool_count(conn->pool, 1);
  if (!conn->config.free_running) tt_proxy_count_active(proxy, 1);
}

void tt_proxy_conn_rest(struct tt_proxy_conn *conn)
{
  struct tt_proxy *proxy = conn->proxy;
  if (!conn->active) return;
  conn->active = false;
  unlist(conn, &proxy->active_end);
  if (conn->pool) tt_proxy_pool_count(conn->pool, -1);
  if (!conn->config.free_running) tt_proxy_count_active(proxy, -1);
  if (conn->asks) tt_proxy_conn_idle(conn, true);
}

/* Gives up what the connection has of its network connection. Called with the proxy's lock held. */
static void leave_wire(struct tt_proxy_conn *conn)
{
  pthread_mutex_lock(&conn->wire->lock);
  conn->wire->conns--;
  tt_proxy_group_forget(conn);
  if (conn->config.link && conn->pool) tt_proxy_pooled_leave(conn);
  deregister(conn);
  pthread_mutex_unlock(&conn->wire->lock);
  tt_proxy_link_release(conn->wire);
  if (conn->pool) tt_proxy_pooled_close(conn);
}

void tt_proxy_conn_destroy(struct tt_proxy_conn *conn)
{
  if (!conn) return;
  struct tt_proxy *proxy = conn->proxy;
  pthread_mutex_lock(&proxy->lock);
  *conn->link = conn->next;
  if (conn->next) conn->next->link = conn->link;
  tt_proxy_conn_rest(conn);
  tt_proxy_conn_idle(conn, false);
  if (conn->config.free_running) atomic_fetch_sub(&proxy->running, 1);
  if (conn->wire)
    leave_wire(conn);
  else if (conn->pool)
    tt_proxy_pooled_close(conn);
  pthread_mutex_unlock(&proxy->lock);
  tt_proxy_lines_free(conn);
  free(conn->operations);
  free(conn->lost_text);
  free(conn);
}

ncclResult_t tt_proxy_conn_append(struct tt_proxy_conn *conn, int protocol, uint64_t steps)
{
  struct tt_proxy_operation *last = conn->noperations ? &conn->operations[conn->noperations - 1] : NULL;
  if (!last || last->protocol != protocol) {
    if (conn->noperations == conn->capacity) {
      size_t capacity = conn->capacity ? 2 * conn->capacity : 8;
      struct tt_proxy_operation *grown = realloc(conn->operations, capacity * sizeof(*grown));
      if (!grown) return TT_FAIL(ncclSystemError, "no memory for %zu operations of %s", capacity, conn->label);
      conn->operations = grown;
      conn->capacity = capacity;
    }
    last = &conn->operations[conn->noperations++];
    last->protocol = protocol;
  }
  last->end = conn->expected += steps;
  conn->turn = conn->proxy->turn;
  tt_proxy_conn_wake(conn);
  return ncclSuccess;
}

void tt_proxy_next_turn(struct tt_proxy *proxy)
{
  pthread_mutex_lock(&proxy->lock);
  proxy->turn++;
  pthread_mutex_unlock(&proxy->lock);
}

ncclResult_t tt_proxy_expect(struct tt_proxy_conn *conn, int protocol, uint64_t steps)
{
  if (steps == 0 || conn->config.free_running) return ncclSuccess;
  if (protocol < 0 || protocol >= TT_NUM_PROTOCOLS || !conn->config.conn->slots[protocol])
    return TT_FAIL(ncclInternalError, "%s to rank %d has no buffer for protocol %d", conn->label, conn->config.peer,
                   protocol);
  pthread_mutex_lock(&conn->proxy->lock);
  ncclResult_t result = tt_proxy_conn_append(conn, protocol, steps);
  pthread_mutex_unlock(&conn->proxy->lock);
  return result;
}
