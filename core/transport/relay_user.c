/* One user of a relay: its memory is mapped, the network connected, its slots are sent, until it closes. */
#include "transport/relay_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"

ncclResult_t tt_relay_user_map(struct tt_relay_user *user)
{
  struct tt_resources *resources = user->relay->resources;
  const struct tt_relay_layout *layout = &user->layout;
  int ndev;
  void *ptr;
  TT_TRY(tt_net_devices(user->relay->net, &ndev));
  if (user->request.device < 0 || user->request.device >= ndev)
    return TT_FAIL(ncclRemoteError, "rank %d wants to send on device %d of network %s, which has %d", user->rank,
                   user->request.device, tt_net_name(user->relay->net), ndev);
  if (user->request.block % 64 != 0 || user->request.bell % _Alignof(struct tt_doorbell) != 0)
    return TT_FAIL(ncclRemoteError, "rank %d named a block at %llu and a doorbell at %llu, which are not aligned",
                   user->rank, (unsigned long long)user->request.block, (unsigned long long)user->request.bell);
  TT_TRY(tt_resources_map(resources, user->number, user->rank, user->request.bell, sizeof(*user->bell), &ptr));
  user->bell = ptr;
  TT_TRY(tt_resources_map(resources, user->number, user->rank, user->request.block, layout->bytes, &ptr));
  user->block = ptr;
  user->desk = (struct tt_proxy_desk *)(void *)(user->block + layout->desk);
  return ncclSuccess;
}

/* Points the engine's view of the connection into the block. With a pool, slots only say which protocols there are. */
static void apply_block(struct tt_relay_user *user)
{
  const struct tt_relay_layout *layout = &user->layout;
  if (!layout->pooled) {
    tt_buffers_apply(&layout->buffers, user->block, &user->conn);
    user->conn.fifo = (struct tt_conn_fifo *)(void *)(user->block + layout->fifo);
    return;
  }
  user->conn.tail = &user->desk->filled;
  user->conn.head = &user->desk->sent;
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    user->conn.slot_bytes[p] = layout->buffers.slot_bytes[p];
    user->conn.slots[p] = layout->buffers.slot_bytes[p] ? user->block : NULL;
  }
}

static ncclResult_t hand_to_proxy(struct tt_relay_user *user)
{
  const struct tt_relay_request *request = &user->request;
  struct tt_relay *relay = user->relay;
  char label[64];
  ncclNetProperties_v12_t props;
  TT_TRY(tt_net_get_properties(relay->net, request->device, &props));
  snprintf(label, sizeof(label), "NET/%s/%d(%d)", tt_net_name(relay->net), request->device, relay->rank);
  apply_block(user);
  user->conn.flags = TT_CONN_PROXIED;
  user->conn.peer = request->peer;
  user->conn.step = user->head = user->reader.expected = request->first_step;
  struct tt_proxy_conn_config config = {.send = true,
                                        .comm = user->comm,
                                        .conn = &user->conn,
                                        .peer = request->peer,
                                        .tag = user->rank,
                                        .max_bytes = props.maxP2pBytes,
                                        .label = label,
                                        .device = request->device,
                                        .find = user->layout.pooled ? tt_relay_slab_find : NULL,
                                        .find_context = user,
                                        .free_running = user->layout.running,
                                        .foreign = true};
  /* In errors it is the user that sends. */
  TT_TRY(tt_proxy_create(relay->net, user->rank, &user->proxy));
  TT_TRY(tt_proxy_conn_create(user->proxy, &config, &user->proxied));
  user->comm = NULL;
  user->desk->bell = relay->bell_offset;
  atomic_fetch_or(&user->desk->state, TT_DESK_READY);
  tt_doorbell_ring(user->bell);
  return ncclSuccess;
}

static ncclResult_t connect_user(struct tt_relay_user *user, bool *moved)
{
  struct tt_relay_request *request = &user->request;
  TT_TRY(tt_net_connect(user->relay->net, request->device, request->handle, &user->comm));
  if (!user->comm) return ncclSuccess;
  *moved = true;
  return hand_to_proxy(user);
}

/* Whether the network has a message, or is to be given one that it did not take yet: nobody rings when that changes.
 * Nor when lines that a device has begun are complete. */
static bool is_sending(struct tt_relay_user *user)
{
  struct tt_proxy_state state;
  if (!tt_proxy_look(user->proxy, user->proxied, &state) || state.posted != state.done) return true;
  if (user->layout.running) return state.expected != state.done;
  return state.expected != state.done && atomic_load_explicit(user->conn.tail, memory_order_acquire) != state.done;
}

static ncclResult_t send_slots(struct tt_relay_user *user, bool *moved, bool *busy)
{
  bool more, idle, went = false;
  TT_TRY(tt_proxy_desk_take(user->desk, &user->reader, user->proxied, &more));
  TT_TRY(tt_proxy_progress(user->proxy, &went, &idle));
  *moved |= more || went;
  uint64_t head = atomic_load_explicit(user->conn.head, memory_order_relaxed);
  if (head != user->head) tt_doorbell_ring(user->bell);
  user->head = head;
  *busy |= (!idle || user->layout.running) && is_sending(user);
  return ncclSuccess;
}

bool tt_relay_user_advance(struct tt_relay_user *user, bool *moved, bool *busy)
{
  ncclResult_t result = ncclSuccess;
  if (atomic_load_explicit(&user->desk->closing, memory_order_acquire)) return false;
  if (user->failed) return true;
  if (user->proxied)
    result = send_slots(user, moved, busy);
  else
    result = connect_user(user, moved);
  *busy |= !user->proxied;
  if (result != ncclSuccess) tt_relay_user_fail(user, result, tt_log_thread_error());
  return true;
}

void tt_relay_user_fail(struct tt_relay_user *user, ncclResult_t result, const char *why)
{
  user->failed = true;
  tt_proxy_desk_fail(user->desk, result, why);
  tt_doorbell_ring(user->bell);
}

void tt_relay_user_drop(struct tt_relay_user *user)
{
  struct tt_resources *resources = user->relay->resources;
  tt_resources_unmap(resources, user->number, user->block, user->layout.bytes);
  tt_resources_unmap(resources, user->number, user->bell, sizeof(*user->bell));
  free(user);
}

void tt_relay_user_end(struct tt_relay_user *user)
{
  tt_proxy_conn_destroy(user->proxied);
  tt_proxy_destroy(user->proxy);
  if (user->comm) tt_net_close_send(user->relay->net, user->comm);
  tt_relay_slabs_free(user);
  atomic_fetch_or(&user->desk->state, TT_DESK_CLOSED);
  tt_doorbell_ring(user->bell);
  tt_relay_user_drop(user);
}
