/* The same over a real net plugin, with shared memory forbidden. */
#include "world.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"

#ifdef NET_SOCKET

static void ring(struct rank *rank)
{
  int next = (rank->rank + 1) % rank->nranks, previous = (rank->rank + rank->nranks - 1) % rank->nranks;
  for (int c = 0; c < 2; c++) {
    RANK_CHECK(rank, tt_connect_need(rank->connect, next, c, 0, true) == ncclSuccess);
    RANK_CHECK(rank, tt_connect_need(rank->connect, previous, c, 0, false) == ncclSuccess);
  }
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  for (int c = 0; c < 2; c++) {
    struct tt_connector *send = tt_connect_get(rank->connect, next, c, 0, true);
    struct tt_connector *recv = tt_connect_get(rank->connect, previous, c, 0, false);
    RANK_CHECK(rank, send && recv && send->proxied && recv->proxied);
    RANK_CHECK(rank, send->conn.flags == TT_CONN_PROXIED && send->conn.fifo && !send->conn.peer_bell);
    for (int i = 0; i < 20; i++) {
      RANK_CHECK(rank, send_by_hand(rank, send, 5));
      RANK_CHECK(rank, recv_by_hand(rank, recv, 5));
    }
  }
}

static void use_socket(void)
{
  world_use_net(true);
  set_env("NCCL_SHM_DISABLE", "1");
  set_env("NCCL_NET_PLUGIN", NET_SOCKET);
  /* Stays loaded to the end: its copies of parameters live as long as it does, and a leak checker cannot see what an
   * unloaded library points to. */
  ck_assert_ptr_nonnull(dlopen(NET_SOCKET, RTLD_NOW | RTLD_LOCAL));
}

START_TEST(rings)
{
  use_socket();
  world_run(2, ring);
  world_run(5, ring);
}
END_TEST

START_TEST(processes)
{
  use_socket();
  world_run_processes(2, ring, NULL);
  world_run_processes(3, ring, NULL);
}
END_TEST

/* ---- Ranks that choose different transports ---- */

static pthread_barrier_t both_choose;
static _Atomic int choices;

/* Rank 0 goes by the network. Both choose at the same time: neither has heard the other yet. */
static bool apart_for_one(const void *routes, int from, int to)
{
  const struct rank *rank = routes;
  (void)from, (void)to;
  if (atomic_fetch_add(&choices, 1) < 2) pthread_barrier_wait(&both_choose);
  return rank->rank == 0;
}

static void chooses_apart(struct rank *rank)
{
  rank->env->routes = rank;
  rank->env->apart = apart_for_one;
  RANK_CHECK(rank, tt_connect_need(rank->connect, 1 - rank->rank, 0, 0, rank->rank == 0) == ncclSuccess);
  ncclResult_t result = tt_connect_run(rank->connect);
  RANK_CHECK(rank, result == ncclInvalidUsage || result == ncclRemoteError); /* whichever notices first */
  RANK_CHECK(rank, strstr(tt_log_thread_error(), "set the same NCCL_* variables on all ranks"));
}

/* What the other wants comes when this rank's half is made already: it is not taken for one of the other transport. */
START_TEST(different_choices)
{
  use_socket();
  set_env("NCCL_SHM_DISABLE", NULL);
  ck_assert_int_eq(pthread_barrier_init(&both_choose, NULL, 2), 0);
  atomic_store(&choices, 0);
  world_run(2, chooses_apart);
  pthread_barrier_destroy(&both_choose);
}
END_TEST

static void all_to_all(struct rank *rank)
{
  for (int peer = 0; peer < rank->nranks; peer++) {
    if (peer == rank->rank) continue;
    RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, 1, true) == ncclSuccess);
    RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, 1, false) == ncclSuccess);
  }
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  for (int peer = 0; peer < rank->nranks; peer++)
    if (peer != rank->rank) RANK_CHECK(rank, send_by_hand(rank, tt_connect_get(rank->connect, peer, 0, 1, true), 3));
  for (int peer = 0; peer < rank->nranks; peer++)
    if (peer != rank->rank) RANK_CHECK(rank, recv_by_hand(rank, tt_connect_get(rank->connect, peer, 0, 1, false), 3));
}

START_TEST(everybody)
{
  use_socket();
  world_run(8, all_to_all);
  set_env("NCCL_CONNECT_ROUND_MAX_PEERS", "2");
  world_run(6, all_to_all);
}
END_TEST

/* The passive side's user is elsewhere: accept is polled all the same. */
static void one_side_asks(struct rank *rank)
{
  if (rank->rank == 0) {
    RANK_CHECK(rank, tt_connect_need(rank->connect, 1, 0, 0, true) == ncclSuccess);
    RANK_CHECK(rank, tt_connect_need(rank->connect, 1, 0, 0, false) == ncclSuccess);
    RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  }
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
}

START_TEST(without_the_others_user)
{
  use_socket();
  world_run(2, one_side_asks);
}
END_TEST

#define LISTENER_BYTES (NCCL_NET_HANDLE_MAXSIZE + 8) /* what only the receiving end says */

/* Handshakes that a rank of this version does not write. */
static void lied_to(struct rank *rank)
{
  const struct tt_transport *net = &tt_transport_net;
  struct tt_connector connector = {.peer = 1 - rank->rank, .send = rank->rank == 0};
  struct tt_handshake mine = {0}, bad;
  bool done;
  RANK_CHECK(rank, net->setup(rank->env, &connector, &mine) == ncclSuccess);
  /* The other role's handshake has a handle, or has none. */
  struct tt_handshake good = mine;
  good.data[2] = !good.data[2];
  good.bytes = (uint16_t)(rank->rank == 0 ? mine.bytes + LISTENER_BYTES : mine.bytes - LISTENER_BYTES);
  for (int i = 0; i < 6; i++) {
    bad = good;
    if (i == 0) bad.data[0]++;    /* version */
    if (i == 1) bad.data[2] ^= 1; /* role */
    if (i == 2) bad.bytes--;      /* length */
    if (i == 3) bad.bytes++;
    if (i == 4) bad.data[7 + 1]++; /* bytes of an LL slot */
    if (i == 5) bad.bytes = UINT16_MAX;
    RANK_CHECK(rank, net->connect(rank->env, &connector, &bad, &done) != ncclSuccess && !done);
  }
  unsigned seed = (unsigned)rank->rank;
  for (int i = 0; i < 5000; i++) {
    bad = good;
    for (int k = 0; k < 3; k++) bad.data[rand_r(&seed) % 31] ^= (unsigned char)(1 + rand_r(&seed) % 255);
    bad.bytes = (uint16_t)(rand_r(&seed) % 2 ? good.bytes + 1 : rand_r(&seed) % good.bytes);
    RANK_CHECK(rank, net->connect(rank->env, &connector, &bad, &done) != ncclSuccess && !done);
  }
  net->close(rank->env, &connector);
}

START_TEST(handshake_refused)
{
  use_socket();
  world_run(2, lied_to);
}
END_TEST

START_TEST(log_lines)
{
  char file[] = "/tmp/tutti-connect-XXXXXX", text[1 << 18] = "";
  int fd = mkstemp(file);
  ck_assert_int_ge(fd, 0);
  use_socket();
  set_env("NCCL_DEBUG", "INFO");
  set_env("NCCL_DEBUG_FILE", file);
  tt_log_reset();
  world_run(3, ring);
  FILE *log = fopen(file, "r");
  size_t bytes = fread(text, 1, sizeof(text) - 1, log);
  fclose(log);
  close(fd);
  unlink(file);
  ck_assert_uint_gt(bytes, 0);
  ck_assert_ptr_nonnull(strstr(text, "Channel 01/0 : 1[1] -> 2[2] [send] via NET/Socket/"));
  ck_assert_ptr_nonnull(strstr(text, "Channel 01/0 : 1[1] -> 2[2] [receive] via NET/Socket/"));
}
END_TEST

void add_net(Suite *suite)
{
  TCase *tc = tcase_create("net");
  tcase_set_timeout(tc, 300);
  tcase_add_test(tc, rings);
  tcase_add_test(tc, processes);
  tcase_add_test(tc, everybody);
  tcase_add_test(tc, without_the_others_user);
  tcase_add_test(tc, different_choices);
  tcase_add_test(tc, handshake_refused);
  tcase_add_test(tc, log_lines);
  suite_add_tcase(suite, tc);
}

#else

void add_net(Suite *suite)
{
  (void)suite;
  fprintf(stderr, "skipped: the socket plugin is not built\n");
}

#endif
