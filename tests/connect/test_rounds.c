/* Set-up that works: rings, everybody with everybody, few peers a round, one side asking alone. */
#include "world.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"

static bool is_wired(struct rank *rank, int peer, int channel, int index, bool send)
{
  struct tt_connector *connector = tt_connect_get(rank->connect, peer, channel, index, send);
  return connector && connector->peer == peer && connector->channel == channel && connector->index == index &&
         connector->send == send && connector->connected;
}

static void ring(struct rank *rank)
{
  int next = (rank->rank + 1) % rank->nranks, previous = (rank->rank + rank->nranks - 1) % rank->nranks;
  for (int c = 0; c < 4; c++) {
    RANK_CHECK(rank, tt_connect_need(rank->connect, next, c, 0, true) == ncclSuccess);
    RANK_CHECK(rank, tt_connect_need(rank->connect, next, c, 0, true) == ncclSuccess);
    RANK_CHECK(rank, tt_connect_need(rank->connect, previous, c, 0, false) == ncclSuccess);
  }
  RANK_CHECK(rank, tt_connect_pending(rank->connect) || is_wired(rank, next, 0, 0, true));
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  RANK_CHECK(rank, !tt_connect_pending(rank->connect));
  for (int c = 0; c < 4; c++) {
    RANK_CHECK(rank, is_wired(rank, next, c, 0, true) && is_wired(rank, previous, c, 0, false));
    RANK_CHECK(rank, !tt_connect_get(rank->connect, next, c, 1, true));
    /* No more than was asked, apart from n = 2, where one peer is both. */
    RANK_CHECK(rank, rank->nranks == 2 || !tt_connect_get(rank->connect, next, c, 0, false));
    RANK_CHECK(rank, send_by_hand(rank, tt_connect_get(rank->connect, next, c, 0, true), TT_SLOTS));
    RANK_CHECK(rank, recv_by_hand(rank, tt_connect_get(rank->connect, previous, c, 0, false), TT_SLOTS));
  }
  RANK_CHECK(rank, tt_connect_bytes(rank->connect) >= 4 * (4096 + 8192));
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess); /* nothing to do */
}

START_TEST(rings)
{
  world_run(2, ring); /* one peer is both neighbours */
  world_run(3, ring);
  world_run(8, ring);
}
END_TEST

START_TEST(ring_of_processes)
{
  world_run_processes(2, ring, NULL);
  world_run_processes(4, ring, NULL);
}
END_TEST

static void all_to_all(struct rank *rank)
{
  for (int peer = 0; peer < rank->nranks; peer++) {
    if (peer == rank->rank) continue;
    RANK_CHECK(rank, tt_connect_need(rank->connect, peer, peer % 2, 1, true) == ncclSuccess);
    RANK_CHECK(rank, tt_connect_need(rank->connect, peer, rank->rank % 2, 1, false) == ncclSuccess);
  }
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  for (int peer = 0; peer < rank->nranks; peer++) {
    if (peer == rank->rank) continue;
    RANK_CHECK(rank, is_wired(rank, peer, peer % 2, 1, true) && is_wired(rank, peer, rank->rank % 2, 1, false));
    RANK_CHECK(rank, send_by_hand(rank, tt_connect_get(rank->connect, peer, peer % 2, 1, true), 3));
  }
  for (int peer = 0; peer < rank->nranks; peer++)
    if (peer != rank->rank)
      RANK_CHECK(rank, recv_by_hand(rank, tt_connect_get(rank->connect, peer, rank->rank % 2, 1, false), 3));
}

START_TEST(everybody)
{
  world_run(8, all_to_all);
  world_run(16, all_to_all);
  world_run(32, all_to_all);
}
END_TEST

START_TEST(few_peers_a_round)
{
  static const char *const limits[] = {"1", "2", "5"};
  for (int i = 0; i < 3; i++) {
    set_env("NCCL_CONNECT_ROUND_MAX_PEERS", limits[i]);
    world_run(7, all_to_all);
    world_run(2, all_to_all);
  }
}
END_TEST

START_TEST(processes)
{
  world_run_processes(5, all_to_all, NULL);
}
END_TEST

/* Rank 0 asks; the others' users do nothing but wait for what comes. */
static void one_side_asks(struct rank *rank)
{
  if (rank->rank == 0) {
    for (int peer = 1; peer < rank->nranks; peer++) {
      RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 63, 1, true) == ncclSuccess);
      RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 63, 1, false) == ncclSuccess);
    }
    RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
    for (int peer = 1; peer < rank->nranks; peer++)
      RANK_CHECK(rank, send_by_hand(rank, tt_connect_get(rank->connect, peer, 63, 1, true), 2));
  }
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 0) return;
  /* It is there, or about to be: asking for it now costs no further message. */
  RANK_CHECK(rank, tt_connect_need(rank->connect, 0, 63, 1, false) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_need(rank->connect, 0, 63, 1, true) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  RANK_CHECK(rank, recv_by_hand(rank, tt_connect_get(rank->connect, 0, 63, 1, false), 2));
}

START_TEST(without_the_others_user)
{
  world_run_processes(3, one_side_asks, NULL);
  world_run(4, one_side_asks);
}
END_TEST

/* Again and again, with one more channel each time: the worker comes and goes. */
static void grow(struct rank *rank)
{
  for (int c = 0; c < 20; c++) {
    for (int peer = 0; peer < rank->nranks; peer++)
      if (peer != rank->rank && (c + peer + rank->rank) % 2) {
        RANK_CHECK(rank, tt_connect_need(rank->connect, peer, c, c % 2, true) == ncclSuccess);
        RANK_CHECK(rank, tt_connect_need(rank->connect, peer, c, c % 2, false) == ncclSuccess);
      }
    RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  }
}

START_TEST(lazily)
{
  world_run(4, grow);
}
END_TEST

static void nothing(struct rank *rank)
{
  RANK_CHECK(rank, !tt_connect_pending(rank->connect));
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_need(rank->connect, rank->rank, 0, 0, true) == ncclInternalError);
  RANK_CHECK(rank, tt_connect_need(rank->connect, rank->nranks, 0, 0, true) == ncclInternalError);
  RANK_CHECK(rank, tt_connect_need(rank->connect, -1, 0, 0, true) == ncclInternalError);
  RANK_CHECK(rank, tt_connect_need(rank->connect, 0, TT_MAX_CHANNELS, 0, true) == ncclInternalError);
  RANK_CHECK(rank, tt_connect_get(rank->connect, -1, 0, 0, true) == NULL);
}

START_TEST(one_rank)
{
  world_run(1, nothing);
  world_run(2, nothing);
}
END_TEST

/* What people read. */
START_TEST(log_lines)
{
  char file[] = "/tmp/tutti-connect-XXXXXX", text[1 << 18] = "";
  int fd = mkstemp(file);
  ck_assert_int_ge(fd, 0);
  set_env("NCCL_DEBUG", "INFO");
  set_env("NCCL_DEBUG_SUBSYS", "INIT");
  set_env("NCCL_DEBUG_FILE", file);
  set_env("NCCL_REPORT_CONNECT_PROGRESS", "1");
  set_env("NCCL_CONNECT_ROUND_MAX_PEERS", "1");
  tt_log_reset();
  world_run(3, ring);
  FILE *log = fopen(file, "r");
  size_t bytes = fread(text, 1, sizeof(text) - 1, log);
  fclose(log);
  close(fd);
  unlink(file);
  ck_assert_uint_gt(bytes, 0);
  ck_assert_ptr_nonnull(strstr(text, "Channel 02/0 : 1[1] -> 2[2] via SHM/direct/direct"));
  ck_assert_ptr_nonnull(strstr(text, "round 2: 1 of 1 peers are up"));
}
END_TEST

void add_rounds(Suite *suite)
{
  TCase *tc = tcase_create("rounds");
  tcase_set_timeout(tc, 300);
  tcase_add_test(tc, rings);
  tcase_add_test(tc, ring_of_processes);
  tcase_add_test(tc, everybody);
  tcase_add_test(tc, few_peers_a_round);
  tcase_add_test(tc, processes);
  tcase_add_test(tc, without_the_others_user);
  tcase_add_test(tc, lazily);
  tcase_add_test(tc, one_rank);
  tcase_add_test(tc, log_lines);
  suite_add_tcase(suite, tc);
}
