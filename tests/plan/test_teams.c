/* NVLS on devices that make teams: the data is right, memory is left by all when one cannot have it, and it is used
 * only where it may be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "collectives.h"
#include "tests/fakes/device/fake.h"

enum { N = 4 };
#define LONG_MS 60000
#define BY_NAME "Ring;AllReduce:NVLS;AllGather:NVLS;ReduceScatter:NVLS"

static void set(const char *name, const char *text)
{
  if (text)
    setenv(name, text, 1);
  else
    unsetenv(name);
  tt_param_reset();
}

static void wait_all(int n)
{
  for (int r = 0; r < n; r++) {
    fake_set_device(r);
    ck_assert(fake_stream_wait(NULL, LONG_MS));
  }
}

/* One operation of each kind that NVLS has, with checks. */
static void run(ncclComm_t *comms, int n, size_t count)
{
  struct operation operations[3][N];
  for (int kind = ALL_REDUCE; kind <= REDUCE_SCATTER; kind++) {
    for (int r = 0; r < n; r++) {
      operations[kind][r] = (struct operation){.kind = (enum kind)kind, .n = n, .rank = r, .count = count, .seed = 5};
      operation_open(&operations[kind][r]);
    }
    ok(ncclGroupStart());
    for (int r = 0; r < n; r++) ok(operation_call(&operations[kind][r], comms[r], NULL));
    ok(ncclGroupEnd());
  }
  wait_all(n);
  for (int kind = ALL_REDUCE; kind <= REDUCE_SCATTER; kind++)
    for (int r = 0; r < n; r++) {
      operation_check(&operations[kind][r]);
      operation_close(&operations[kind][r]);
    }
}

static void expect_nothing_left(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts + counts.memories + counts.twins + counts.launches, 0);
}

/* How many works with multicast memory one run has, on all ranks. */
static int count_run(int n)
{
  ncclComm_t comms[N];
  ok(ncclCommInitAll(comms, n, NULL));
  const int before = fake_multicast_works();
  run(comms, n, 3000);
  const int used = fake_multicast_works() - before;
  for (int r = 0; r < n; r++) ok(ncclCommDestroy(comms[r]));
  expect_nothing_left();
  return used;
}

/* Buffers so small that the largest takes many loops. */
START_TEST(data)
{
  ncclComm_t comms[N];
  set("NCCL_ALGO", BY_NAME);
  set("NCCL_BUFFSIZE", _i == 0 ? NULL : "8192");
  for (int n = 3; n <= N; n++) {
    ok(ncclCommInitAll(comms, n, NULL));
    const int before = fake_multicast_works();
    for (size_t count = 1; count <= 50000; count = 7 * count + 3) run(comms, n, count);
    ck_assert_int_eq((fake_multicast_works() - before) % (3 * n), 0);
    ck_assert_int_gt(fake_multicast_works(), before);
    for (int r = 0; r < n; r++) ok(ncclCommDestroy(comms[r]));
    expect_nothing_left();
  }
}
END_TEST

START_TEST(where_it_may_be_used)
{
  ck_assert_int_eq(count_run(N), 0); /* nobody asks for it */
  set("NCCL_ALGO", BY_NAME);
  ck_assert_int_eq(count_run(N), 3 * N);
  ck_assert_int_eq(count_run(2), 0);
  set("NCCL_NVLS_ENABLE", "0");
  ck_assert_int_eq(count_run(N), 0);
  set("NCCL_NVLS_ENABLE", "2");
  fake_forbid_teams(true);
  ck_assert_int_eq(count_run(N), 0);
  set("NCCL_NVLS_ENABLE", "1");
  ncclComm_t comms[N];
  ck_assert_int_eq(ncclCommInitAll(comms, N, NULL), ncclInvalidUsage);
  ck_assert_msg(strstr(tt_log_thread_error(), "NCCL_NVLS_ENABLE is 1") != NULL, "%s", tt_log_thread_error());
  expect_nothing_left();
  fake_forbid_teams(false);
  set("NCCL_ALGO", NULL);
  ck_assert_int_eq(count_run(2), 0); /* too few for it, which is no error */
}
END_TEST

/* What one large all-reduce uses where communicators are configured so. */
static void expect_use(int nvls, int channels, size_t chunk)
{
  ncclComm_t comms[N];
  ncclUniqueId id;
  struct operation operations[N];
  int used;
  size_t moved;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.nvlsCTAs = nvls;
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    ok(ncclCommInitRankConfig(&comms[r], N, id, r, &config));
  }
  ok(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    operations[r] = (struct operation){.kind = ALL_REDUCE, .n = N, .rank = r, .count = 600000, .seed = 3};
    operation_open(&operations[r]);
  }
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(operation_call(&operations[r], comms[r], NULL));
  ok(ncclGroupEnd());
  wait_all(N);
  fake_last_multicast(&used, &moved);
  for (int r = 0; r < N; r++) {
    operation_check(&operations[r]);
    operation_close(&operations[r]);
    ok(ncclCommDestroy(comms[r]));
  }
  ck_assert_int_eq(used, channels);
  ck_assert_uint_eq(moved, chunk);
}

/* Devices of a machine that NVSwitches join. */
static void describe_machine(char path[32])
{
  snprintf(path, 32, "/tmp/tutti-teams-XXXXXX");
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  FILE *file = fdopen(fd, "w");
  fprintf(file, "<system version=\"1\"><cpu numaid=\"0\" affinity=\"1\" arch=\"x86_64\" vendor=\"GenuineIntel\" "
                "familyid=\"6\" modelid=\"85\">\n");
  for (int d = 0; d < N; d++)
    fprintf(file,
            "<pci busid=\"0000:0%d:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><gpu "
            "dev=\"%d\" sm=\"90\" rank=\"%d\" gdr=\"1\"><nvlink target=\"ffff:ff:ff.f\" count=\"18\" "
            "tclass=\"0x068000\"/></gpu></pci>\n",
            d + 1, d, d);
  fprintf(file, "</cpu></system>\n");
  ck_assert_int_eq(fclose(file), 0);
  set("NCCL_TOPO_FILE", path);
}

/* The communicator's configuration says how many channels, unless the environment does; both with a machine of which
 * the search knows that it has NVSwitches, and without. */
START_TEST(channels_and_chunks)
{
  char path[32] = "";
  if (_i == 1) describe_machine(path);
  set("NCCL_ALGO", BY_NAME);
  set("NCCL_NVLS_CHUNKSIZE", "4100"); /* whole lines fit */
  expect_use(3, 3, 4096);
  set("NCCL_NVLS_NCHANNELS", "2");
  set("NCCL_NVLSTREE_MAX_CHUNKSIZE", "64"); /* not on one machine */
  expect_use(3, 2, 4096);
  set("NCCL_NVLS_CHUNKSIZE", NULL);
  set("NCCL_BUFFSIZE", "4194304"); /* more would fit */
  expect_use(NCCL_CONFIG_UNDEF_INT, 2, 131072);
  if (path[0]) remove(path);
}
END_TEST

/* All ranks must say the same. */
START_TEST(configurations_that_differ)
{
  static const char *const members[] = {"nvlsCTAs", "nChannelsPerNetPeer"};
  for (int member = 0; member < 2; member++) {
    ncclComm_t comms[2];
    ncclUniqueId id;
    ncclConfig_t configs[2] = {NCCL_CONFIG_INITIALIZER, NCCL_CONFIG_INITIALIZER};
    *(member == 0 ? &configs[1].nvlsCTAs : &configs[1].nChannelsPerNetPeer) = 4;
    ok(ncclGetUniqueId(&id));
    ok(ncclGroupStart());
    for (int r = 0; r < 2; r++) {
      fake_set_device(r);
      ok(ncclCommInitRankConfig(&comms[r], 2, id, r, &configs[r]));
    }
    ck_assert_int_eq(ncclGroupEnd(), ncclInvalidUsage);
    ck_assert_msg(strstr(tt_log_thread_error(), members[member]) != NULL, "%s", tt_log_thread_error());
  }
}
END_TEST

/* An operation that the memory does not do goes another way. */
START_TEST(operations)
{
  ncclComm_t comms[N];
  int32_t in[N][8], out[N][8];
  set("NCCL_ALGO", BY_NAME);
  ok(ncclCommInitAll(comms, N, NULL));
  for (int product = 0; product < 2; product++) {
    const int before = fake_multicast_works();
    ok(ncclGroupStart());
    for (int r = 0; r < N; r++) {
      for (int i = 0; i < 8; i++) in[r][i] = i + r;
      ok(ncclAllReduce(in[r], out[r], 8, ncclInt32, product ? ncclProd : ncclMax, comms[r], NULL));
    }
    ok(ncclGroupEnd());
    wait_all(N);
    for (int r = 0; r < N; r++)
      for (int i = 0; i < 8; i++) ck_assert_int_eq(out[r][i], product ? i * (i + 1) * (i + 2) * (i + 3) : i + N - 1);
    ck_assert_int_eq(fake_multicast_works() - before, product ? 0 : N);
  }
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(comms[r]));
}
END_TEST

/* Whatever step fails on whatever rank: all fail, nothing is left, and the next communicator is as good as any. */
START_TEST(failures)
{
  ncclComm_t comms[N];
  set("NCCL_ALGO", BY_NAME);
  for (int step = FAKE_TEAM_CREATE; step <= FAKE_TEAM_BIND; step++)
    for (int device = 0; device < N; device++) {
      if ((step == FAKE_TEAM_CREATE) != (device == 0) && step <= FAKE_TEAM_IMPORT) continue; /* that rank has none */
      fake_fail_team((enum fake_team_step)step, device);
      ck_assert_int_eq(ncclCommInitAll(comms, N, NULL), ncclSystemError);
      expect_nothing_left();
    }
  fake_fail_team(FAKE_TEAM_NONE, 0);
  ck_assert_int_eq(count_run(N), 3 * N);
}
END_TEST

void add_teams(Suite *suite)
{
  TCase *tests = tcase_create("teams");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, data, 0, 2);
  tcase_add_test(tests, where_it_may_be_used);
  tcase_add_loop_test(tests, channels_and_chunks, 0, 2);
  tcase_add_test(tests, configurations_that_differ);
  tcase_add_test(tests, operations);
  tcase_add_test(tests, failures);
  suite_add_tcase(suite, tests);
}
