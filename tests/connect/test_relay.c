/* Sending through another rank: data, failures of every kind, and ends in every order. Rank 0 sends to rank 2 through
 * rank 1, whose user does nothing meanwhile. A counting plugin that claims several devices looks on. */
#include "world.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/log.h"
#include "tests/common/held.h"
#include "tests/fakes/net/counting.h"
#include "transport/relay.h"

#if defined NET_SOCKET && defined NET_COUNTING

#define CHANNELS 3
#define PATIENCE_MS 60000

static counting_read_fn *counting_read;
static counting_hold_fn *counting_hold;
static struct counting seen;

static void use_counting(void)
{
  world_use_net(true);
  set_env("NCCL_SHM_DISABLE", "1");
  set_env("NCCL_NET_PLUGIN", NET_COUNTING);
  set_env("COUNTING_INNER", NET_SOCKET);
  set_env("COUNTING_DEVICES", "4");
  /* Both stay loaded to the end, as in test_net.c. */
  ck_assert_ptr_nonnull(dlopen(NET_SOCKET, RTLD_NOW | RTLD_LOCAL));
  void *plugin = dlopen(NET_COUNTING, RTLD_NOW | RTLD_LOCAL);
  ck_assert_ptr_nonnull(plugin);
  counting_read = (counting_read_fn *)dlsym(plugin, "counting_read");
  counting_hold = (counting_hold_fn *)dlsym(plugin, "counting_hold");
  ck_assert_ptr_nonnull(counting_read);
  ck_assert_ptr_nonnull(counting_hold);
  counting_read(&seen, 1);
}

/* Everybody sends through the rank that comes next; what rank r receives comes on device 0. */
static bool through_next(const void *routes, int peer, int channel, int index, bool send, struct tt_route *route)
{
  const struct rank *rank = routes;
  int next = (rank->rank + 1) % rank->nranks;
  (void)peer, (void)index;
  *route = (struct tt_route){.device = send ? 1 + channel : 0, .rank = send ? next : rank->rank};
  return true;
}

static bool use_routes(struct rank *rank)
{
  rank->env->route = through_next;
  rank->env->routes = rank;
  return tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess;
}

static int conn_index; /* 1: with slots of a pool */

static ncclResult_t connect_channels(struct rank *rank, int to, int from, int channels)
{
  ncclResult_t result = ncclSuccess;
  for (int c = 0; c < channels; c++) {
    if (to >= 0 && result == ncclSuccess) result = tt_connect_need(rank->connect, to, c, conn_index, true);
    if (from >= 0 && result == ncclSuccess) result = tt_connect_need(rank->connect, from, c, conn_index, false);
  }
  return result == ncclSuccess ? tt_connect_run(rank->connect) : result;
}

static struct tt_connector *end_of(struct rank *rank, int channel)
{
  return rank->rank == 0 ? tt_connect_get(rank->connect, 2, channel, conn_index, true)
                         : tt_connect_get(rank->connect, 0, channel, conn_index, false);
}

static bool pass_on(struct rank *rank, int count)
{
  for (int c = 0; c < CHANNELS; c++) {
    struct tt_connector *end = end_of(rank, c);
    if (!end || !(rank->rank == 0 ? send_by_hand(rank, end, count) : recv_by_hand(rank, end, count))) return false;
  }
  return true;
}

static bool connect_pair(struct rank *rank)
{
  if (rank->rank == 1) return true;
  return connect_channels(rank, rank->rank == 0 ? 2 : -1, rank->rank == 0 ? -1 : 0, CHANNELS) == ncclSuccess;
}

/* ---- Data ---- */

/* Every rank sends, receives, and relays. */
static void crosswise(struct rank *rank)
{
  int n = rank->nranks, to = (rank->rank + 2) % n, from = (rank->rank + n - 2) % n;
  size_t before = tt_shm_used(rank->env->shm);
  RANK_CHECK(rank, use_routes(rank));
  RANK_CHECK(rank, connect_channels(rank, to, from, CHANNELS) == ncclSuccess);
  for (int c = 0; c < CHANNELS; c++) {
    struct tt_connector *send = tt_connect_get(rank->connect, to, c, conn_index, true);
    struct tt_connector *recv = tt_connect_get(rank->connect, from, c, conn_index, false);
    char label[96], expected[96];
    RANK_CHECK(rank, send && recv && send->proxied && recv->proxied);
    RANK_CHECK(rank, send->conn.flags == (conn_index ? TT_CONN_PROXIED | TT_CONN_POOLED : TT_CONN_PROXIED) &&
                         send->conn.fifo && !send->conn.peer_bell);
    tt_transport_net.label(rank->env, send, label, sizeof(label));
    snprintf(expected, sizeof(expected), "NET/Counting/%d(%d)%s", 1 + c, (rank->rank + 1) % n,
             conn_index ? "/Shared" : "");
    RANK_CHECK(rank, strcmp(label, expected) == 0);
    for (int i = 0; i < 5; i++) {
      RANK_CHECK(rank, expect_by_hand(recv, 20));
      RANK_CHECK(rank, send_by_hand(rank, send, 20));
      RANK_CHECK(rank, take_by_hand(rank, recv, 20));
    }
  }
  if (conn_index) return;
  /* All blocks are given back; a relay that still waits for its users keeps its doorbell. */
  RANK_CHECK(rank, tt_shm_used(rank->env->shm) > before + CHANNELS * 8192);
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  tt_connect_destroy(rank->connect);
  rank->connect = NULL;
  RANK_CHECK(rank, tt_shm_used(rank->env->shm) <= before + 4096);
}

START_TEST(data)
{
  use_counting();
  world_run(4, crosswise);
  counting_read(&seen, 0);
  for (int c = 0; c < CHANNELS; c++) {
    ck_assert_int_eq(seen.connected[1 + c], 4);
    ck_assert_int_eq(seen.listened[1 + c], 0);
  }
  ck_assert_int_eq(seen.listened[0], 4 * CHANNELS);
  ck_assert_int_eq(seen.isends, 4 * CHANNELS * 100);
  ck_assert_int_eq(seen.sends + seen.recvs, 0);
  ck_assert_uint_eq(seen.registered, 0);
}
END_TEST

START_TEST(data_of_processes)
{
  use_counting();
  world_run_processes(4, crosswise, NULL);
}
END_TEST

static void use_pool(const char *slots)
{
  use_counting();
  world_use_device(&world_device_by_hand);
  conn_index = 1;
  set_env("NCCL_NET_SHARED_COMMS", "0");
  set_env("TUTTI_NET_POOL_SLOTS", slots);
}

/* Down to one slot for all, so that spares are needed. */
START_TEST(slots_of_a_pool)
{
  static const char *const slots[] = {"64", "1"};
  for (int i = 0; i < 2; i++) {
    use_pool(slots[i]);
    world_run(4, crosswise);
    counting_read(&seen, 0);
    for (int c = 0; c < CHANNELS; c++) ck_assert_int_eq(seen.connected[1 + c], 4);
    ck_assert_int_eq(seen.sends + seen.recvs, 0);
    ck_assert_uint_eq(seen.registered, 0);
  }
}
END_TEST

START_TEST(slots_of_a_pool_of_processes)
{
  use_pool("8");
  world_run_processes(4, crosswise, NULL);
}
END_TEST

/* ---- Failures ---- */

static bool says(const char *a, const char *b)
{
  const char *text = tt_log_thread_error();
  bool good = strstr(text, a) && strstr(text, b);
  if (!good) fprintf(stderr, "it says: %s\n", text);
  return good;
}

/* The error of rank 0's engine, which moves on until there is one. */
static ncclResult_t await_error(struct rank *rank)
{
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  ncclResult_t result = ncclSuccess;
  bool moved, idle;
  while (result == ncclSuccess && !tt_deadline_passed(deadline)) {
    result = tt_proxy_progress(rank->env->proxy, &moved, &idle);
    sched_yield();
  }
  return result;
}

/* Fills one slot as an executor does; of a pool, the engine has granted one. */
static void post_one(struct tt_conn *conn)
{
  struct tt_slot_header header = {.step = conn->step};
  uint64_t slot = conn->step % TT_SLOTS;
  bool pooled = conn->flags & TT_CONN_POOLED;
  if (!pooled) conn->fifo[slot] = (struct tt_conn_fifo){.mode = TT_FIFO_NORMAL};
  conn->fifo[slot].size = TT_SLOT_HEADER;
  memcpy(pooled ? conn->fifo[slot].pointer : conn->slots[TT_PROTO_SIMPLE] + slot * conn->slot_bytes[TT_PROTO_SIMPLE],
         &header, sizeof(header));
  atomic_store_explicit(conn->tail, ++conn->step, memory_order_release);
}

static void over_a_bad_network(struct rank *rank)
{
  RANK_CHECK(rank, use_routes(rank) && connect_pair(rank));
  if (rank->rank == 0) {
    struct tt_connector *first = end_of(rank, 0), *second = end_of(rank, 1);
    RANK_CHECK(rank, expect_by_hand(first, 1) && expect_by_hand(second, 1));
    post_one(&second->conn);
    RANK_CHECK(rank, await_error(rank) == ncclSystemError);
    RANK_CHECK(rank, says("rank 0: sending to rank 2 via NET/Counting/2(1), through rank 1, failed: ", "Counting"));
  }
}

START_TEST(failing_network)
{
  use_counting();
  set_env("COUNTING_SENDS", "0");
  world_run(3, over_a_bad_network);
  set_env("COUNTING_SENDS", NULL);
}
END_TEST

/* Ranks 0 and 2 agree on buffers of another size than the relay's. */
static void refused_by_the_relay(struct rank *rank)
{
  if (rank->rank != 1) rank->env->buffer_bytes[TT_PROTO_SIMPLE] *= 2;
  RANK_CHECK(rank, use_routes(rank));
  if (rank->rank == 1) return;
  RANK_CHECK(rank, !connect_pair(rank));
  if (rank->rank == 0) RANK_CHECK(rank, says("through rank 1, which says: ", "slots"));
}

START_TEST(refusing_relay)
{
  use_counting();
  world_run(3, refused_by_the_relay);
}
END_TEST

/* Rank 1 ends without a word to the others, but not before they have left the last barrier, which needs it. */
static void die_behind_barrier(struct rank *rank)
{
  const uint32_t tag = TT_TAG_USER + 77;
  if (rank->rank != 1) {
    RANK_CHECK(rank, tt_bootstrap_send(rank->bootstrap, 1, tag, "x", 1) == ncclSuccess);
    return;
  }
  for (int r = 0; r < rank->nranks; r++) {
    void *word = NULL;
    size_t bytes;
    if (r == 1) continue;
    RANK_CHECK(rank, tt_bootstrap_recv(rank->bootstrap, r, tag, &word, &bytes, tt_deadline_in_ms(PATIENCE_MS)) ==
                         ncclSuccess);
    free(word);
  }
  _exit(7);
}

static void without_the_relay(struct rank *rank)
{
  if (rank->rank == 1) tt_relay_close(rank->env); /* so that it does not answer before it dies */
  RANK_CHECK(rank, use_routes(rank));
  die_behind_barrier(rank);
  RANK_CHECK(rank, !connect_pair(rank));
  if (rank->rank == 0) RANK_CHECK(rank, says("through rank 1", "rank 1"));
  rank->abort = 1; /* the last barrier would wait for rank 1 */
}

START_TEST(dead_relay)
{
  int statuses[3];
  use_counting();
  world_run_processes(3, without_the_relay, statuses);
  ck_assert_int_eq(statuses[0], 0);
  ck_assert_int_eq(statuses[1], 7);
  ck_assert_int_eq(statuses[2], 0);
}
END_TEST

/* It dies while it is used. That rank 0 learns of it as of any death; and it closes its ends without a long wait. */
static void until_the_relay_dies(struct rank *rank)
{
  RANK_CHECK(rank, use_routes(rank) && connect_pair(rank));
  if (rank->rank != 1) RANK_CHECK(rank, pass_on(rank, 5));
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  die_behind_barrier(rank);
  rank->abort = 1;
  if (rank->rank == 2) return;
  int dead;
  char why[256];
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  while (!tt_bootstrap_dead(rank->bootstrap, &dead, why, sizeof(why)) && !tt_deadline_passed(deadline)) usleep(10000);
  RANK_CHECK(rank, tt_bootstrap_dead(rank->bootstrap, &dead, why, sizeof(why)) && dead == 1);
}

START_TEST(dying_relay)
{
  int statuses[3];
  use_counting();
  world_run_processes(3, until_the_relay_dies, statuses);
  ck_assert_int_eq(statuses[0], 0);
  ck_assert_int_eq(statuses[1], 7);
  ck_assert_int_eq(statuses[2], 0);
}
END_TEST

static void *abort_soon(void *arg)
{
  struct rank *rank = arg;
  usleep(100000);
  atomic_store(&rank->abort, 1);
  return NULL;
}

static _Atomic bool aborted;

/* A relay that does not answer: it has closed its half of the service. */
static void never_answered(struct rank *rank)
{
  pthread_t thread;
  RANK_CHECK(rank, use_routes(rank));
  if (rank->rank == 1) tt_relay_close(rank->env);
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 0) {
    RANK_CHECK(rank, pthread_create(&thread, NULL, abort_soon, rank) == 0);
    ncclResult_t result = connect_channels(rank, 2, -1, CHANNELS);
    pthread_join(thread, NULL);
    RANK_CHECK(rank, result == ncclInternalError && says("rank 0 was aborted", ""));
    /* The relay may yet come to its senses and write there. */
    size_t used = tt_shm_used(rank->env->shm);
    tt_connect_destroy(rank->connect);
    rank->connect = NULL;
    RANK_CHECK(rank, tt_shm_used(rank->env->shm) == used);
    atomic_store(&aborted, true);
  }
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  while (!atomic_load(&aborted) && !tt_deadline_passed(deadline)) usleep(1000);
  rank->abort = 1;
}

START_TEST(dying_relay_with_a_pool)
{
  int statuses[3];
  use_pool("8");
  world_run_processes(3, until_the_relay_dies, statuses);
  ck_assert_int_eq(statuses[0], 0);
  ck_assert_int_eq(statuses[2], 0);
}
END_TEST

START_TEST(abort_while_connecting)
{
  use_counting();
  world_run(3, never_answered);
  counting_read(&seen, 1);
  ck_assert_int_eq(seen.sends + seen.recvs + seen.listens, 0);
}
END_TEST

static void relay_aborts(struct rank *rank)
{
  RANK_CHECK(rank, use_routes(rank) && connect_pair(rank));
  if (rank->rank != 1) RANK_CHECK(rank, pass_on(rank, 5));
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 0) {
    RANK_CHECK(rank, expect_by_hand(end_of(rank, 0), 1));
    RANK_CHECK(rank, await_error(rank) == ncclRemoteError);
    RANK_CHECK(rank,
               says("rank 0: sending to rank 2 via NET/Counting/1(1)", "through rank 1, failed: rank 1 has aborted"));
  }
  rank->abort = 1;
}

START_TEST(aborted_relay)
{
  use_counting();
  world_run(3, relay_aborts);
}
END_TEST

START_TEST(aborted_relay_with_a_pool)
{
  use_pool("8");
  world_run(3, relay_aborts);
}
END_TEST

START_TEST(aborted_relay_of_processes)
{
  use_counting();
  world_run_processes(3, relay_aborts, NULL);
}
END_TEST

static bool await_stuck(void)
{
  struct counting now = {0};
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  while (now.held == 0 && !tt_deadline_passed(deadline)) {
    counting_read(&now, 0);
    usleep(1000);
  }
  return now.held > 0;
}

/* The relay's thread is in a call of the plugin that does not return before the communicators are gone. */
static void relay_is_stuck(struct rank *rank)
{
  bool moved, idle;
  RANK_CHECK(rank, use_routes(rank) && connect_pair(rank));
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 0) {
    RANK_CHECK(rank, expect_by_hand(end_of(rank, 0), 1));
    RANK_CHECK(rank, tt_proxy_progress(rank->env->proxy, &moved, &idle) == ncclSuccess && !idle);
    post_one(&end_of(rank, 0)->conn);
    RANK_CHECK(rank, tt_proxy_progress(rank->env->proxy, &moved, &idle) == ncclSuccess && !idle);
  }
  RANK_CHECK(rank, await_stuck());
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  atomic_store(&rank->abort, 1);
  rank_close(rank);
}

START_TEST(stuck_relay)
{
  for (int pool = 0; pool < 2; pool++) {
    if (pool)
      use_pool("8");
    else
      use_counting();
    counting_hold(1);
    world_run(3, relay_is_stuck);
    counting_hold(0);
  }
}
END_TEST

/* ---- Ends in every order ---- */

static struct shared {
  int order[3];
  _Atomic int turn;
} * shared;

static bool await_turn(int turn)
{
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  while (atomic_load(&shared->turn) < turn && !tt_deadline_passed(deadline)) usleep(500);
  return atomic_load(&shared->turn) >= turn;
}

/* Those that are left go on with each other after each end, if they can. */
static void in_turn(struct rank *rank)
{
  bool pair = rank->rank != 1;
  RANK_CHECK(rank, use_routes(rank) && connect_pair(rank));
  if (pair) RANK_CHECK(rank, pass_on(rank, 10));
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  for (int turn = 0; turn < 3; turn++) {
    RANK_CHECK(rank, await_turn(turn));
    if (shared->order[turn] == rank->rank) {
      rank_close(rank);
      atomic_fetch_add(&shared->turn, 1);
      return;
    }
    RANK_CHECK(rank, await_turn(turn + 1));
    if (turn == 0 && shared->order[0] == 1 && pair) RANK_CHECK(rank, pass_on(rank, 10));
  }
}

/* The process that relays ends in the way that programs do, while it is needed. */
static void in_turn_and_exit(struct rank *rank)
{
  in_turn(rank);
  if (rank->rank == 1 && !rank->failed && (shared->order[0] == 1 || shared->order[2] == 0)) exit(0);
}

static void share_turns(void)
{
  shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(shared, MAP_FAILED);
}

static void run_orders(int norders, bool processes)
{
  static const int orders[6][3] = {{1, 0, 2}, {2, 1, 0}, {0, 1, 2}, {0, 2, 1}, {2, 0, 1}, {1, 2, 0}};
  use_counting();
  share_turns();
  for (int i = 0; i < norders; i++) {
    memcpy(shared->order, orders[i], sizeof(shared->order));
    atomic_store(&shared->turn, 0);
    if (processes)
      world_run_processes(3, in_turn_and_exit, NULL);
    else
      world_run(3, in_turn);
  }
  munmap(shared, sizeof(*shared));
}

START_TEST(every_order)
{
  run_orders(6, false);
}
END_TEST

/* Before both, between both, and after its user. */
START_TEST(orders_of_processes)
{
  run_orders(3, true);
}
END_TEST

START_TEST(relay_first_with_a_pool)
{
  use_pool("8");
  run_orders(1, true);
}
END_TEST

/* The user dies without a word after its relay has ended. */
static void after_the_relay(struct rank *rank)
{
  RANK_CHECK(rank, use_routes(rank) && connect_pair(rank));
  if (rank->rank != 1) RANK_CHECK(rank, pass_on(rank, 5));
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  rank->abort = rank->rank == 2;
  if (rank->rank == 2) return;
  RANK_CHECK(rank, await_turn(rank->rank == 0));
  if (rank->rank == 0) raise(SIGKILL);
  rank_close(rank);
  atomic_store(&shared->turn, 1);
  exit(0); /* says so if it gives up */
}

/* Warnings go to a file. */
static int log_to_file(void)
{
  char file[] = "/tmp/tutti-relay-XXXXXX";
  int fd = mkstemp(file);
  ck_assert_int_ge(fd, 0);
  set_env("NCCL_DEBUG", "WARN");
  set_env("NCCL_DEBUG_FILE", file);
  tt_log_reset();
  unlink(file);
  return fd;
}

static void expect_no_line_with(int fd, const char *words)
{
  char text[1 << 14] = "";
  ssize_t bytes = pread(fd, text, sizeof(text) - 1, 0);
  close(fd);
  ck_assert_int_ge(bytes, 0);
  ck_assert_msg(!strstr(text, words), "%s", text);
}

START_TEST(dead_user)
{
  int statuses[3];
  use_counting();
  int log = log_to_file();
  share_turns();
  world_run_processes(3, after_the_relay, statuses);
  ck_assert_int_eq(statuses[0], -SIGKILL);
  ck_assert_int_eq(statuses[1], 0);
  munmap(shared, sizeof(*shared));
  expect_no_line_with(log, "still send through it");
}
END_TEST

/* A relay whose communicator is gone frees what it holds when its last user has closed, and waits for nothing else. */
START_TEST(relay_first_leaves_nothing)
{
  run_orders(1, false); /* what stays anyway */
  int before = held_descriptors(), now = before + 1;
  run_orders(1, false);
  for (tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS); now > before && !tt_deadline_passed(deadline);) {
    usleep(1000);
    now = held_descriptors();
  }
  ck_assert_int_le(now, before);
}
END_TEST

bool __real_tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank);
bool __wrap_tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank);
/* Every other question of rank 0 after rank 1 is answered as if rank 1 were there. */
static struct tt_bootstrap *_Atomic overlooking; /* rank 0's */
static _Atomic int overlooks; /* questions, and one more; 0: all are answered truly. Whether there are
                                 any depends on who is the first to notice */

bool __wrap_tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank)
{
  bool asked = rank == 1 && bootstrap == atomic_load(&overlooking) && atomic_load(&overlooks) > 0;
  if (asked && atomic_fetch_add(&overlooks, 1) % 2 == 1) return false;
  return __real_tt_bootstrap_left(bootstrap, rank);
}

/* The relay leaves just when it is to be asked: whoever sends does so itself, and nothing is wrong. */
static void relay_leaves_early(struct rank *rank)
{
  RANK_CHECK(rank, use_routes(rank));
  if (rank->rank == 1) {
    rank_close(rank);
    return;
  }
  if (rank->rank == 0) {
    tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
    while (!__real_tt_bootstrap_left(rank->bootstrap, 1) && !tt_deadline_passed(deadline)) usleep(500);
    RANK_CHECK(rank, __real_tt_bootstrap_left(rank->bootstrap, 1));
    atomic_store(&overlooking, rank->bootstrap);
    atomic_store(&overlooks, 1);
  }
  RANK_CHECK(rank, connect_pair(rank) && pass_on(rank, 10));
  if (rank->rank == 0) {
    char label[96];
    tt_transport_net.label(rank->env, end_of(rank, 0), label, sizeof(label));
    RANK_CHECK(rank, strcmp(label, "NET/Counting/1") == 0);
  }
  atomic_fetch_add(&shared->turn, 1);
  RANK_CHECK(rank, await_turn(2));
  rank_close(rank);
}

START_TEST(relay_that_leaves_early)
{
  use_counting();
  int log = log_to_file();
  share_turns();
  world_run(3, relay_leaves_early);
  atomic_store(&overlooks, 0);
  atomic_store(&overlooking, NULL);
  munmap(shared, sizeof(*shared));
  expect_no_line_with(log, "WARN");
}
END_TEST

void add_relay(Suite *suite)
{
  TCase *tc = tcase_create("relay");
  tcase_set_timeout(tc, 300);
  tcase_add_test(tc, data);
  tcase_add_test(tc, data_of_processes);
  tcase_add_test(tc, slots_of_a_pool);
  tcase_add_test(tc, slots_of_a_pool_of_processes);
  tcase_add_test(tc, dying_relay_with_a_pool);
  tcase_add_test(tc, aborted_relay_with_a_pool);
  tcase_add_test(tc, relay_first_with_a_pool);
  tcase_add_test(tc, dead_user);
  tcase_add_test(tc, relay_first_leaves_nothing);
  tcase_add_test(tc, relay_that_leaves_early);
  tcase_add_test(tc, failing_network);
  tcase_add_test(tc, refusing_relay);
  tcase_add_test(tc, dead_relay);
  tcase_add_test(tc, dying_relay);
  tcase_add_test(tc, stuck_relay);
  tcase_add_test(tc, abort_while_connecting);
  tcase_add_test(tc, aborted_relay);
  tcase_add_test(tc, aborted_relay_of_processes);
  tcase_add_test(tc, every_order);
  tcase_add_test(tc, orders_of_processes);
  suite_add_tcase(suite, tc);
}

#else

void add_relay(Suite *suite)
{
  (void)suite;
  fprintf(stderr, "skipped: the socket plugin is not built\n");
}

#endif
