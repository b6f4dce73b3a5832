/* The relay's messages, and its beginning and end. See relay.h. */
#include "transport/relay_internal.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "transport/memory.h"
#include "transport/relay_wire.h"

#define TAG_ALL_BITS 0xffffffffu

ncclResult_t tt_relay_layout(const struct tt_transport_env *env, bool pooled, int index, struct tt_relay_layout *layout)
{
  TT_TRY(tt_buffers_layout_far(env, index, &layout->buffers));
  layout->running = tt_transport_device_memory(env);
  layout->pooled = pooled;
  layout->fifo = layout->buffers.bytes; /* whole pages */
  layout->desk = pooled ? 0 : layout->fifo + (TT_SLOTS * sizeof(struct tt_conn_fifo) + 63) / 64 * 64;
  layout->bytes = layout->desk + sizeof(struct tt_proxy_desk);
  return ncclSuccess;
}

/* ---- Messages: the bootstrap's service thread ---- */

static ncclResult_t new_user(struct tt_relay *relay, int rank, const struct tt_relay_request *request,
                             struct tt_relay_user **out)
{
  struct tt_relay_user *user = aligned_alloc(_Alignof(struct tt_relay_user), sizeof(*user));
  if (!user) return TT_FAIL(ncclSystemError, "no memory to send for rank %d", rank);
  memset(user, 0, sizeof(*user));
  user->relay = relay;
  user->rank = rank;
  user->number = tt_peer_memory_number(relay->env->memory, rank);
  user->request = *request;
  ncclResult_t result = tt_relay_layout(relay->env, request->pooled != 0, request->index, &user->layout);
  if (result != ncclSuccess) {
    free(user);
    return result;
  }
  *out = user;
  return ncclSuccess;
}

/* What is wrong with a request; NULL: nothing. */
static const char *fault(const struct tt_relay *relay, int rank, const struct tt_relay_request *request)
{
  const struct tt_transport_env *env = relay->env;
  if (!env->net) return "this rank has no network";
  if (rank == relay->rank || env->peers[rank].node != env->peers[relay->rank].node) return "it is on another host";
  if (request->peer < 0 || request->peer >= env->nranks || request->peer == rank) return "it has no such peer";
  struct tt_relay_layout layout;
  if (request->index < 0 || request->index >= TT_CONN_INDICES) return "there is no connection of that index";
  /* A device looks at lines where they lie. */
  if (request->pooled && tt_transport_device_memory(env) && tt_connect_far_protocol(request->index) != TT_PROTO_SIMPLE)
    return "only connections of Simple have slots of a pool";
  if (tt_relay_layout(env, request->pooled != 0, request->index, &layout) != ncclSuccess) return "it has no slots";
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    if (request->slot_bytes[p] != layout.buffers.slot_bytes[p])
      return "its slots have another size: set the same NCCL_* variables on all ranks";
  return NULL;
}

static void hear_request(struct tt_relay *relay, int rank, const struct tt_relay_request *request)
{
  struct tt_relay_user *user;
  const char *wrong = fault(relay, rank, request);
  if (wrong) {
    TT_WARN("rank %d does not send for rank %d: %s", relay->rank, rank, wrong);
    tt_relay_send_refusal(relay->bootstrap, rank, request->block, wrong);
    return;
  }
  ncclResult_t result = new_user(relay, rank, request, &user);
  if (result == ncclSuccess) {
    pthread_mutex_lock(&relay->lock);
    result = tt_relay_start(relay);
    if (result == ncclSuccess) {
      user->next = relay->fresh;
      relay->fresh = user;
      tt_doorbell_ring(relay->bell);
    } else {
      free(user);
    }
    pthread_mutex_unlock(&relay->lock);
  }
  if (result != ncclSuccess) tt_relay_send_refusal(relay->bootstrap, rank, request->block, tt_log_thread_error());
}

static void hear_refusal(struct tt_relay *relay, int rank, uint64_t block, const char *why)
{
  pthread_mutex_lock(&relay->lock);
  struct tt_relayed *relayed = relay->asking;
  while (relayed && (relayed->relay != rank || relayed->offset != block)) relayed = relayed->next;
  if (relayed) {
    memcpy(relayed->why, why, sizeof(relayed->why));
    relayed->refused = true;
  }
  pthread_mutex_unlock(&relay->lock);
}

static void on_message(void *context, int rank, uint32_t tag, const void *data, size_t bytes)
{
  struct tt_relay *relay = context;
  struct tt_relay_request request;
  uint64_t block;
  char why[TT_DESK_TEXT];
  (void)tag;
  if (tt_relay_parse_request(data, bytes, &request))
    hear_request(relay, rank, &request);
  else if (tt_relay_parse_refusal(data, bytes, &block, why))
    hear_refusal(relay, rank, block, why);
  else
    TT_WARN("rank %d ignores a message of %zu bytes about sending for others from rank %d: it is of another version, "
            "or malformed",
            relay->rank, bytes, rank);
}

void tt_relay_refuse(struct tt_relay *relay, const struct tt_relay_user *user, const char *why)
{
  pthread_mutex_lock(&relay->lock);
  if (!relay->left) tt_relay_send_refusal(relay->bootstrap, user->rank, user->request.block, why);
  pthread_mutex_unlock(&relay->lock);
}

/* ---- Beginning and end ---- */

static int local_ranks(const struct tt_transport_env *env)
{
  int count = 0;
  for (int r = 0; r < env->nranks; r++) count += env->peers[r].node == env->peers[env->rank].node;
  return count;
}

ncclResult_t tt_relay_open(struct tt_transport_env *env, struct tt_bootstrap *bootstrap)
{
  struct tt_relay *relay;
  TT_TRY(TT_CALLOC(&relay, 1));
  pthread_mutex_init(&relay->lock, NULL);
  pthread_cond_init(&relay->ended_now, NULL);
  relay->env = env;
  relay->bootstrap = bootstrap;
  relay->resources = tt_peer_memory_resources(env->memory);
  relay->rank = env->rank;
  relay->device = env->peers[env->rank].device;
  relay->crowd = 2 * local_ranks(env); /* as many relays may wait as there are ranks */
  ncclResult_t result = TT_CALLOC(&relay->silent, (size_t)env->nranks);
  if (result == ncclSuccess)
    result = tt_bootstrap_set_handler(bootstrap, TT_TAG_RELAY, TAG_ALL_BITS, on_message, relay);
  if (result != ncclSuccess) {
    tt_relay_free(relay);
    return result;
  }
  env->relay = relay;
  return ncclSuccess;
}

void tt_relay_close(struct tt_transport_env *env)
{
  struct tt_relay *relay = env->relay;
  if (!relay) return;
  env->relay = NULL;
  tt_bootstrap_set_handler(relay->bootstrap, TT_TAG_RELAY, TAG_ALL_BITS, NULL, NULL);
  tt_relay_end(relay, env->abort && atomic_load(env->abort));
}
