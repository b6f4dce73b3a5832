/* Connections of the proxy: registrations, and the queue of what is expected. */
#include "proxy/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"

static ncclResult_t register_buffers(struct tt_proxy_conn *conn)
{
  struct tt_net *net = conn->proxy->net;
  const struct tt_conn *device = conn->config.conn;
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (!device->slots[p]) continue;
    if (device->slot_bytes[p] > conn->config.max_bytes)
      return TT_FAIL(
          ncclInvalidUsage,
          "slots of %zu bytes are more than the %zu that %s sends at once: lower NCCL_BUFFSIZE to at most %zu",
          device->slot_bytes[p], conn->config.max_bytes, conn->label, conn->config.max_bytes * TT_SLOTS);
    size_t bytes = device->slot_bytes[p] * TT_SLOTS;
    ncclResult_t result =
        tt_net_reg_mr(net, conn->config.comm, device->slots[p], bytes, NCCL_PTR_HOST, &conn->mhandles[p]);
    if (result != ncclSuccess)
      return TT_FAIL(result, "%s cannot register %zu bytes for rank %d: check `ulimit -l`", conn->label, bytes,
                     conn->config.peer);
    conn->registered[p] = true;
  }
  return ncclSuccess;
}

static void deregister(struct tt_proxy_conn *conn)
{
  for (int i = 0; i < TT_SLOTS; i++) tt_proxy_transfer_clear(conn, &conn->transfers[i]);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    if (conn->registered[p]) tt_net_dereg_mr(conn->proxy->net, conn->config.comm, conn->mhandles[p]);
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
  ncclResult_t result = register_buffers(conn);
  if (result != ncclSuccess) {
    deregister(conn);
    free(conn);
    return result;
  }
  pthread_mutex_lock(&proxy->lock);
  conn->next = proxy->conns;
  conn->link = &proxy->conns;
  if (conn->next) conn->next->link = &conn->next;
  proxy->conns = conn;
  pthread_mutex_unlock(&proxy->lock);
  *out = conn;
  return ncclSuccess;
}

void tt_proxy_conn_destroy(struct tt_proxy_conn *conn)
{
  if (!conn) return;
  struct tt_proxy *proxy = conn->proxy;
  pthread_mutex_lock(&proxy->lock);
  *conn->link = conn->next;
  if (conn->next) conn->next->link = conn->link;
  if (conn->active) proxy->nactive--;
  deregister(conn);
  if (conn->config.send)
    tt_net_close_send(proxy->net, conn->config.comm);
  else
    tt_net_close_recv(proxy->net, conn->config.comm);
  pthread_mutex_unlock(&proxy->lock);
  free(conn->operations);
  free(conn);
}

/* Called with the lock held. */
static ncclResult_t append(struct tt_proxy_conn *conn, int protocol, uint64_t steps)
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
  if (!conn->active) conn->proxy->nactive++;
  conn->active = true;
  return ncclSuccess;
}

ncclResult_t tt_proxy_expect(struct tt_proxy_conn *conn, int protocol, uint64_t steps)
{
  if (steps == 0) return ncclSuccess;
  if (protocol < 0 || protocol >= TT_NUM_PROTOCOLS || !conn->config.conn->slots[protocol])
    return TT_FAIL(ncclInternalError, "%s to rank %d has no buffer for protocol %d", conn->label, conn->config.peer,
                   protocol);
  pthread_mutex_lock(&conn->proxy->lock);
  ncclResult_t result = append(conn, protocol, steps);
  pthread_mutex_unlock(&conn->proxy->lock);
  return result;
}
