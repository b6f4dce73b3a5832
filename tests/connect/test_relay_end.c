/* Sending through another rank: ends in every order, and relays that leave while they are asked. */
#include "relay_pair.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/log.h"
#include "tests/common/held.h"
#include "tests/common/scarce.h"
#include "tests/fakes/device/fake.h"
#include "transport/memory.h"
#include "transport/relay.h"

#if defined NET_SOCKET && defined NET_COUNTING

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

/* The process that relays has no descriptor left to look whether its user is there: which is not the user's end. */
static void short_of_descriptors(struct rank *rank)
{
  RANK_CHECK(rank, use_routes(rank) && connect_pair(rank));
  if (rank->rank != 1) RANK_CHECK(rank, pass_on(rank, 5));
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 1) {
    rank_close(rank);
    scarce_begin(0);
    usleep(1500000); /* it looks twice a second */
    atomic_store(&shared->turn, 1);
    RANK_CHECK(rank, await_turn(3));
    scarce_end();
    return;
  }
  RANK_CHECK(rank, await_turn(1));
  RANK_CHECK(rank, pass_on(rank, 10));
  atomic_fetch_add(&shared->turn, 1);
  rank_close(rank);
}

START_TEST(relay_without_descriptors)
{
  use_counting();
  share_turns();
  world_run_processes(3, short_of_descriptors, NULL);
  munmap(shared, sizeof(*shared));
}
END_TEST

bool __real_tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank);
bool __wrap_tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank);
/* Every other question of rank 0 after rank 1 is answered as if rank 1 were there. */
static struct tt_bootstrap *_Atomic overlooking; /* rank 0's */
static _Atomic int overlooks;                    /* questions, and one more; 0: all are answered truly */

bool __wrap_tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank)
{
  if (rank >= 0 && rank < 32 && (atomic_load(&ranks_left) >> rank & 1) != 0) return true;
  bool asked = rank == 1 && bootstrap == atomic_load(&overlooking) && atomic_load(&overlooks) > 0;
  if (asked && atomic_fetch_add(&overlooks, 1) % 2 == 1) return false;
  return __real_tt_bootstrap_left(bootstrap, rank);
}

/* Rank 0 has made its connections itself. */
static bool went_directly(struct rank *rank)
{
  char label[96];
  tt_transport_net.label(rank->env, end_of(rank, 0), label, sizeof(label));
  if (strcmp(label, "NET/Counting/1") != 0) fprintf(stderr, "it goes by %s\n", label);
  return strcmp(label, "NET/Counting/1") == 0;
}

/* The relay leaves just when it is to be asked: whoever sends does so itself, and nothing is wrong. Rank 2 waits, since
 * what it asks of rank 0 is done at once, whatever rank 0's user does: the relay might still be there. */
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
    atomic_fetch_add(&shared->turn, 1);
  }
  RANK_CHECK(rank, await_turn(1));
  RANK_CHECK(rank, connect_pair(rank) && pass_on(rank, 10));
  RANK_CHECK(rank, rank->rank != 0 || went_directly(rank));
  /* Each connection was about to be asked for, and then found the relay gone. */
  RANK_CHECK(rank, rank->rank != 0 || atomic_load(&overlooks) > 2 * CHANNELS);
  atomic_fetch_add(&shared->turn, 1);
  RANK_CHECK(rank, await_turn(3));
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

static bool await_early_message(struct rank *rank)
{
  struct tt_bootstrap_stats stats = {0};
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  while (stats.early == 0 && !tt_deadline_passed(deadline)) {
    usleep(500);
    tt_bootstrap_stats(rank->bootstrap, &stats);
  }
  return stats.early > 0;
}

static bool through_third(const void *routes, int peer, int channel, int index, bool send, struct tt_route *route)
{
  const struct rank *rank = routes;
  (void)peer, (void)index, (void)channel;
  *route = (struct tt_route){.rank = send ? 3 : rank->rank};
  return true;
}

/* The request comes when the relay hears none any more but has not said goodbye. */
static void asked_too_late(struct rank *rank)
{
  RANK_CHECK(rank, use_routes(rank));
  if (rank->rank == 1) {
    tt_relay_close(rank->env);
    atomic_fetch_add(&shared->turn, 1);
    RANK_CHECK(rank, await_early_message(rank));
    rank_close(rank);
    return;
  }
  RANK_CHECK(rank, await_turn(1));
  RANK_CHECK(rank, connect_pair(rank) && pass_on(rank, 10));
  RANK_CHECK(rank, rank->rank != 0 || went_directly(rank));
  atomic_fetch_add(&shared->turn, 1);
  RANK_CHECK(rank, await_turn(3));
  rank_close(rank);
}

START_TEST(relay_that_hears_nothing)
{
  use_counting();
  int log = log_to_file();
  share_turns();
  world_run(3, asked_too_late);
  munmap(shared, sizeof(*shared));
  expect_no_line_with(log, "WARN");
}
END_TEST

/* The relay has left, and rank 0, which never had to do with it, is to find that out. */
static void far_from_the_relay(struct rank *rank)
{
  RANK_CHECK(rank, use_routes(rank));
  rank->env->route = through_third;
  if (rank->rank == 3) {
    rank_close(rank);
    atomic_fetch_add(&shared->turn, 1);
    return;
  }
  if (rank->rank == 0 || rank->rank == 5) {
    RANK_CHECK(rank, await_turn(1));
    RANK_CHECK(rank, rank->rank == 5 || !tt_bootstrap_left(rank->bootstrap, 3));
    RANK_CHECK(rank, connect_channels(rank, rank->rank == 0 ? 5 : -1, rank->rank == 0 ? -1 : 0, 1) == ncclSuccess);
    struct tt_connector *end = tt_connect_get(rank->connect, 5 - rank->rank, 0, conn_index, rank->rank == 0);
    RANK_CHECK(rank, rank->rank == 0 ? send_by_hand(rank, end, 10) : recv_by_hand(rank, end, 10));
    int dead;
    char why[256] = "";
    RANK_CHECK(rank, !tt_bootstrap_dead(rank->bootstrap, &dead, why, sizeof(why)));
    atomic_fetch_add(&shared->turn, 1);
  }
  RANK_CHECK(rank, await_turn(3));
  rank_close(rank);
}

START_TEST(relay_unheard_of)
{
  use_counting();
  int log = log_to_file();
  share_turns();
  world_run(8, far_from_the_relay);
  munmap(shared, sizeof(*shared));
  expect_no_line_with(log, "WARN");
}
END_TEST

/* Who closes its end then has nothing to wait for, and has its memory back. */
static void closes_unheard(struct rank *rank)
{
  RANK_CHECK(rank, use_routes(rank));
  size_t used = tt_shm_used(rank->env->shm);
  if (rank->rank == 1) {
    tt_relay_close(rank->env);
    atomic_fetch_add(&shared->turn, 1);
    RANK_CHECK(rank, await_early_message(rank));
    RANK_CHECK(rank, await_turn(2));
    rank_close(rank);
    return;
  }
  RANK_CHECK(rank, await_turn(1));
  if (rank->rank == 0) {
    pthread_t thread;
    RANK_CHECK(rank, pthread_create(&thread, NULL, abort_soon, rank) == 0);
    ncclResult_t result = connect_channels(rank, 2, -1, CHANNELS);
    pthread_join(thread, NULL);
    RANK_CHECK(rank, result == ncclInternalError);
    atomic_fetch_add(&shared->turn, 1);
    tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
    while (!tt_bootstrap_left(rank->bootstrap, 1) && !tt_deadline_passed(deadline)) usleep(500);
    tt_connect_destroy(rank->connect);
    rank->connect = NULL;
    RANK_CHECK(rank, tt_shm_used(rank->env->shm) == used);
  }
  RANK_CHECK(rank, await_turn(2)); /* rank 2 answers rank 0 */
  rank->abort = 1;
}

START_TEST(closing_unheard)
{
  use_counting();
  share_turns();
  world_run(3, closes_unheard);
  munmap(shared, sizeof(*shared));
}
END_TEST

ncclResult_t __real_tt_resources_map(struct tt_resources *resources, int number, int rank, uint64_t offset,
                                     size_t bytes, void **ptr);
ncclResult_t __wrap_tt_resources_map(struct tt_resources *resources, int number, int rank, uint64_t offset,
                                     size_t bytes, void **ptr);
/* Holds mappings of rank 0's memory back: not at all; from now on; there is one. */
static _Atomic int held_back;

ncclResult_t __wrap_tt_resources_map(struct tt_resources *resources, int number, int rank, uint64_t offset,
                                     size_t bytes, void **ptr)
{
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  if (rank == 0 && atomic_load(&held_back) > 0) {
    atomic_store(&held_back, 2);
    while (atomic_load(&held_back) != 0 && !tt_deadline_passed(deadline)) usleep(500);
  }
  return __real_tt_resources_map(resources, number, rank, offset, bytes, ptr);
}

/* The relay has heard the request, but is not through with the user's memory when it leaves: it never touches that. */
static void accepts_too_late(struct rank *rank)
{
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  RANK_CHECK(rank, use_routes(rank));
  if (rank->rank == 1) {
    while (atomic_load(&held_back) != 2 && !tt_deadline_passed(deadline)) usleep(500);
    RANK_CHECK(rank, atomic_load(&held_back) == 2);
    rank_close(rank);
    return;
  }
  RANK_CHECK(rank, connect_pair(rank));
  RANK_CHECK(rank, rank->rank != 0 || went_directly(rank));
  if (rank->rank == 0) atomic_store(&held_back, 0);
  RANK_CHECK(rank, pass_on(rank, 100));
  atomic_fetch_add(&shared->turn, 1);
  RANK_CHECK(rank, await_turn(2));
  rank_close(rank);
}

START_TEST(relay_that_accepts_too_late)
{
  use_counting();
  int log = log_to_file();
  share_turns();
  atomic_store(&held_back, 1);
  world_run(3, accepts_too_late);
  munmap(shared, sizeof(*shared));
  expect_no_line_with(log, "WARN");
}
END_TEST

static void print(int level, const char *text)
{
  fprintf(stderr, "fake device: %d %s\n", level, text);
}

/* A relay whose communicator is gone hands out no device memory any more: there is none. */
static void asks_for_memory(struct rank *rank)
{
  int fd = -1;
  uint64_t bytes;
  RANK_CHECK(rank, use_routes(rank) && connect_pair(rank));
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 1) {
    rank_close(rank);
    atomic_store(&shared->turn, 1);
    RANK_CHECK(rank, await_turn(2));
    return;
  }
  RANK_CHECK(rank, await_turn(1));
  if (rank->rank == 2) {
    RANK_CHECK(rank, await_turn(2));
    rank_close(rank);
    return;
  }
  for (uint64_t object = 1; object < 4; object++)
    RANK_CHECK(rank, tt_peer_memory_fetch(rank->env->memory, 1, object, &fd, &bytes) == ncclRemoteError);
  RANK_CHECK(rank, tt_peer_memory_fetch(rank->env->memory, 1, TT_SLAB_LENT | 1, &fd, &bytes) == ncclRemoteError);
  atomic_store(&shared->turn, 2);
  rank_close(rank);
}

START_TEST(relay_without_device_memory)
{
  char why[64];
  use_counting();
  set_env("NCCL_P2P_DISABLE", "1");
  world_use_device(tutti_device(print, why, sizeof(why)));
  conn_index = tt_connect_index(true, TT_PROTO_SIMPLE, false);
  share_turns();
  int statuses[3];
  world_run_processes(3, asks_for_memory, statuses);
  for (int r = 0; r < 3; r++) ck_assert_msg(statuses[r] == 0, "rank %d: %d", r, statuses[r]);
  munmap(shared, sizeof(*shared));
}
END_TEST

void add_relay_end(Suite *suite)
{
  TCase *tc = tcase_create("relay_end");
  tcase_set_timeout(tc, 300);
  tcase_add_test(tc, relay_first_with_a_pool);
  tcase_add_test(tc, dead_user);
  tcase_add_test(tc, relay_first_leaves_nothing);
  tcase_add_test(tc, relay_without_device_memory);
  tcase_add_test(tc, relay_without_descriptors);
  tcase_add_test(tc, relay_that_leaves_early);
  tcase_add_test(tc, relay_that_hears_nothing);
  tcase_add_test(tc, relay_that_accepts_too_late);
  tcase_add_test(tc, closing_unheard);
  tcase_add_test(tc, relay_unheard_of);
  tcase_add_test(tc, every_order);
  tcase_add_test(tc, orders_of_processes);
  suite_add_tcase(suite, tc);
}

#else

void add_relay_end(Suite *suite)
{
  (void)suite;
  fprintf(stderr, "skipped: the socket plugin is not built\n");
}

#endif
