/* Ranks for tests. */
#include "world.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/param.h"

_Atomic unsigned ranks_left;
static bool with_net;
static const struct tt_device *with_device;
static void (*before_rank)(int rank);

void world_use_net(bool use)
{
  with_net = use;
}

void set_env(const char *name, const char *value)
{
  if (value)
    setenv(name, value, 1);
  else
    unsetenv(name);
  tt_param_reset();
}

static bool open_net(struct rank *rank)
{
  if (!with_net) return true;
  struct tt_net_request request = {.comm_id = 1, .traffic_class = -1};
  struct tt_net_set *set = NULL;
  uint8_t *offers = calloc((size_t)rank->nranks, TT_NET_OFFER_BYTES);
  ncclResult_t result = tt_net_candidates(&request, &set);
  tt_net_offer(set, offers + (size_t)rank->rank * TT_NET_OFFER_BYTES);
  if (result == ncclSuccess) result = tt_bootstrap_all_gather(rank->bootstrap, offers, TT_NET_OFFER_BYTES);
  if (result == ncclSuccess) result = tt_net_choose(set, offers, rank->nranks, rank->rank, &rank->net);
  tt_net_set_free(set);
  free(offers);
  return result == ncclSuccess && rank->net;
}

void world_use_device(const struct tt_device *device)
{
  with_device = device;
}

/* A device in host memory that takes slots of a pool; its works are the tests' own. */
static ncclResult_t no_properties(int index, struct tt_device_properties *properties)
{
  (void)index, (void)properties;
  return ncclSuccess;
}

static ncclResult_t open_nothing(const struct tt_device_config *config, struct tt_device_context **context)
{
  (void)config;
  *context = NULL;
  return ncclSuccess;
}

static void close_nothing(struct tt_device_context *context)
{
  (void)context;
}

const struct tt_device world_device_by_hand = {.size = sizeof(struct tt_device),
                                               .name = "by hand",
                                               .features = TT_DEVICE_POOLED,
                                               .properties = no_properties,
                                               .open = open_nothing,
                                               .close = close_nothing};

void world_before_rank(void (*before)(int rank))
{
  before_rank = before;
}

static bool open_device(struct rank *rank, struct tt_device_properties *properties)
{
  const struct tt_device_config config = {
      .size = sizeof(config), .index = rank->rank, .rank = rank->rank, .nranks = rank->nranks};
  *properties = (struct tt_device_properties){.size = sizeof(*properties)};
  return with_device->properties(rank->rank, properties) == ncclSuccess &&
         tt_context_open(with_device, &config, &rank->context) == ncclSuccess;
}

static bool open_rank(struct rank *rank)
{
  struct tt_device_properties properties;
  if (tt_bootstrap_create(&rank->id, rank->rank, rank->nranks, &rank->abort, &rank->bootstrap) != ncclSuccess)
    return false;
  if (!open_net(rank)) return false;
  if (with_device && !open_device(rank, &properties)) return false;
  struct tt_transport_config config = {.rank = rank->rank,
                                       .nranks = rank->nranks,
                                       .device_index = rank->rank,
                                       .device = with_device,
                                       .context = rank->context,
                                       .properties = with_device ? &properties : NULL,
                                       .net = rank->net,
                                       .buffer_bytes = {[TT_PROTO_LL] = 4096, [TT_PROTO_SIMPLE] = 8192},
                                       .abort = &rank->abort};
  return tt_transport_env_create(&config, rank->bootstrap, &rank->env) == ncclSuccess &&
         tt_connect_create(rank->env, rank->bootstrap, &rank->connect) == ncclSuccess &&
         tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess;
}

void rank_close(struct rank *rank)
{
  tt_connect_destroy(rank->connect);
  tt_bootstrap_destroy(rank->bootstrap);
  tt_transport_env_destroy(rank->env);
  tt_context_release(rank->context);
  tt_net_close(rank->net);
  rank->connect = NULL;
  rank->bootstrap = NULL;
  rank->env = NULL;
  rank->context = NULL;
  rank->net = NULL;
}

static void *run_rank(void *arg)
{
  struct rank *rank = arg;
  if (open_rank(rank)) {
    rank->body(rank);
    /* A rank that failed leaves at once, and the others see it. */
    if (!rank->failed && !rank->abort && rank->bootstrap) tt_bootstrap_barrier(rank->bootstrap);
  } else {
    fprintf(stderr, "rank %d could not start\n", rank->rank);
    rank->failed = true;
  }
  rank_close(rank);
  return NULL;
}

static struct rank *make_ranks(int n, void (*body)(struct rank *rank))
{
  struct rank *ranks = calloc((size_t)n, sizeof(*ranks));
  for (int r = 0; r < n; r++) {
    ranks[r].rank = r;
    ranks[r].nranks = n;
    ranks[r].body = body;
  }
  return ranks;
}

void world_run(int n, void (*body)(struct rank *rank))
{
  struct rank *ranks = make_ranks(n, body);
  pthread_t *threads = calloc((size_t)n, sizeof(*threads));
  ck_assert_int_eq(tt_bootstrap_unique_id(&ranks[0].id), ncclSuccess);
  for (int r = 0; r < n; r++) {
    ranks[r].id = ranks[0].id;
    ck_assert_int_eq(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
  }
  int failed = 0;
  for (int r = 0; r < n; r++) {
    pthread_join(threads[r], NULL);
    failed += ranks[r].failed;
  }
  free(threads);
  free(ranks);
  ck_assert_int_eq(failed, 0);
}

/* Rank 0 makes the id, so that the process that forks never has threads: a child would inherit the locks they hold. */
static int run_process(struct rank *rank, const int ids[2])
{
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (before_rank) before_rank(rank->rank);
  if (rank->rank == 0) {
    if (tt_bootstrap_unique_id(&rank->id) != ncclSuccess) return 1;
    for (int r = 1; r < rank->nranks; r++)
      if (write(ids[1], &rank->id, sizeof(rank->id)) != sizeof(rank->id)) return 1;
  } else if (read(ids[0], &rank->id, sizeof(rank->id)) != sizeof(rank->id)) {
    return 1;
  }
  run_rank(rank);
  return rank->failed ? 1 : 0;
}

void world_run_processes(int n, void (*body)(struct rank *rank), int *statuses)
{
  struct rank *ranks = make_ranks(n, body);
  pid_t pids[64]; /* not allocated: a child that calls exit would seem to leak it */
  int ids[2];
  ck_assert_int_le(n, 64);
  ck_assert_int_eq(pipe(ids), 0);
  for (int r = 0; r < n; r++) {
    pids[r] = fork();
    if (pids[r] == 0) _exit(run_process(&ranks[r], ids));
  }
  close(ids[0]);
  close(ids[1]);
  bool all_good = true;
  for (int r = 0; r < n; r++) {
    int status;
    waitpid(pids[r], &status, 0);
    status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (statuses) statuses[r] = status;
    all_good = all_good && status == 0;
  }
  free(ranks);
  ck_assert(statuses || all_good);
}

/* False on an error, or when the other rank has let this one wait for too long. */
static bool drive(struct rank *rank, tt_deadline deadline)
{
  if (tt_deadline_passed(deadline)) return false;
  bool moved = false, idle;
  if (rank->env->proxy && tt_proxy_progress(rank->env->proxy, &moved, &idle) != ncclSuccess) return false;
  if (!moved) sched_yield();
  return true;
}

static unsigned char byte_of(uint64_t step, size_t i)
{
  return (unsigned char)(step * 31 + i);
}

static unsigned char *slot_by_hand(const struct tt_conn *conn, unsigned slot)
{
  if (conn->flags & TT_CONN_POOLED) return conn->fifo[slot].pointer;
  return conn->slots[TT_PROTO_SIMPLE] + slot * conn->slot_bytes[TT_PROTO_SIMPLE];
}

bool expect_by_hand(struct tt_connector *connector, int count)
{
  return !connector->proxied || tt_proxy_expect(connector->proxied, TT_PROTO_SIMPLE, (uint64_t)count) == ncclSuccess;
}

bool send_by_hand(struct rank *rank, struct tt_connector *connector, int count)
{
  struct tt_conn *conn = &connector->conn;
  tt_deadline deadline = tt_deadline_in_ms(60000);
  if (!expect_by_hand(connector, count)) return false;
  for (int i = 0; i < count; i++, conn->step++) {
    while ((int64_t)(conn->step - atomic_load_explicit(conn->head, memory_order_acquire)) >= TT_SLOTS)
      if (!drive(rank, deadline)) return false;
    unsigned slot = (unsigned)(conn->step % TT_SLOTS);
    unsigned char *data = slot_by_hand(conn, slot);
    size_t bytes = (conn->step * 37) % (conn->slot_bytes[TT_PROTO_SIMPLE] - TT_SLOT_HEADER + 1);
    struct tt_slot_header header = {.bytes = bytes, .step = conn->step};
    memcpy(data, &header, sizeof(header));
    for (size_t k = 0; k < bytes; k++) data[TT_SLOT_HEADER + k] = byte_of(conn->step, k);
    if (conn->fifo && !(conn->flags & TT_CONN_POOLED)) conn->fifo[slot] = (struct tt_conn_fifo){.mode = TT_FIFO_NORMAL};
    if (conn->fifo) conn->fifo[slot].size = (int64_t)(TT_SLOT_HEADER + bytes);
    atomic_store_explicit(conn->tail, conn->step + 1, memory_order_release);
    tt_doorbell_ring(conn->peer_bell);
  }
  uint64_t through = conn->flags & TT_CONN_POOLED ? conn->step - TT_SLOTS : conn->step;
  struct tt_proxy_state state = {0};
  while (connector->proxied &&
         (atomic_load(conn->head) != through ||
          (tt_proxy_look(rank->env->proxy, connector->proxied, &state) && state.done != conn->step)))
    if (!drive(rank, deadline)) return false;
  return true;
}

bool recv_by_hand(struct rank *rank, struct tt_connector *connector, int count)
{
  return expect_by_hand(connector, count) && take_by_hand(rank, connector, count);
}

bool take_by_hand(struct rank *rank, struct tt_connector *connector, int count)
{
  struct tt_conn *conn = &connector->conn;
  tt_deadline deadline = tt_deadline_in_ms(60000);
  bool good = true;
  for (int i = 0; i < count; i++, conn->step++) {
    while (atomic_load_explicit(conn->tail, memory_order_acquire) <= conn->step)
      if (!drive(rank, deadline)) return false;
    unsigned slot = (unsigned)(conn->step % TT_SLOTS);
    unsigned char *data = slot_by_hand(conn, slot);
    struct tt_slot_header header;
    memcpy(&header, data, sizeof(header));
    size_t bytes = (conn->step * 37) % (conn->slot_bytes[TT_PROTO_SIMPLE] - TT_SLOT_HEADER + 1);
    good = good && header.bytes == bytes && header.step == conn->step;
    if (conn->fifo) good = good && conn->fifo[slot].size == (int64_t)(TT_SLOT_HEADER + bytes);
    for (size_t k = 0; k < bytes && good; k++) good = data[TT_SLOT_HEADER + k] == byte_of(conn->step, k);
    atomic_store_explicit(conn->head, conn->step + 1, memory_order_release);
    tt_doorbell_ring(conn->peer_bell);
  }
  return good;
}
