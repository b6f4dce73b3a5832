/* Sending through another rank: data, and failures of every kind. */
#include "relay_pair.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "transport/relay.h"

#if defined NET_SOCKET && defined NET_COUNTING

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

/* ---- Networks that take nothing for now ---- */

#define SOON_NS 50000000u /* half of the time that a relay sleeps if nobody rings */
#define SETTLE_USEC 300000

/* A thread: the network takes the message once it was offered twice in a short time, or at last if it never was. Only
 * what comes later counts: at first the relay is awake. */
static void *take_at_last(void *offered_soon)
{
  bool *soon = offered_soon;
  struct counting now = {0};
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS / 2);
  for (; now.refused == 0 && !tt_deadline_passed(deadline); usleep(1000)) counting_read(&now, 0);
  usleep(SETTLE_USEC);
  counting_refuse(1);
  for (; !*soon && !tt_deadline_passed(deadline); usleep(1000)) {
    counting_read(&now, 0);
    *soon = now.refused > 1 && now.refused_apart_ns < SOON_NS;
  }
  counting_refuse(0);
  return NULL;
}

/* A message that the network refuses is offered again and again, since nobody says when it would be taken: not only
 * when the relay wakes by itself. */
static void refused_for_a_while(struct rank *rank)
{
  pthread_t thread;
  bool soon = false;
  RANK_CHECK(rank, use_routes(rank) && connect_pair(rank));
  if (rank->rank == 2) RANK_CHECK(rank, recv_by_hand(rank, end_of(rank, 0), 1));
  if (rank->rank != 0) return;
  counting_refuse(1);
  RANK_CHECK(rank, pthread_create(&thread, NULL, take_at_last, &soon) == 0);
  bool good = send_by_hand(rank, end_of(rank, 0), 1);
  pthread_join(thread, NULL);
  RANK_CHECK(rank, good && soon);
}

START_TEST(refusing_network)
{
  use_counting();
  world_run(3, refused_for_a_while);
}
END_TEST

START_TEST(refusing_network_with_a_pool)
{
  use_pool("8");
  world_run(3, refused_for_a_while);
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

static _Atomic bool aborted;

/* A thread, of a rank: aborts once the relay has been asked for all, since no more memory is taken. */
static void *abort_when_asked(void *arg)
{
  struct rank *rank = arg;
  size_t used = 0;
  for (int same = 0; same < 50; usleep(10000)) {
    size_t now = tt_shm_used(rank->env->shm);
    same = now == used && now > 0 ? same + 1 : 0;
    used = now;
  }
  atomic_store(&rank->abort, 1);
  return NULL;
}

/* A relay that does not answer: it has closed its half of the service. */
static void never_answered(struct rank *rank)
{
  pthread_t thread;
  RANK_CHECK(rank, use_routes(rank));
  if (rank->rank == 1) tt_relay_close(rank->env);
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 0) {
    RANK_CHECK(rank, pthread_create(&thread, NULL, abort_when_asked, rank) == 0);
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
  tcase_add_test(tc, refusing_network);
  tcase_add_test(tc, refusing_network_with_a_pool);
  tcase_add_test(tc, failing_network);
  tcase_add_test(tc, refusing_relay);
  tcase_add_test(tc, dead_relay);
  tcase_add_test(tc, dying_relay);
  tcase_add_test(tc, stuck_relay);
  tcase_add_test(tc, abort_while_connecting);
  tcase_add_test(tc, aborted_relay);
  tcase_add_test(tc, aborted_relay_of_processes);
  suite_add_tcase(suite, tc);
}

#else

void add_relay(Suite *suite)
{
  (void)suite;
  fprintf(stderr, "skipped: the socket plugin is not built\n");
}

#endif
