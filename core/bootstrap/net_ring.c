/* The all-gather over a ring of net connections, for networks where TCP is slow or only for set-up.
 *
 * Data travels through a buffer of the ring's own, registered once: when a wait ends early, a plugin may still write
 * into it, and the buffer lives until the connections are closed. After an error the ring stays broken. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "bootstrap/internal.h"
#include "plugin/net.h"

/* Polls without a pause, then with one: the net ABI has nothing to wait on. */
#define YIELDS 200
#define PAUSE_USEC 50
/* What a neighbour sent before it left is still on its way for a while: pauses without progress until that is given up.
 */
#define LEFT_PAUSES 40000
#define RING_TAG 0x7474
/* tt_net_test reports an int. */
#define PIECE_MAX ((size_t)1 << 30)

struct tt_net_ring {
  struct tt_net *net;
  int device;
  void *listen, *send, *recv;
  unsigned char *stage;
  size_t room, piece;
  void *send_mr, *recv_mr;
  bool broken;
};

/* Called when nothing moved: an error once waiting makes no sense any more. */
static ncclResult_t pause_ring(struct tt_bootstrap *b, int turns, tt_deadline deadline, const char *what)
{
  int previous = (b->rank + b->nranks - 1) % b->nranks, next = (b->rank + 1) % b->nranks, dead, left = -1;
  if (turns < YIELDS) {
    sched_yield();
    return ncclSuccess;
  }
  usleep(PAUSE_USEC);
  pthread_mutex_lock(&b->mutex);
  tt_liveness_wait(b);
  dead = b->first_dead;
  if (b->peers[previous].left) left = previous;
  if (b->peers[next].left) left = next;
  pthread_mutex_unlock(&b->mutex);
  if (tt_bootstrap_aborted(b)) return TT_FAIL(ncclInternalError, "aborted while rank %d was %s", b->rank, what);
  if (dead >= 0) return TT_FAIL(ncclRemoteError, "rank %d gave up %s: rank %d is gone", b->rank, what, dead);
  if (left >= 0 && turns > YIELDS + LEFT_PAUSES)
    return TT_FAIL(ncclRemoteError, "rank %d gave up %s: rank %d has left the communicator", b->rank, what, left);
  if (!tt_deadline_passed(deadline)) return ncclSuccess;
  return TT_FAIL(ncclRemoteError, "rank %d was %s for %lld s (NCCL_BOOTSTRAP_TIMEOUT) without an end", b->rank, what,
                 (long long)tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT));
}

static void drop_stage(struct tt_net_ring *ring)
{
  if (ring->send_mr) tt_net_dereg_mr(ring->net, ring->send, ring->send_mr);
  if (ring->recv_mr) tt_net_dereg_mr(ring->net, ring->recv, ring->recv_mr);
  ring->send_mr = ring->recv_mr = NULL;
  ring->room = 0;
}

/* Makes room for `bytes`; nothing is in flight. */
static ncclResult_t ensure_stage(struct tt_net_ring *ring, size_t bytes)
{
  if (bytes <= ring->room) return ncclSuccess;
  size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
  drop_stage(ring);
  free(ring->stage);
  ring->stage = aligned_alloc(page, room);
  if (!ring->stage) return TT_FAIL(ncclSystemError, "out of memory for %zu bytes of an all-gather", bytes);
  TT_TRY(tt_net_reg_mr(ring->net, ring->send, ring->stage, room, NCCL_PTR_HOST, &ring->send_mr));
  TT_TRY(tt_net_reg_mr(ring->net, ring->recv, ring->stage, room, NCCL_PTR_HOST, &ring->recv_mr));
  ring->room = room;
  return ncclSuccess;
}

/* Sends `bytes` at `out` to the next rank while receiving as many from the previous one at `in`. */
static ncclResult_t shift(struct tt_bootstrap *b, unsigned char *out, unsigned char *in, size_t bytes,
                          tt_deadline deadline)
{
  struct tt_net_ring *ring = b->ring;
  void *sending = NULL, *receiving = NULL, *buffer = in;
  int sent = 0, received = 0, size = 0, tag = RING_TAG;
  for (int turns = 0; !sent || !received;) {
    int before = (sending != NULL) + (receiving != NULL) + sent + received;
    /* A request that is NULL was not posted: the plugin has no room now. */
    if (!receiving)
      TT_TRY(tt_net_irecv(ring->net, ring->recv, 1, &buffer, &bytes, &tag, &ring->recv_mr, NULL, &receiving));
    if (!sending) TT_TRY(tt_net_isend(ring->net, ring->send, out, bytes, tag, ring->send_mr, NULL, &sending));
    if (receiving && !received) TT_TRY(tt_net_test(ring->net, receiving, &received, &size));
    if (sending && !sent) TT_TRY(tt_net_test(ring->net, sending, &sent, NULL));
    if ((sending != NULL) + (receiving != NULL) + sent + received > before)
      turns = 0;
    else
      TT_TRY(pause_ring(b, turns++, deadline, "in an all-gather over the network"));
  }
  if ((size_t)size == bytes) return ncclSuccess;
  return TT_FAIL(ncclInternalError,
                 "rank %d got %d bytes over %s and expected %zu: the ranks are not in the same exchange", b->rank, size,
                 tt_net_name(ring->net), bytes);
}

static ncclResult_t around(struct tt_bootstrap *b, unsigned char *data, size_t bytes)
{
  struct tt_net_ring *ring = b->ring;
  tt_deadline deadline = tt_gather_deadline();
  TT_TRY(ensure_stage(ring, bytes * (size_t)b->nranks));
  memcpy(ring->stage + (size_t)b->rank * bytes, data + (size_t)b->rank * bytes, bytes);
  for (int step = 0; step < b->nranks - 1; step++) {
    size_t out = (size_t)((b->rank - step + b->nranks) % b->nranks) * bytes;
    size_t in = (size_t)((b->rank - step - 1 + b->nranks) % b->nranks) * bytes;
    for (size_t at = 0; at < bytes; at += ring->piece)
      TT_TRY(shift(b, ring->stage + out + at, ring->stage + in + at, TT_MIN(ring->piece, bytes - at), deadline));
  }
  memcpy(data, ring->stage, bytes * (size_t)b->nranks);
  return ncclSuccess;
}

ncclResult_t tt_net_ring_all_gather(struct tt_bootstrap *b, void *data, size_t bytes)
{
  if (b->ring->broken)
    return TT_FAIL(ncclInternalError, "rank %d's bootstrap ring over %s is unusable after an earlier error", b->rank,
                   tt_net_name(b->ring->net));
  if (bytes == 0) return tt_bootstrap_barrier(b);
  ncclResult_t result = around(b, data, bytes);
  b->ring->broken = result != ncclSuccess;
  return result;
}

/* What each rank tells the others: whether it listens, and where. */
struct offer {
  uint8_t good;
  unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
};

static ncclResult_t connect_ring(struct tt_bootstrap *b, struct tt_net_ring *ring, const struct offer *offers)
{
  tt_deadline deadline = tt_gather_deadline();
  _Alignas(16) unsigned char handle[NCCL_NET_HANDLE_MAXSIZE]; /* the plugin keeps its state in it */
  memcpy(handle, offers[(b->rank + 1) % b->nranks].handle, sizeof(handle));
  for (int turns = 0; !ring->send || !ring->recv; turns++) {
    if (!ring->send) TT_TRY(tt_net_connect(ring->net, ring->device, handle, &ring->send));
    if (!ring->recv) TT_TRY(tt_net_accept(ring->net, ring->listen, &ring->recv));
    if (!ring->send || !ring->recv) TT_TRY(pause_ring(b, turns, deadline, "connecting the bootstrap ring"));
  }
  return ncclSuccess;
}

static ncclResult_t listen_ring(struct tt_net_ring *ring, unsigned char *handle)
{
  ncclNetProperties_v12_t props;
  TT_TRY(tt_net_get_properties(ring->net, ring->device, &props));
  ring->piece = TT_MIN(PIECE_MAX, (size_t)props.maxP2pBytes);
  return tt_net_listen(ring->net, ring->device, handle, &ring->listen);
}

static void free_ring(struct tt_net_ring *ring)
{
  drop_stage(ring);
  tt_net_close_send(ring->net, ring->send);
  tt_net_close_recv(ring->net, ring->recv);
  tt_net_close_listen(ring->net, ring->listen);
  free(ring->stage);
  free(ring);
}

ncclResult_t tt_bootstrap_use_net(struct tt_bootstrap *b, struct tt_net *net, int device)
{
  struct tt_net_ring *ring = NULL;
  struct offer *offers = NULL;
  ncclResult_t result, local = ncclSuccess;
  if (b->nranks == 1 || b->ring) return ncclSuccess;
  TT_TRY_GOTO(TT_CALLOC(&ring, 1), result, out);
  ring->net = net;
  ring->device = device;
  TT_TRY_GOTO(TT_CALLOC(&offers, (size_t)b->nranks), result, out);
  local = listen_ring(ring, offers[b->rank].handle);
  offers[b->rank].good = local == ncclSuccess;
  TT_TRY_GOTO(tt_bootstrap_all_gather(b, offers, sizeof(*offers)), result, out);
  TT_TRY_GOTO(local, result, out);
  for (int r = 0; r < b->nranks; r++)
    if (!offers[r].good)
      TT_TRY_GOTO(TT_FAIL(ncclRemoteError, "rank %d cannot listen on %s, so the bootstrap ring cannot use it", r,
                          tt_net_name(net)),
                  result, out);
  TT_TRY_GOTO(connect_ring(b, ring, offers), result, out);
  TT_TRY_GOTO(tt_net_close_listen(net, ring->listen), result, out);
  ring->listen = NULL;
  /* Nobody uses the ring before all have it. */
  TT_TRY_GOTO(tt_bootstrap_barrier(b), result, out);
  TT_INFO(TT_INIT | TT_BOOTSTRAP, "Bootstrap: the all-gather of %d ranks runs over %s", b->nranks, tt_net_name(net));
  b->ring = ring;
out:
  free(offers);
  if (result != ncclSuccess && ring) free_ring(ring);
  return result;
}

void tt_net_ring_destroy(struct tt_bootstrap *b)
{
  if (b->ring) free_ring(b->ring);
  b->ring = NULL;
}
