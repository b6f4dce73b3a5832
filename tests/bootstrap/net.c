/* The all-gather over a net plugin: a network inside this process that often says "not yet", moves small pieces only,
 * and can be told to fail. */
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "plugin/net.h"

#define PIECE 1000

struct request {
  struct request *next;    /* in the pipe, until matched */
  struct request *sibling; /* of the same comm, until tested done */
  struct comm *comm;
  unsigned char *data;
  size_t bytes;
  int tag, copied, polls, done;
};

struct pipe {
  struct request *sends, *recvs; /* not matched, oldest first */
  int ends;                      /* open comms */
};

struct comm {
  struct pipe *pipe;
  struct request *requests;
  int calls;
};

struct listener {
  struct pipe *arrived;
  int calls;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int postponed, open_comms, fail_after; /* fail_after: sends that still work; negative: all do */

static ncclResult_t net_init(void **ctx, uint64_t id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t logger,
                             ncclProfilerCallback_t profiler)
{
  (void)id, (void)config, (void)logger, (void)profiler;
  *ctx = NULL;
  return ncclSuccess;
}

static ncclResult_t net_devices(int *ndev)
{
  *ndev = 1;
  return ncclSuccess;
}

static ncclResult_t net_properties(int dev, ncclNetProperties_v12_t *props)
{
  (void)dev;
  memset(props, 0, sizeof(*props));
  props->name = (char *)"within";
  props->ptrSupport = NCCL_PTR_HOST;
  props->maxComms = 1000;
  props->maxRecvs = 1;
  props->maxP2pBytes = props->maxCollBytes = PIECE;
  props->vProps.ndevs = 1;
  props->maxMultiRequestSize = 1;
  return ncclSuccess;
}

static ncclResult_t net_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
  (void)ctx, (void)dev;
  struct listener *listener = calloc(1, sizeof(*listener));
  memcpy(handle, &listener, sizeof(listener));
  *listen_comm = listener;
  atomic_fetch_add(&open_comms, 1);
  return ncclSuccess;
}

static ncclResult_t net_connect(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v12_t **device)
{
  (void)ctx, (void)dev, (void)device;
  struct listener *listener;
  unsigned char *calls = (unsigned char *)handle + 64; /* state in the handle, which stays the same storage */
  if ((*calls)++ < 3) return ncclSuccess;
  memcpy(&listener, handle, sizeof(listener));
  struct comm *mine = calloc(1, sizeof(*mine));
  mine->pipe = calloc(1, sizeof(*mine->pipe));
  mine->pipe->ends = 2;
  pthread_mutex_lock(&lock);
  listener->arrived = mine->pipe;
  pthread_mutex_unlock(&lock);
  *comm = mine;
  atomic_fetch_add(&open_comms, 1);
  return ncclSuccess;
}

static ncclResult_t net_accept(void *listen_comm, void **comm, ncclNetDeviceHandle_v12_t **device)
{
  (void)device;
  struct listener *listener = listen_comm;
  pthread_mutex_lock(&lock);
  struct pipe *pipe = listener->arrived;
  listener->arrived = NULL;
  pthread_mutex_unlock(&lock);
  if (!pipe) return ncclSuccess;
  struct comm *mine = calloc(1, sizeof(*mine));
  mine->pipe = pipe;
  *comm = mine;
  atomic_fetch_add(&open_comms, 1);
  return ncclSuccess;
}

static ncclResult_t net_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
  (void)comm, (void)size, (void)type;
  *mhandle = data; /* checked in post() */
  return ncclSuccess;
}

static ncclResult_t net_dereg(void *comm, void *mhandle)
{
  (void)comm, (void)mhandle;
  return ncclSuccess;
}

/* Two of three calls post nothing. */
static struct request *post(struct comm *comm, struct request **list, void *data, size_t bytes, int tag, void *mhandle)
{
  if (bytes > PIECE || (unsigned char *)data < (unsigned char *)mhandle) abort();
  if (++comm->calls % 3) {
    atomic_fetch_add(&postponed, 1);
    return NULL;
  }
  struct request *request = calloc(1, sizeof(*request));
  *request = (struct request){.data = data, .bytes = bytes, .tag = tag, .comm = comm};
  pthread_mutex_lock(&lock);
  request->sibling = comm->requests;
  comm->requests = request;
  while (*list) list = &(*list)->next;
  *list = request;
  while (comm->pipe->sends && comm->pipe->recvs) {
    struct request *s = comm->pipe->sends, *r = comm->pipe->recvs;
    if (s->bytes > r->bytes || s->tag != r->tag) abort();
    memcpy(r->data, s->data, s->bytes);
    r->copied = s->copied = (int)s->bytes;
    r->done = s->done = 1;
    comm->pipe->sends = s->next;
    comm->pipe->recvs = r->next;
  }
  pthread_mutex_unlock(&lock);
  return request;
}

static ncclResult_t net_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                              void **request)
{
  (void)phandle;
  struct comm *mine = comm;
  *request = NULL;
  if (atomic_load(&fail_after) >= 0 && atomic_fetch_sub(&fail_after, 1) <= 0) {
    atomic_store(&fail_after, 0);
    return ncclSystemError;
  }
  *request = post(mine, &mine->pipe->sends, data, size, tag, mhandle);
  return ncclSuccess;
}

static ncclResult_t net_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **request)
{
  (void)phandles;
  struct comm *mine = comm;
  if (n != 1) return ncclInternalError;
  *request = post(mine, &mine->pipe->recvs, data[0], sizes[0], tags[0], mhandles[0]);
  return ncclSuccess;
}

static ncclResult_t net_test(void *opaque, int *done, int *sizes)
{
  struct request *request = opaque;
  pthread_mutex_lock(&lock);
  *done = request->done && request->polls++ >= 2;
  struct request **at = &request->comm->requests;
  while (*done && *at != request) at = &(*at)->sibling;
  if (*done) *at = request->sibling;
  pthread_mutex_unlock(&lock);
  if (!*done) return ncclSuccess;
  if (sizes) *sizes = request->copied;
  free(request);
  return ncclSuccess;
}

static ncclResult_t close_comm(void *comm)
{
  struct comm *mine = comm;
  pthread_mutex_lock(&lock);
  struct pipe *pipe = mine->pipe;
  /* This end's requests are dropped: nobody copies into a closed comm's buffers. */
  while (mine->requests) {
    struct request *request = mine->requests;
    mine->requests = request->sibling;
    struct request **lists[2] = {&pipe->sends, &pipe->recvs};
    for (int i = 0; i < 2; i++)
      for (struct request **at = lists[i]; *at; at = &(*at)->next)
        if (*at == request) {
          *at = request->next;
          break;
        }
    free(request);
  }
  if (--pipe->ends == 0) free(pipe);
  pthread_mutex_unlock(&lock);
  free(mine);
  atomic_fetch_sub(&open_comms, 1);
  return ncclSuccess;
}

static ncclResult_t net_close_listen(void *listen_comm)
{
  free(listen_comm);
  atomic_fetch_sub(&open_comms, 1);
  return ncclSuccess;
}

static ncclResult_t net_finalize(void *ctx)
{
  (void)ctx;
  return ncclSuccess;
}

__attribute__((visibility("default"))) extern const ncclNet_v12_t ncclNetPlugin_v12;
const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = "Within",
    .init = net_init,
    .devices = net_devices,
    .getProperties = net_properties,
    .listen = net_listen,
    .connect = net_connect,
    .accept = net_accept,
    .regMr = net_reg,
    .deregMr = net_dereg,
    .isend = net_isend,
    .irecv = net_irecv,
    .test = net_test,
    .closeSend = close_comm,
    .closeRecv = close_comm,
    .closeListen = net_close_listen,
    .finalize = net_finalize,
};

static ncclResult_t open_net(struct rank *me, struct tt_net **net)
{
  struct tt_net_request request = {.comm_id = 7, .traffic_class = -1};
  struct tt_net_set *set = NULL;
  uint8_t *offers = calloc((size_t)me->nranks, TT_NET_OFFER_BYTES);
  ncclResult_t result = tt_net_candidates(&request, &set);
  if (set) tt_net_offer(set, offers + (size_t)me->rank * TT_NET_OFFER_BYTES);
  if (result == ncclSuccess) result = tt_bootstrap_all_gather(me->b, offers, TT_NET_OFFER_BYTES);
  if (result == ncclSuccess) result = tt_net_choose(set, offers, me->nranks, me->rank, net);
  tt_net_set_free(set);
  free(offers);
  return result == ncclSuccess && !*net ? ncclInternalError : result;
}

static ncclResult_t gathers(struct rank *me)
{
  uint64_t seed = 20;
  ncclResult_t result = ncclSuccess;
  for (int g = 0; g < 8 && result == ncclSuccess; g++) {
    size_t bytes = g == 0 ? 0 : 1 + random_next(&seed) % (g == 4 ? 5 * PIECE : 900);
    unsigned char *data = calloc((size_t)me->nranks + 1, bytes);
    memset(data + (size_t)me->rank * bytes, g * 16 + me->rank, bytes);
    result = tt_bootstrap_all_gather(me->b, data, bytes);
    for (int r = 0; r < me->nranks && result == ncclSuccess; r++)
      for (size_t i = 0; i < bytes; i++)
        if (data[(size_t)r * bytes + i] != (unsigned char)(g * 16 + r)) result = ncclInternalError;
    free(data);
  }
  return result;
}

static ncclResult_t body_ring(struct rank *me)
{
  struct tt_net *net = NULL;
  ncclResult_t result = open_net(me, &net);
  if (result == ncclSuccess) result = tt_bootstrap_use_net(me->b, net, 0);
  if (me->arg && result == ncclSuccess) {
    ncclResult_t barrier = tt_bootstrap_barrier(me->b);
    if (me->rank == 0) atomic_store(&fail_after, *(int *)me->arg);
    if (barrier == ncclSuccess) barrier = tt_bootstrap_barrier(me->b);
    result = barrier;
  }
  if (result == ncclSuccess) result = gathers(me);
  tt_bootstrap_destroy(me->b); /* before its net */
  me->b = NULL;
  ncclResult_t closed = tt_net_close(net);
  return result == ncclSuccess ? closed : result;
}

START_TEST(ring_gathers)
{
  static const int sizes[] = {1, 2, 3, 6};
  environment((const char *[]){"NCCL_NET_PLUGIN=STATIC_PLUGIN", NULL});
  ck_assert_int_eq(tt_net_reset(), ncclSuccess);
  atomic_store(&fail_after, -1);
  atomic_store(&postponed, 0);
  ranks_succeed(sizes[_i], body_ring, NULL);
  ck_assert_int_eq(atomic_load(&open_comms), 0);
  if (sizes[_i] > 1) ck_assert_int_gt(atomic_load(&postponed), 10); /* the gathers did run over the plugin */
}
END_TEST

/* A network that fails in the middle: every rank gets an error in bounded time, and everything is closed. */
START_TEST(ring_fails)
{
  int good_sends = 7;
  ncclUniqueId id;
  struct rank ranks[4] = {0};
  environment((const char *[]){"NCCL_NET_PLUGIN=STATIC_PLUGIN", NULL});
  ck_assert_int_eq(tt_net_reset(), ncclSuccess);
  atomic_store(&fail_after, -1);
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ranks_run(&id, 4, body_ring, &good_sends, ranks);
  for (int r = 0; r < 4; r++) ck_assert_int_ne(ranks[r].result, ncclSuccess);
  ck_assert_int_eq(atomic_load(&open_comms), 0);
}
END_TEST

enum { STOPPED = 2, STOPPED_OF = 3 };

static pthread_barrier_t all_here; /* unlike the bootstrap's, nobody waits for a peer in it */
static _Atomic int given_up;       /* ranks that have gone on without STOPPED */

static ncclResult_t gather_without_one(struct rank *me)
{
  struct tt_net *net = NULL;
  unsigned char data[STOPPED_OF] = {0};
  ncclResult_t result = open_net(me, &net);
  if (result == ncclSuccess) result = tt_bootstrap_use_net(me->b, net, 0);
  pthread_barrier_wait(&all_here);
  forget_waits(me);
  pthread_barrier_wait(&all_here);
  if (me->rank == STOPPED)
    stand_still(me, &given_up, STOPPED_OF - 1);
  else if (result == ncclSuccess)
    result = tt_bootstrap_all_gather(me->b, data, 1);
  atomic_fetch_add(&given_up, 1);
  tt_bootstrap_destroy(me->b);
  me->b = NULL;
  tt_net_close(net);
  return result;
}

/* The ring's network says nothing of a rank that is stopped, so the bootstrap asks. */
START_TEST(ring_finds_a_stopped_rank)
{
  ncclUniqueId id;
  struct rank ranks[STOPPED_OF] = {0};
  environment(
      (const char *[]){"NCCL_NET_PLUGIN=STATIC_PLUGIN", "TUTTI_PEER_TIMEOUT=5", "NCCL_BOOTSTRAP_TIMEOUT=60", NULL});
  ck_assert_int_eq(tt_net_reset(), ncclSuccess);
  atomic_store(&fail_after, -1);
  atomic_store(&given_up, 0);
  pthread_barrier_init(&all_here, NULL, STOPPED_OF);
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ranks_run(&id, STOPPED_OF, gather_without_one, NULL, ranks);
  pthread_barrier_destroy(&all_here);
  for (int r = 0; r < STOPPED; r++) {
    ck_assert_int_eq(ranks[r].result, ncclRemoteError);
    ck_assert_msg(strstr(ranks[r].error, "rank 2 is gone"), "%s", ranks[r].error);
  }
  ck_assert_int_eq(atomic_load(&open_comms), 0);
}
END_TEST

Suite *suite_net(void)
{
  Suite *suite = suite_create("net");
  TCase *tests = tcase_create("net");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, ring_gathers, 0, 4);
  tcase_add_test(tests, ring_fails);
  tcase_add_test(tests, ring_finds_a_stopped_rank);
  suite_add_tcase(suite, tests);
  return suite;
}
