/* Connections in device memory, made by ranks that agree on it: on the fake device, in one process and in several. */
#include "world.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "tests/fakes/device/fake.h"
#include "transport/reach.h"

static const struct tt_device *fake;
static struct tt_device device;
static bool blocked[FAKE_DEVICES][FAKE_DEVICES];
static int visible, open_fails_on = -1;
static _Atomic int opened, closed;

static ncclResult_t can_map(int from, int to, int *can)
{
  *can = !blocked[from][to];
  return ncclSuccess;
}

static ncclResult_t count_visible(int *devices)
{
  *devices = visible;
  return ncclSuccess;
}

/* Untouched, or begun by the other end. */
static bool is_fresh(const _Atomic uint64_t *counter, uint64_t step)
{
  uint64_t value = counter ? atomic_load(counter) : UINT64_MAX;
  return value == 0 || value == step;
}

/* A connection is complete on the device before it carries anything. */
static ncclResult_t conn_open(struct tt_device_context *context, struct tt_conn *conn)
{
  opened++;
  if (conn->peer == open_fails_on) {
    TT_WARN("no twin for rank %d", conn->peer);
    return ncclUnhandledCudaError;
  }
  if (!is_fresh(conn->head, conn->step) || !is_fresh(conn->tail, conn->step)) return ncclInternalError;
  return fake->conn_open(context, conn);
}

static void conn_close(struct tt_device_context *context, struct tt_conn *conn)
{
  closed++;
  fake->conn_close(context, conn);
}

static void print(int level, const char *text)
{
  fprintf(stderr, "fake device: %d %s\n", level, text);
}

static void use_fake(void)
{
  char why[64];
  fake = tutti_device(print, why, sizeof(why));
  device = *fake;
  device.can_map = can_map;
  device.count = count_visible;
  device.conn_open = conn_open;
  device.conn_close = conn_close;
  visible = FAKE_DEVICES;
  memset(blocked, 0, sizeof(blocked));
  open_fails_on = -1;
  opened = closed = 0;
  world_use_device(&device);
}

static void expect_nothing_left(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 0);
  ck_assert_int_eq(counts.memories, 0);
  ck_assert_int_eq(counts.twins, 0);
  ck_assert_int_eq(counts.hosts, 0);
}

#define SIMPLE tt_connect_index(true, TT_PROTO_SIMPLE, false)
#define SIMPLE_P2P tt_connect_index(true, TT_PROTO_SIMPLE, true)
#define LL tt_connect_index(true, TT_PROTO_LL, false)

static void ring(struct rank *rank)
{
  int next = (rank->rank + 1) % rank->nranks, previous = (rank->rank + rank->nranks - 1) % rank->nranks;
  const int indices[] = {SIMPLE, SIMPLE_P2P, LL};
  for (int c = 0; c < 3; c++)
    for (int i = 0; i < 3; i++) {
      RANK_CHECK(rank, tt_connect_need(rank->connect, next, c, indices[i], true) == ncclSuccess);
      RANK_CHECK(rank, tt_connect_need(rank->connect, previous, c, indices[i], false) == ncclSuccess);
    }
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  for (int c = 0; c < 3; c++) {
    struct tt_connector *ll = tt_connect_get(rank->connect, next, c, LL, true);
    RANK_CHECK(rank, ll && ll->transport == TT_TRANSPORT_DEVICE && ll->conn.twin);
    RANK_CHECK(rank, ll->conn.slots[TT_PROTO_LL] && !ll->conn.slots[TT_PROTO_SIMPLE]);
    for (int i = 0; i < 2; i++) {
      struct tt_connector *to = tt_connect_get(rank->connect, next, c, indices[i], true);
      struct tt_connector *from = tt_connect_get(rank->connect, previous, c, indices[i], false);
      RANK_CHECK(rank, to && from && to->conn.step == rank->env->first_step);
      RANK_CHECK(rank, send_by_hand(rank, to, TT_SLOTS) && recv_by_hand(rank, from, TT_SLOTS));
    }
  }
}

START_TEST(rings)
{
  static const int sizes[] = {2, 3, 8};
  for (int i = 0; i < 3; i++) {
    opened = closed = 0;
    world_run(sizes[i], ring);
    ck_assert_int_eq(opened, sizes[i] * 3 * 3 * 2);
    ck_assert_int_eq(closed, opened);
    expect_nothing_left();
  }
}
END_TEST

static void ring_of_one_process_each(struct rank *rank)
{
  ring(rank);
  if (!rank->failed) RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
}

START_TEST(rings_of_processes)
{
  world_run_processes(2, ring_of_one_process_each, NULL);
  world_run_processes(4, ring_of_one_process_each, NULL);
}
END_TEST

/* Counters and their 32-bit images wrap on the way. */
START_TEST(first_step)
{
  set_env("TUTTI_FIRST_STEP", "4294967280");
  world_run(2, ring);
  world_run_processes(2, ring, NULL);
  expect_nothing_left();
}
END_TEST

/* A connection whose last step on the device fails: both ends learn of it, and what was made is freed. */
static void open_fails(struct rank *rank)
{
  int peer = 1 - rank->rank;
  ncclResult_t expected = rank->rank == 0 ? ncclUnhandledCudaError : ncclRemoteError;
  RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, SIMPLE, rank->rank == 0) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == expected);
  RANK_CHECK(rank, strstr(tt_log_thread_error(), "no twin for rank 1"));
}

START_TEST(failing_open)
{
  open_fails_on = 1;
  world_run(2, open_fails);
  ck_assert_int_le(closed, opened - 1);
  expect_nothing_left();
}
END_TEST

/* ---- Which devices reach which ---- */

static void check_reach(struct rank *rank)
{
  const struct tt_transport_env *env = rank->env;
  for (int a = 0; a < rank->nranks; a++)
    for (int b = 0; b < rank->nranks; b++) {
      if (a == b) continue;
      bool expected = !blocked[a][b] && !blocked[b][a];
      RANK_CHECK(rank, tt_reach_both_ways(env->reach, env->peers, a, b) == expected);
      char reason[192] = "";
      RANK_CHECK(rank, tt_transport_device.can(env, a, b, reason, sizeof(reason)) == expected);
      RANK_CHECK(rank, expected || strstr(reason, "cannot map each other's memory"));
    }
}

START_TEST(reach_is_agreed)
{
  world_run(4, check_reach);
  blocked[2][0] = true; /* one way is enough */
  world_run(4, check_reach);
  world_run_processes(4, check_reach, NULL);
  for (int a = 0; a < 4; a++)
    for (int b = 0; b < 4; b++) blocked[a][b] = true;
  world_run(4, check_reach);
}
END_TEST

/* Devices that do not reach each other meet in the host's memory, the others as ever; all ranks know of both. */
static void mixed(struct rank *rank)
{
  const int indices[] = {SIMPLE, LL};
  uint32_t used = 0, expected = 0;
  for (int a = 0; a < rank->nranks; a++)
    for (int b = 0; b < rank->nranks; b++)
      if (a != b) expected |= 1u << (blocked[a][b] || blocked[b][a] ? TT_TRANSPORT_HOST : TT_TRANSPORT_DEVICE);
  RANK_CHECK(rank, tt_transport_agree(rank->env, rank->bootstrap, &used) == ncclSuccess && used == expected);
  for (int peer = 0; peer < rank->nranks; peer++)
    for (int i = 0; i < 2 && peer != rank->rank; i++)
      for (int send = 0; send < 2; send++)
        RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, indices[i], send) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  for (int shift = 1; shift < rank->nranks; shift++) {
    int to = (rank->rank + shift) % rank->nranks, from = (rank->rank + rank->nranks - shift) % rank->nranks;
    struct tt_connector *there = tt_connect_get(rank->connect, to, 0, SIMPLE, true);
    struct tt_connector *back = tt_connect_get(rank->connect, from, 0, SIMPLE, false);
    struct tt_connector *ll = tt_connect_get(rank->connect, to, 0, LL, true);
    bool apart = blocked[rank->rank][to] || blocked[to][rank->rank];
    RANK_CHECK(rank, there && back && ll && ll->conn.twin && ll->transport == there->transport);
    RANK_CHECK(rank, there->transport == (apart ? TT_TRANSPORT_HOST : TT_TRANSPORT_DEVICE));
    RANK_CHECK(rank, send_by_hand(rank, there, TT_SLOTS) && recv_by_hand(rank, back, TT_SLOTS));
  }
}

static void mixed_of_one_process_each(struct rank *rank)
{
  mixed(rank);
  if (!rank->failed) RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
}

START_TEST(devices_that_do_not_reach)
{
  world_run(3, mixed);
  blocked[1][0] = true;
  world_run(3, mixed);
  world_run_processes(3, mixed_of_one_process_each, NULL);
  blocked[0][2] = blocked[1][2] = true;
  world_run(3, mixed);
  expect_nothing_left();
}
END_TEST

static void unreachable(struct rank *rank)
{
  RANK_CHECK(rank, tt_connect_need(rank->connect, 1 - rank->rank, 0, SIMPLE, true) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSystemError);
  const char *text = tt_log_thread_error();
  RANK_CHECK(rank, strstr(text, "0000:01:00.0") && strstr(text, "0000:02:00.0") && strstr(text, "NCCL_SHM_DISABLE"));
}

START_TEST(devices_without_a_way)
{
  set_env("NCCL_SHM_DISABLE", "1");
  set_env("NCCL_NET_DISABLE", "1");
  blocked[1][0] = true;
  world_run(2, unreachable);
  expect_nothing_left();
}
END_TEST

/* A rank that sees only its own device, as with CUDA_VISIBLE_DEVICES, cannot say no: the other rank decides. */
static void sees_one(struct rank *rank)
{
  const struct tt_transport_env *env = rank->env;
  RANK_CHECK(rank, tt_reach_both_ways(env->reach, env->peers, 0, 1) == !blocked[1][0]);
  RANK_CHECK(rank, tt_reach_both_ways(env->reach, env->peers, 1, 0) == !blocked[1][0]);
}

static void hide_others(int rank)
{
  if (rank == 0) visible = 1;
}

START_TEST(hidden_devices)
{
  blocked[0][1] = true; /* rank 0 would say so if it saw device 1 */
  world_before_rank(hide_others);
  world_run_processes(2, sees_one, NULL);
  blocked[1][0] = true;
  world_run_processes(2, sees_one, NULL);
  world_before_rank(NULL);
}
END_TEST

START_TEST(indices)
{
  bool used[TT_CONN_INDICES] = {false};
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    for (int k = 0; k < 2; k++) {
      int index = tt_connect_index(true, p, k);
      ck_assert(index >= 0 && index < TT_CONN_INDICES && !used[index]);
      used[index] = true;
      ck_assert_int_eq(tt_connect_index_protocol(index), p);
      ck_assert_int_eq(tt_connect_index_point_to_point(index), k);
      ck_assert_int_eq(tt_connect_index(false, p, k), k);
      ck_assert_int_eq(tt_connect_index_point_to_point(k), k);
    }
}
END_TEST

void add_device(Suite *suite)
{
  TCase *tc = tcase_create("device");
  tcase_set_timeout(tc, 120);
  tcase_add_checked_fixture(tc, use_fake, NULL);
  tcase_add_test(tc, rings);
  tcase_add_test(tc, rings_of_processes);
  tcase_add_test(tc, first_step);
  tcase_add_test(tc, failing_open);
  tcase_add_test(tc, reach_is_agreed);
  tcase_add_test(tc, devices_that_do_not_reach);
  tcase_add_test(tc, devices_without_a_way);
  tcase_add_test(tc, hidden_devices);
  tcase_add_test(tc, indices);
  suite_add_tcase(suite, tc);
}
