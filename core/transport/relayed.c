/* The sending end of a connection that another rank's proxy serves. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/check.h"
#include "base/param.h"
#include "base/timer.h"
#include "base/uds.h"
#include "transport/memory.h"
#include "transport/net_block.h"
#include "transport/relay_wire.h"

/* A relay answers as soon as its thread runs; the limit is for machines that are very busy, and for relays that are
 * stopped. Who aborts does not wait so long. */
#define CLOSE_MS 5000
#define ABORT_MS 100
#define CLOSE_POLL_NS 50000
/* A relay that has left the communicator still serves what it has accepted: whether its process is there is looked at
 * so often. */
#define LOOK_MS 500
#define PAGE 4096

/* What shared memory gives for a block. */
static size_t whole_pages(const struct tt_relay_layout *layout)
{
  return (layout->bytes + PAGE - 1) / PAGE * PAGE;
}

/* Points a view of the connection into the block, which the view's user finds at `at`. */
static void apply(const struct tt_relay_layout *layout, unsigned char *at, struct tt_conn *conn)
{
  tt_buffers_apply(&layout->buffers, at, conn);
  conn->fifo = (struct tt_conn_fifo *)(void *)(at + layout->fifo);
  conn->flags = TT_CONN_PROXIED;
  if (layout->running) tt_buffers_mark_lines(conn);
}

ncclResult_t tt_relayed_setup(struct tt_transport_env *env, struct tt_connector *connector, int relay, int device,
                              struct tt_relayed *relayed)
{
  void *block;
  if (!env->relay)
    return TT_FAIL(ncclInternalError, "rank %d sends to rank %d through rank %d, but nothing was opened for that",
                   env->rank, connector->peer, relay);
  relayed->relay = relay;
  relayed->device = device;
  bool pooled = (connector->conn.flags & TT_CONN_POOLED) != 0;
  TT_TRY(tt_relay_layout(env, pooled, connector->index, &relayed->layout));
  TT_TRY(tt_shm_alloc(env->shm, relayed->layout.bytes, &block, &relayed->offset));
  relayed->block = block;
  relayed->desk = (struct tt_proxy_desk *)(void *)(relayed->block + relayed->layout.desk);
  connector->bytes += relayed->layout.bytes;
  relayed->closed = true;
  if (pooled) {
    atomic_store(&relayed->desk->filled, env->first_step);
    atomic_store(&relayed->desk->sent, env->first_step);
    return ncclSuccess;
  }
  apply(&relayed->layout, relayed->block, &relayed->conn);
  tt_buffers_start(&relayed->conn, env->first_step);
  if (relayed->layout.running) {
    TT_TRY(env->device->map_host(env->context->handle, block, whole_pages(&relayed->layout), &block));
    relayed->mapped = true;
  }
  apply(&relayed->layout, block, &connector->conn);
  connector->conn.step = env->first_step;
  return ncclSuccess;
}

/* Makes it one of those that wait for an answer, or of the others. */
static void set_asking(struct tt_relay *relay, struct tt_relayed *relayed, bool asking)
{
  pthread_mutex_lock(&relay->lock);
  struct tt_relayed **link = &relay->asking;
  while (*link && *link != relayed) link = &(*link)->next;
  if (asking && !*link) {
    relayed->next = NULL;
    *link = relayed;
  } else if (!asking && *link) {
    *link = relayed->next;
  }
  pthread_mutex_unlock(&relay->lock);
}

static ncclResult_t ask(struct tt_transport_env *env, const struct tt_connector *connector, struct tt_relayed *relayed,
                        const unsigned char *handle)
{
  struct tt_relay_request request = {.block = relayed->offset,
                                     .bell = env->bell_offset,
                                     .device = relayed->device,
                                     .peer = connector->peer,
                                     .channel = connector->channel,
                                     .index = connector->index,
                                     .pooled = relayed->layout.pooled,
                                     .first_step = env->first_step};
  memcpy(request.handle, handle, sizeof(request.handle));
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) request.slot_bytes[p] = relayed->layout.buffers.slot_bytes[p];
  set_asking(env->relay, relayed, true);
  relayed->asked = true;
  relayed->closed = false;
  tt_log_hush(true); /* a relay that has just left is no failure */
  ncclResult_t result = tt_relay_send_request(env->relay->bootstrap, relayed->relay, &request);
  tt_log_hush(false);
  if (result == ncclSuccess) return ncclSuccess;
  relayed->asked = false;
  relayed->closed = true;
  set_asking(env->relay, relayed, false);
  relayed->gone = tt_bootstrap_left(env->relay->bootstrap, relayed->relay);
  if (relayed->gone) return ncclSuccess;
  return TT_FAIL(result, "rank %d cannot send to rank %d through rank %d: %s", env->rank, connector->peer,
                 relayed->relay, tt_log_thread_error());
}

/* Whether the relay has left, and will never touch the memory: it has accepted before its goodbye what it serves. */
static bool left_without_accepting(const struct tt_relay *relay, const struct tt_relayed *relayed)
{
  return tt_bootstrap_left(relay->bootstrap, relayed->relay) && atomic_load(&relayed->desk->state) == 0;
}

/* Whether the relay's process is there, as far as it has been looked at lately. */
static bool is_there(const struct tt_transport_env *env, struct tt_relayed *relayed)
{
  if (!tt_deadline_passed(relayed->look_at)) return true;
  relayed->look_at = tt_deadline_in_ms(LOOK_MS);
  return tt_uds_is_there(env->peers[relayed->relay].uds);
}

/* There is no answer yet: whether there can be one. */
static ncclResult_t check_relay(struct tt_transport_env *env, const struct tt_connector *connector,
                                struct tt_relayed *relayed)
{
  struct tt_relay *relay = env->relay;
  char why[TT_DESK_TEXT] = "";
  int dead;
  pthread_mutex_lock(&relay->lock);
  bool refused = relayed->refused;
  if (refused) memcpy(why, relayed->why, sizeof(why));
  pthread_mutex_unlock(&relay->lock);
  if (refused)
    return TT_FAIL(ncclRemoteError, "rank %d cannot send to rank %d through rank %d, which says: %s", env->rank,
                   connector->peer, relayed->relay, why);
  if (tt_bootstrap_dead(relay->bootstrap, &dead, why, sizeof(why)) && dead == relayed->relay)
    return TT_FAIL(ncclRemoteError, "rank %d cannot send to rank %d through rank %d: rank %d %s", env->rank,
                   connector->peer, relayed->relay, dead, why);
  if (!tt_bootstrap_left(relay->bootstrap, relayed->relay)) return ncclSuccess;
  if (left_without_accepting(relay, relayed)) {
    set_asking(relay, relayed, false);
    relayed->asked = false;
    relayed->closed = relayed->gone = true;
    return ncclSuccess;
  }
  if (is_there(env, relayed)) return ncclSuccess;
  return TT_FAIL(ncclRemoteError,
                 "rank %d cannot send to rank %d through rank %d, which has left the communicator, and whose process "
                 "is gone: destroy the communicator on all ranks before one of their processes exits",
                 env->rank, connector->peer, relayed->relay);
}

static ncclResult_t hand_to_proxy(struct tt_transport_env *env, struct tt_connector *connector,
                                  struct tt_relayed *relayed, const char *label)
{
  void *bell;
  uint64_t at = relayed->desk->bell;
  if (at % _Alignof(struct tt_doorbell) != 0)
    return TT_FAIL(ncclRemoteError, "rank %d named a doorbell at %llu, which is not aligned", relayed->relay,
                   (unsigned long long)at);
  TT_TRY(tt_peer_memory_map(env->memory, relayed->relay, at, sizeof(*relayed->bell), &bell));
  relayed->bell = bell;
  struct tt_proxy_remote_config config = {.conn = relayed->layout.running ? &relayed->conn : &connector->conn,
                                          .free_running = relayed->layout.running,
                                          .desk = relayed->desk,
                                          .bell = relayed->bell,
                                          .peer = connector->peer,
                                          .relay = relayed->relay,
                                          .label = label,
                                          .device = relayed->device,
                                          .shm = env->shm};
  if (relayed->layout.running) config.map = tt_net_pool_map(env);
  if (relayed->layout.pooled) config.pool_units = (int)tt_param_int(TT_PARAM_TUTTI_NET_POOL_SLOTS);
  return tt_proxy_remote_create(env->proxy, &config, &connector->proxied);
}

ncclResult_t tt_relayed_connect(struct tt_transport_env *env, struct tt_connector *connector,
                                struct tt_relayed *relayed, const unsigned char *handle, const char *label, bool *done)
{
  *done = false;
  if (!relayed->asked) {
    relayed->gone = tt_bootstrap_left(env->relay->bootstrap, relayed->relay);
    return relayed->gone ? ncclSuccess : ask(env, connector, relayed, handle);
  }
  uint32_t state = atomic_load_explicit(&relayed->desk->state, memory_order_acquire);
  if (state & TT_DESK_FAILED)
    return tt_proxy_desk_failure(relayed->desk, env->rank, relayed->relay, connector->peer, label);
  if (!(state & TT_DESK_READY)) return check_relay(env, connector, relayed);
  TT_TRY(hand_to_proxy(env, connector, relayed, label));
  *done = true;
  return ncclSuccess;
}

/* Whether the relay says that it is done with the memory. */
static bool wait_closed(struct tt_transport_env *env, struct tt_relayed *relayed)
{
  struct tt_relay *relay = env->relay;
  bool aborted = env->abort && atomic_load(env->abort), refused, *silent = &relay->silent[relayed->relay];
  tt_deadline deadline = tt_deadline_in_ms(*silent ? 0 : aborted ? ABORT_MS : CLOSE_MS);
  for (;;) {
    if (atomic_load_explicit(&relayed->desk->state, memory_order_acquire) & TT_DESK_CLOSED) return true;
    pthread_mutex_lock(&relay->lock);
    refused = relayed->refused;
    pthread_mutex_unlock(&relay->lock);
    if (refused || left_without_accepting(relay, relayed)) return true;
    int dead;
    char why[64];
    if (tt_bootstrap_dead(relay->bootstrap, &dead, why, sizeof(why)) && dead == relayed->relay) break;
    if (tt_deadline_passed(deadline)) break;
    nanosleep(&(struct timespec){.tv_nsec = CLOSE_POLL_NS}, NULL);
  }
  *silent = true;
  return false;
}

void tt_relayed_stop(struct tt_transport_env *env, struct tt_connector *connector, struct tt_relayed *relayed)
{
  if (!relayed->asked) return;
  atomic_store(&relayed->desk->closing, 1);
  tt_doorbell_ring(relayed->bell);
  relayed->closed = wait_closed(env, relayed);
  set_asking(env->relay, relayed, false);
  if (relayed->closed) return;
  TT_INFO(TT_NET, "Rank %d does not say whether it still sends for rank %d: its memory is not used again",
          relayed->relay, env->rank);
  if (connector->proxied) tt_proxy_remote_lose(connector->proxied);
}

void tt_relayed_close(struct tt_transport_env *env, struct tt_relayed *relayed)
{
  if (!relayed->block) return;
  if (relayed->bell) tt_peer_memory_unmap(env->memory, relayed->relay, relayed->bell, sizeof(*relayed->bell));
  if (relayed->mapped) env->device->unmap_host(env->context->handle, relayed->block, whole_pages(&relayed->layout));
  if (relayed->closed) tt_shm_free(env->shm, relayed->block, relayed->layout.bytes);
}
