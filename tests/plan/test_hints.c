/* What a communicator's configuration and the environment say of how works are started reaches the device: each rank's
 * own, and children's as other members do. */
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "collectives.h"
#include "tests/fakes/device/fake.h"

enum { N = 3 };

static ncclComm_t comms[N], children[N];
static ncclConfig_t configs[N];

static void set(const char *name, const char *value)
{
  if (value != NULL)
    setenv(name, value, 1);
  else
    unsetenv(name);
  tt_param_reset();
}

static void open_all(void)
{
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    ok(ncclCommInitRankConfig(&comms[r], N, id, r, &configs[r]));
  }
  ok(ncclGroupEnd());
}

static void close_all(ncclComm_t *all, int n)
{
  for (int r = 0; r < n; r++) ok(ncclCommDestroy(all[r]));
}

static void expect(int device, unsigned cluster, unsigned links, unsigned apart)
{
  struct tt_device_config config = fake_opened(device);
  ck_assert_uint_eq(config.size, sizeof config);
  ck_assert_uint_eq(config.cluster, cluster);
  ck_assert_uint_eq(config.links, links);
  ck_assert_uint_eq(config.apart, apart);
}

static void setup(void)
{
  for (int r = 0; r < N; r++) configs[r] = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
}

START_TEST(defaults)
{
  open_all();
  for (int r = 0; r < N; r++) expect(r, 0, 0, 1);
  close_all(comms, N);
  ok(ncclCommInitAll(comms, N, NULL));
  for (int r = 0; r < N; r++) expect(r, 0, 0, 1);
  close_all(comms, N);
}
END_TEST

/* Ranks need not agree. */
START_TEST(each_its_own)
{
  for (int r = 0; r < N; r++) configs[r].cgaClusterSize = 2 * r + 1;
  configs[1].nvlinkCentricSched = 1;
  open_all();
  for (int r = 0; r < N; r++) expect(r, 2u * (unsigned)r + 1, r == 1, 1);
  close_all(comms, N);
}
END_TEST

START_TEST(variables)
{
  for (int r = 0; r < N; r++) configs[r].cgaClusterSize = 2;
  set("NCCL_CGA_CLUSTER_SIZE", "8");
  set("NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE", "1");
  set("NCCL_MEM_SYNC_DOMAIN", "0");
  open_all();
  for (int r = 0; r < N; r++) expect(r, 8, 1, 0);
  close_all(comms, N);
  set("NCCL_CGA_CLUSTER_SIZE", "0");
  set("NCCL_MEM_SYNC_DOMAIN", "1");
  open_all();
  for (int r = 0; r < N; r++) expect(r, 0, 1, 1);
  close_all(comms, N);
  set("NCCL_CGA_CLUSTER_SIZE", "9");
  ck_assert_int_eq(ncclCommInitAll(comms, N, NULL), ncclInvalidUsage);
  ck_assert_msg(strstr(ncclGetLastError(NULL), "NCCL_CGA_CLUSTER_SIZE=9,") != NULL, "%s", ncclGetLastError(NULL));
  set("NCCL_CGA_CLUSTER_SIZE", NULL);
  set("NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE", NULL);
  set("NCCL_MEM_SYNC_DOMAIN", NULL);
}
END_TEST

static void open_children(ncclConfig_t *config, bool shrink)
{
  int excluded = N - 1;
  ok(ncclGroupStart());
  for (int r = 0; r < N - 1; r++)
    if (shrink)
      ok(ncclCommShrink(comms[r], &excluded, 1, &children[r], config, 0));
    else
      ok(ncclCommSplit(comms[r], 0, r, &children[r], config));
  if (!shrink) ok(ncclCommSplit(comms[N - 1], NCCL_SPLIT_NOCOLOR, 0, &children[N - 1], config));
  ok(ncclGroupEnd());
}

/* _i: split or shrunk. A child without a configuration has its parent's; with one its own. */
START_TEST(inherited)
{
  ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
  for (int r = 0; r < N; r++) configs[r].cgaClusterSize = 4 + r;
  for (int r = 0; r < N; r++) configs[r].nvlinkCentricSched = 1;
  open_all();
  own.cgaClusterSize = 2;
  open_children(&own, _i);
  for (int r = 0; r < N - 1; r++) expect(r, 2, 0, 1);
  close_all(children, N - 1);
  open_children(NULL, _i);
  for (int r = 0; r < N - 1; r++) expect(r, 4 + (unsigned)r, 1, 1);
  expect(N - 1, 4 + N - 1, 1, 1); /* the parent's */
  close_all(children, N - 1);
  close_all(comms, N);
}
END_TEST

void add_hints(Suite *suite)
{
  TCase *tests = tcase_create("hints");
  tcase_set_timeout(tests, 60);
  tcase_add_checked_fixture(tests, setup, NULL);
  tcase_add_test(tests, defaults);
  tcase_add_test(tests, each_its_own);
  tcase_add_test(tests, variables);
  tcase_add_loop_test(tests, inherited, 0, 2);
  suite_add_tcase(suite, tests);
}
