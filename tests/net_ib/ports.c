/* Which ports are used, and which address of each: their state, what the environment names, InfiniBand's subnets. */
#include "ib_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int devices(void)
{
  int count = -1;
  start_without_devices();
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  return count;
}

/* What all queue pairs of a connection were told. */
static void expect_gid_index(long wanted)
{
  struct pair pair;
  uint32_t numbers[8];
  pair_open(&pair, 0, 0, 1000);
  ck_assert_int_eq(fake_qps(numbers, 8), 2);
  for (int i = 0; i < 2; i++) ck_assert_int_eq(fake_qp(numbers[i], "sgid_index"), wanted);
  exchange(&pair, 1000);
  pair_close(&pair);
}

/* A port without a link is passed over, and so is one of a link layer that is neither InfiniBand nor Ethernet. */
START_TEST(unusable)
{
  ncclNetProperties_v12_t props;
  setenv("FAKE_VERBS_DEVICES", _i ? "fake0/none,fake1,fake2/ib" : "fake0,fake1*2,fake2", 1);
  if (!_i) setenv("FAKE_VERBS_SCRIPT", "down fake0;down fake1:2", 1);
  ck_assert_int_eq(devices(), 2);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(net->getProperties(i, &props), ncclSuccess);
    ck_assert_str_eq(props.name, i ? "fake2" : "fake1");
    ck_assert_int_eq(props.port, 1);
  }
  stop();
}
END_TEST

/* Places in the table of GIDs that are empty count as places, and are never used, not even when they are named. */
START_TEST(gids_with_holes)
{
  setenv("FAKE_VERBS_NO_DMABUF", "1", 1);
  setenv("FAKE_VERBS_GIDS", "-,fe80::/2,-,::ffff:10.77.%d.1/1,-,::ffff:10.77.%d.1/2", 1);
  if (_i) setenv("NCCL_IB_GID_INDEX", _i == 1 ? "3" : "1", 1);
  ck_assert_int_eq(devices(), _i == 2 ? 0 : 1);
  if (_i < 2)
    expect_gid_index(_i ? 3 : 5);
  else
    expect_logged("NCCL_IB_GID_INDEX=1 names no GID of it; it has 3: ::ffff:10.77.1.1 v1, 5: ::ffff:10.77.1.1 v2");
  stop();
}
END_TEST

static void write_file(const char *path, const char *text)
{
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fputs(text, file);
  fclose(file);
}

/* Where the library cannot tell a GID's version, the kernel's files do. */
START_TEST(versions_of_files)
{
  static const char *const folders[] = {
      "", "/fake0", "/fake0/ports", "/fake0/ports/1", "/fake0/ports/1/gid_attrs", "/fake0/ports/1/gid_attrs/types"};
  char root[] = "/tmp/tutti-gids-XXXXXX", path[128];
  ck_assert_ptr_nonnull(mkdtemp(root));
  for (int i = 1; i < 6; i++) {
    snprintf(path, sizeof path, "%s%s", root, folders[i]);
    ck_assert_int_eq(mkdir(path, 0700), 0);
  }
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s%s/%d", root, folders[5], i);
    write_file(path, (i == 0) == (_i == 0) ? "RoCE v2\n" : "IB/RoCE v1\n");
  }
  setenv("FAKE_VERBS_NO_DMABUF", "1", 1);
  setenv("FAKE_VERBS_NO_GID_EX", "1", 1);
  setenv("FAKE_VERBS_SYSFS", root, 1);
  setenv("FAKE_VERBS_GIDS", "::ffff:10.77.%d.1,::ffff:10.77.%d.1,-", 1);
  ck_assert_int_eq(devices(), 1);
  expect_gid_index(_i);
  stop();
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s%s/%d", root, folders[5], i);
    unlink(path);
  }
  for (int i = 5; i >= 0; i--) {
    snprintf(path, sizeof path, "%s%s", root, folders[i]);
    rmdir(path);
  }
}
END_TEST

/* InfiniBand: two ports of one subnet know each other by their LIDs, of two subnets by a global header, which a
 * router's LID leads out of the own one if the GID has it (FLID: the third group; the fourth one is the subnet). */
static const struct {
  const char *gids, *grh;
  long global, dlid_of_2, index;
} subnets[] = {{"fec0:0:0:1::%d", NULL, 0, 0x102, 0},
               {"fec0:0:0:%d::1", NULL, 1, 0x102, 0},
               {"fec0:0:0:1::%d", "1", 1, 0x102, 0},
               {"fec0:0:0:%d::1,fec0:0:c001:%d::1", NULL, 1, 0xc001, 1},
               {"fec0:0:0:1::%d,fec0:0:c001:1::%d", NULL, 0, 0x102, 0},
               {"fec0:0:0:%d::1,fec0:0:0:%d::2", NULL, 1, 0x102, 0}};

START_TEST(subnets_of_infiniband)
{
  struct pair pair;
  uint32_t numbers[8];
  setenv("FAKE_VERBS_NO_DMABUF", "1", 1);
  setenv("FAKE_VERBS_DEVICES", "fake0/ib,fake1/ib", 1);
  setenv("FAKE_VERBS_GIDS", subnets[_i].gids, 1);
  if (subnets[_i].grh) setenv("FAKE_VERBS_GRH", subnets[_i].grh, 1);
  ck_assert_int_eq(devices(), 2);
  pair_open(&pair, 0, 1, 1000);
  ck_assert_int_eq(fake_qps(numbers, 8), 2);
  for (int i = 0; i < 2; i++) {
    bool first = fake_qp(numbers[i], "device") == 0;
    ck_assert_int_eq(fake_qp(numbers[i], "is_global"), subnets[_i].global);
    ck_assert_int_eq(fake_qp(numbers[i], "sgid_index"), subnets[_i].index);
    if (first) ck_assert_int_eq(fake_qp(numbers[i], "dlid"), subnets[_i].dlid_of_2);
  }
  exchange(&pair, 1000);
  pair_close(&pair);
  stop();
}
END_TEST

/* The index of the router's GID is the user's to say. */
START_TEST(index_of_the_router)
{
  setenv("FAKE_VERBS_NO_DMABUF", "1", 1);
  setenv("FAKE_VERBS_GRH", "1", 1);
  setenv("FAKE_VERBS_DEVICES", "fake0/ib", 1);
  setenv("FAKE_VERBS_GIDS", "fec0:0:0:%d::1,fec0:0:0:%d::2,fec0:0:c001:%d::3", 1);
  setenv("NCCL_IB_ROUTABLE_FLID_GID_INDEX", _i ? "2" : "1", 1);
  ck_assert_int_eq(devices(), 1);
  expect_gid_index(_i ? 2 : 0);
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("ports");
  tcase_add_loop_test(tcase, unusable, 0, 2);
  tcase_add_loop_test(tcase, gids_with_holes, 0, 3);
  tcase_add_loop_test(tcase, versions_of_files, 0, 2);
  tcase_add_loop_test(tcase, subnets_of_infiniband, 0, sizeof subnets / sizeof subnets[0]);
  tcase_add_loop_test(tcase, index_of_the_router, 0, 2);
  return run_ib_suite(argc, argv, tcase);
}
