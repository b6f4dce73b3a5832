/* What connections share over a network: comms and registered memory of 16 peers, with and without, and that messages
 * find their way all the same. A counting plugin around the real one looks on. */
#include "world.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "tests/fakes/net/counting.h"

#if defined NET_SOCKET && defined NET_COUNTING

#define PEERS 16
#define SIMPLE_BYTES 8192 /* as world.c has it */

static counting_read_fn *counting_read;
static struct counting seen;

static void use_counting(const char *buffers, const char *comms, const char *max_recvs)
{
  world_use_net(true);
  world_use_device(&world_device_by_hand);
  set_env("NCCL_SHM_DISABLE", "1");
  set_env("NCCL_NET_PLUGIN", NET_COUNTING);
  set_env("COUNTING_INNER", NET_SOCKET);
  set_env("COUNTING_MAX_RECVS", max_recvs);
  set_env("NCCL_NET_SHARED_BUFFERS", buffers);
  set_env("NCCL_NET_SHARED_COMMS", comms);
  /* Both stay loaded to the end, as in test_net.c. */
  ck_assert_ptr_nonnull(dlopen(NET_SOCKET, RTLD_NOW | RTLD_LOCAL));
  void *plugin = dlopen(NET_COUNTING, RTLD_NOW | RTLD_LOCAL);
  ck_assert_ptr_nonnull(plugin);
  counting_read = (counting_read_fn *)dlsym(plugin, "counting_read");
  ck_assert_ptr_nonnull(counting_read);
  counting_read(&seen, 1);
}

/* What rank 0 does with all others, who do it with rank 0: `count` messages to it and `count` back. */
static void with_rank_0(struct rank *rank, int count)
{
  int first = rank->rank == 0 ? 1 : 0, end = rank->rank == 0 ? rank->nranks : 1;
  for (int peer = first; peer < end; peer++)
    for (int send = 0; send < 2; send++)
      RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, 1, send) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  /* All receives are expected at once, as those of one group are. */
  for (int peer = first; peer < end; peer++)
    RANK_CHECK(rank, expect_by_hand(tt_connect_get(rank->connect, peer, 0, 1, false), count));
  for (int peer = first; peer < end && rank->rank != 0; peer++)
    RANK_CHECK(rank, send_by_hand(rank, tt_connect_get(rank->connect, peer, 0, 1, true), count));
  /* In another order than they come in. */
  for (int peer = end - 1; peer >= first; peer--)
    RANK_CHECK(rank, take_by_hand(rank, tt_connect_get(rank->connect, peer, 0, 1, false), count));
  for (int peer = first; peer < end && rank->rank == 0; peer++)
    RANK_CHECK(rank, send_by_hand(rank, tt_connect_get(rank->connect, peer, 0, 1, true), count));
}

static void one_each(struct rank *rank)
{
  with_rank_0(rank, 1);
}

/* Grouped receives wait for nothing that comes later, whatever the number of messages. */
static void some_each(struct rank *rank)
{
  with_rank_0(rank, 1);
  with_rank_0(rank, 3);
  with_rank_0(rank, 20);
}

static void expect_comms(int each)
{
  counting_read(&seen, 1);
  ck_assert_int_eq(seen.most_sends, each);
  ck_assert_int_eq(seen.most_recvs, each);
  ck_assert_int_eq(seen.sends + seen.recvs + seen.listens, 0);
  ck_assert_uint_eq(seen.registered, 0);
  ck_assert_int_eq(seen.isends, seen.received);
}

START_TEST(nothing_shared)
{
  use_counting("0", "0", NULL);
  world_run(1 + PEERS, one_each);
  expect_comms(2 * PEERS);
  ck_assert_int_eq(seen.largest, 1);
  /* Each end has eight slots of both protocols. */
  ck_assert_uint_eq(seen.most_registered, (size_t)4 * PEERS * (SIMPLE_BYTES + 4096));
}
END_TEST

START_TEST(slots_shared)
{
  use_counting("1", "0", NULL);
  set_env("TUTTI_NET_POOL_SLOTS", "4");
  world_run(1 + PEERS, one_each);
  expect_comms(2 * PEERS);
  ck_assert_int_eq(seen.largest, 1);
}
END_TEST

/* All 17 ranks are of one process: 16 of them reach rank 0 over one comm; it reaches each over one. */
START_TEST(comms_shared)
{
  use_counting(NULL, NULL, NULL);
  set_env("TUTTI_NET_POOL_SLOTS", "4");
  world_run(1 + PEERS, one_each);
  expect_comms(1 + PEERS);
  ck_assert_int_gt(seen.grouped, 0);
  ck_assert_int_gt(seen.largest, 1);
  ck_assert_int_le(seen.largest, 8);
  /* Pools of 4 slots: each is registered once with each comm that it is used with (rank 0's for sending with 16), and
   * spares are for a moment. */
  size_t slot = SIMPLE_BYTES / TT_SLOTS, pools = 1 + 3 * PEERS;
  ck_assert_uint_le(seen.most_registered, pools * (4 * slot + 64) + 2 * PEERS * (slot + 64));
  ck_assert_uint_le(3 * seen.most_registered, (size_t)4 * PEERS * (SIMPLE_BYTES + 4096));
}
END_TEST

START_TEST(many_messages)
{
  use_counting(NULL, NULL, NULL);
  world_run(1 + PEERS, some_each);
  expect_comms(1 + PEERS);
  ck_assert_int_gt(seen.grouped, 0);
  set_env("TUTTI_NET_POOL_SLOTS", "1");
  world_run(5, some_each);
  expect_comms(1 + 4);
}
END_TEST

/* A network that receives one message at a time has no tags: nobody shares a comm. */
START_TEST(one_at_a_time)
{
  use_counting(NULL, NULL, "1");
  world_run(1 + PEERS, some_each);
  expect_comms(2 * PEERS);
  ck_assert_int_eq(seen.largest, 1);
}
END_TEST

START_TEST(three_at_a_time)
{
  use_counting(NULL, NULL, "3");
  world_run(1 + PEERS, some_each);
  expect_comms(1 + PEERS);
  ck_assert_int_gt(seen.grouped, 0);
  ck_assert_int_le(seen.largest, 3);
}
END_TEST

/* More ranks than a comm has requests for. */
START_TEST(several_links)
{
  use_counting(NULL, NULL, NULL);
  world_run(1 + 20, one_each);
  expect_comms(2 + 20);
}
END_TEST

/* Ranks come and go: who needs a connection when those that shared its comm have left finds it again. */
static void in_turn(struct rank *rank)
{
  for (int turn = 1; turn < rank->nranks; turn++) {
    if (rank->rank == turn || rank->rank == 0) {
      int peer = rank->rank == 0 ? turn : 0;
      RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, 1, rank->rank != 0) == ncclSuccess);
      RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
      struct tt_connector *connector = tt_connect_get(rank->connect, peer, 0, 1, rank->rank != 0);
      if (rank->rank != 0)
        RANK_CHECK(rank, send_by_hand(rank, connector, 2));
      else
        RANK_CHECK(rank, recv_by_hand(rank, connector, 2));
    }
    RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
    if (rank->rank == turn) {
      struct tt_connector *connector = tt_connect_get(rank->connect, 0, 0, 1, true);
      tt_transport_net.close(rank->env, connector);
    }
  }
}

START_TEST(one_after_another)
{
  use_counting(NULL, NULL, NULL);
  world_run(4, in_turn);
  expect_comms(1);
}
END_TEST

/* A shared comm is on one device, so those that share it choose the same one: by who receives. Receivers have one each.
 */
static void on_a_device(struct rank *rank)
{
  with_rank_0(rank, 1);
  for (int peer = 0; peer < rank->nranks; peer++)
    for (int send = 0; send < 2; send++) {
      struct tt_connector *connector = tt_connect_get(rank->connect, peer, 0, 1, send);
      char label[96], expected[96];
      if (!connector) continue;
      tt_transport_net.label(rank->env, connector, label, sizeof(label));
      snprintf(expected, sizeof(expected), "NET/Counting/%d/Shared", (send ? peer : rank->rank) % 4);
      if (strcmp(label, expected) != 0) fprintf(stderr, "%s, not %s\n", label, expected);
      RANK_CHECK(rank, strcmp(label, expected) == 0);
    }
}

START_TEST(several_devices)
{
  use_counting(NULL, NULL, NULL);
  set_env("COUNTING_DEVICES", "4");
  world_run(1 + 6, on_a_device);
  expect_comms(1 + 6);
}
END_TEST

void add_shared(Suite *suite)
{
  TCase *tc = tcase_create("shared");
  tcase_set_timeout(tc, 300);
  tcase_add_test(tc, nothing_shared);
  tcase_add_test(tc, slots_shared);
  tcase_add_test(tc, comms_shared);
  tcase_add_test(tc, many_messages);
  tcase_add_test(tc, one_at_a_time);
  tcase_add_test(tc, three_at_a_time);
  tcase_add_test(tc, several_links);
  tcase_add_test(tc, several_devices);
  tcase_add_test(tc, one_after_another);
  suite_add_tcase(suite, tc);
}

#else

void add_shared(Suite *suite)
{
  (void)suite;
  fprintf(stderr, "skipped: the socket plugin is not built\n");
}

#endif
