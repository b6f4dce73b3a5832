/* The user's side of connection set-up: what there is, and what is needed. */
#include "connect/internal.h"

#include <stdlib.h>
#include "base/check.h"
#include "transport/collnet.h"
#include "transport/relay.h"

static ncclResult_t listen_to_peers(struct tt_connect *connect)
{
  TT_TRY(
      tt_bootstrap_set_handler(connect->bootstrap, TT_TAG_CONNECT, TT_TAG_CONNECT_MASK, tt_connect_receive, connect));
  connect->listens = true;
  return tt_relay_open(connect->env, connect->bootstrap);
}

ncclResult_t tt_connect_create(struct tt_transport_env *env, struct tt_bootstrap *bootstrap, struct tt_connect **out)
{
  *out = NULL;
  struct tt_connect *connect;
  TT_TRY(TT_CALLOC(&connect, 1));
  connect->env = env;
  connect->bootstrap = bootstrap;
  connect->letters_end = &connect->letters;
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_mutex_init(&connect->lock, NULL);
  pthread_cond_init(&connect->changed, &attr);
  pthread_cond_init(&connect->work, &attr);
  pthread_condattr_destroy(&attr);
  ncclResult_t result = TT_CALLOC(&connect->peers, (size_t)env->nranks);
  if (result == ncclSuccess && env->nranks > 1) result = listen_to_peers(connect);
  if (result != ncclSuccess) {
    tt_connect_destroy(connect);
    return result;
  }
  *out = connect;
  return ncclSuccess;
}

void tt_connect_close(struct tt_connect *connect, struct tt_entry *entry)
{
  struct tt_connector *connector = &entry->connector;
  if (connector->opened) connect->env->device->conn_close(connect->env->context->handle, &connector->conn);
  connector->opened = false;
  if (connector->resources) tt_transport_get(connector->transport)->close(connect->env, connector);
}

static void destroy_peer(struct tt_connect *connect, struct tt_connect_peer *peer)
{
  for (int i = 0; peer && i < TT_CONN_INDICES * TT_MAX_CHANNELS * 2; i++) {
    struct tt_entry *entry = (&peer->entries[0][0][0])[i];
    if (!entry) continue;
    tt_connect_close(connect, entry);
    free(entry);
  }
  free(peer);
}

void tt_connect_set_check(struct tt_connect *connect, tt_connect_check *check, void *context)
{
  connect->check = check;
  connect->check_context = context;
}

void tt_connect_destroy(struct tt_connect *connect)
{
  if (!connect) return;
  if (connect->listens) tt_bootstrap_set_handler(connect->bootstrap, TT_TAG_CONNECT, TT_TAG_CONNECT_MASK, NULL, NULL);
  tt_connect_stop_worker(connect);
  for (int p = 0; connect->peers && p < connect->env->nranks; p++) destroy_peer(connect, connect->peers[p]);
  tt_relay_close(connect->env);
  while (connect->letters) {
    struct tt_letter *next = connect->letters->next;
    free(connect->letters);
    connect->letters = next;
  }
  free(connect->wanted);
  free(connect->peers);
  pthread_cond_destroy(&connect->work);
  pthread_cond_destroy(&connect->changed);
  pthread_mutex_destroy(&connect->lock);
  free(connect);
}

/* The entry if it is there, without the lock. */
static struct tt_entry *find(const struct tt_connect *connect, int peer, int channel, int index, bool send)
{
  if (peer < 0 || peer >= connect->env->nranks || channel < 0 || channel >= TT_MAX_CHANNELS || index < 0 ||
      index >= TT_CONN_INDICES)
    return NULL;
  struct tt_connect_peer *table = atomic_load_explicit(&connect->peers[peer], memory_order_acquire);
  return table ? atomic_load_explicit(&table->entries[index][channel][send], memory_order_acquire) : NULL;
}

struct tt_entry *tt_connect_entry(struct tt_connect *connect, int peer, int channel, int index, bool send)
{
  struct tt_entry *entry = find(connect, peer, channel, index, send);
  if (entry) return entry;
  struct tt_connect_peer *table = connect->peers[peer];
  if (!table) {
    if (TT_CALLOC(&table, 1) != ncclSuccess) return NULL;
    atomic_store_explicit(&connect->peers[peer], table, memory_order_release);
  }
  if (TT_CALLOC(&entry, 1) != ncclSuccess) return NULL;
  entry->connector.peer = peer;
  entry->connector.channel = channel;
  entry->connector.index = index;
  entry->connector.send = send;
  entry->progress = "not started";
  atomic_store_explicit(&table->entries[index][channel][send], entry, memory_order_release);
  return entry;
}

ncclResult_t tt_connect_need(struct tt_connect *connect, int peer, int channel, int index, bool send)
{
  /* Connections with networks were made with the communicator. */
  if (tt_collnet_links_connector(connect->env->collnet, peer, channel, send)) return ncclSuccess;
  struct tt_entry *entry = find(connect, peer, channel, index, send);
  if (entry && (tt_entry_is_up(entry) || entry->wanted)) return ncclSuccess;
  if (!entry) {
    if (peer < 0 || peer >= connect->env->nranks || peer == connect->env->rank || channel < 0 ||
        channel >= TT_MAX_CHANNELS || index < 0 || index >= TT_CONN_INDICES)
      return TT_FAIL(ncclInternalError, "no connection to rank %d of %d, channel %d, index %d can be needed by rank %d",
                     peer, connect->env->nranks, channel, index, connect->env->rank);
    pthread_mutex_lock(&connect->lock);
    entry = tt_connect_entry(connect, peer, channel, index, send);
    pthread_mutex_unlock(&connect->lock);
    if (!entry) return ncclSystemError;
  }
  if (connect->nwanted == connect->wanted_capacity) {
    size_t capacity = connect->wanted_capacity ? 2 * connect->wanted_capacity : 16;
    struct tt_entry **grown = realloc(connect->wanted, capacity * sizeof(struct tt_entry *));
    if (!grown) return TT_FAIL(ncclSystemError, "no memory for %zu connections", capacity);
    connect->wanted = grown;
    connect->wanted_capacity = capacity;
  }
  connect->wanted[connect->nwanted++] = entry;
  entry->wanted = true;
  return ncclSuccess;
}

bool tt_connect_pending(const struct tt_connect *connect)
{
  for (size_t i = 0; i < connect->nwanted; i++)
    if (!tt_entry_is_up(connect->wanted[i])) return true;
  return false;
}

struct tt_connector *tt_connect_get(struct tt_connect *connect, int peer, int channel, int index, bool send)
{
  if (peer < 0) return tt_collnet_links_connector(connect->env->collnet, peer, channel, send);
  struct tt_entry *entry = find(connect, peer, channel, index, send);
  return entry && tt_entry_is_up(entry) ? &entry->connector : NULL;
}

static void look_at(const struct tt_entry *entry, tt_connect_visit *visit, void *context)
{
  static const char *const still[] = {[TT_ENTRY_NOTED] = "not begun", [TT_ENTRY_FAILED] = "failed"};
  int state = atomic_load_explicit(&entry->state, memory_order_acquire);
  struct tt_connect_state seen = {.connector = &entry->connector, .up = state == TT_ENTRY_UP};
  if (!seen.up) seen.progress = state == TT_ENTRY_ACTIVE ? entry->progress : still[state];
  visit(context, &seen);
}

void tt_connect_look(struct tt_connect *connect, tt_connect_visit *visit, void *context)
{
  pthread_mutex_lock(&connect->lock);
  for (int p = 0; p < connect->env->nranks; p++) {
    struct tt_connect_peer *peer = atomic_load_explicit(&connect->peers[p], memory_order_acquire);
    for (int i = 0; peer != NULL && i < TT_CONN_INDICES * TT_MAX_CHANNELS * 2; i++) {
      const struct tt_entry *entry = atomic_load_explicit(&(&peer->entries[0][0][0])[i], memory_order_acquire);
      if (entry != NULL) look_at(entry, visit, context);
    }
  }
  pthread_mutex_unlock(&connect->lock);
}

size_t tt_connect_bytes(const struct tt_connect *connect)
{
  return atomic_load(&connect->bytes) + tt_collnet_links_bytes(connect->env->collnet);
}
