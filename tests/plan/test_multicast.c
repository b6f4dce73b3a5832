/* Which ranks may have multicast memory: every condition alone turns it off for all, and the verdict names it; and how
 * much is moved through it at a time. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "plan/multicast.h"
#include "plan/shared.h"

enum { N = 8 };

static struct tt_multicast_card cards[N];
static struct tt_peer_info peers[N];
static int32_t machine[N];

/* Ranks of machines with `each` ranks, each machine one host. */
static void set_up(int each)
{
  memset(cards, 0, sizeof(cards));
  memset(peers, 0, sizeof(peers));
  for (int r = 0; r < N; r++) {
    peers[r].rank = r;
    peers[r].node = machine[r] = r / each;
    snprintf((char *)peers[r].device_id, sizeof(peers[r].device_id), "device %d", r);
    memset(cards[r].reduces, 0xff, sizeof(cards[r].reduces));
  }
}

static struct tt_multicast decide(int nranks, int enable)
{
  struct tt_multicast out;
  ck_assert_int_eq(tt_multicast_decide(cards, peers, machine, nranks, enable, &out), ncclSuccess);
  ck_assert_int_eq(out.possible, out.why[0] == '\0');
  return out;
}

static void expect_refused(int nranks, const char *why)
{
  struct tt_multicast out = decide(nranks, TT_MULTICAST_AUTO);
  ck_assert(!out.possible);
  ck_assert_msg(strstr(out.why, why) != NULL, "\"%s\" lacks \"%s\"", out.why, why);
}

START_TEST(possible)
{
  set_up(4);
  cards[3].reduces[ncclFloat32] = 1u << ncclSum;
  cards[6].reduces[ncclFloat32] = 1u << ncclSum | 1u << ncclMin;
  struct tt_multicast out = decide(N, TT_MULTICAST_AUTO);
  ck_assert(out.possible && !out.wanted && !out.spans);
  ck_assert(tt_multicast_reduces(&out, ncclFloat32, ncclSum));
  ck_assert(!tt_multicast_reduces(&out, ncclFloat32, ncclMin));
  ck_assert(tt_multicast_reduces(&out, ncclInt32, ncclMin));
  ck_assert(!tt_multicast_reduces(&out, -1, ncclSum) && !tt_multicast_reduces(&out, 99, ncclSum));
  ck_assert(decide(N, TT_MULTICAST_WANTED).wanted);
}
END_TEST

START_TEST(refused)
{
  set_up(4);
  ck_assert_ptr_nonnull(strstr(decide(N, TT_MULTICAST_NEVER).why, "NCCL_NVLS_ENABLE is 0"));
  expect_refused(2, "not for 2 ranks");
  expect_refused(6, "rank 4: its machine has 2 ranks");
  snprintf(cards[5].why, sizeof(cards[5].why), "its GPU is too old");
  expect_refused(N, "rank 5: its GPU is too old");
  set_up(4);
  memcpy(peers[7].device_id, peers[4].device_id, sizeof(peers[7].device_id));
  expect_refused(N, "rank 4: rank 7 has the same device");
  set_up(4);
  memcpy(peers[7].device_id, peers[3].device_id, sizeof(peers[7].device_id)); /* of another host */
  ck_assert(decide(N, TT_MULTICAST_AUTO).possible);
}
END_TEST

/* A machine of two hosts needs devices that can share across them. */
START_TEST(across_hosts)
{
  set_up(4);
  for (int r = 0; r < N; r++) machine[r] = 0;
  expect_refused(N, "rank 0: its device cannot share multicast memory with other hosts, as that of rank 4");
  for (int r = 0; r < N; r++) cards[r].fabric = 1;
  ck_assert(decide(N, TT_MULTICAST_AUTO).spans);
  cards[6].fabric = 0;
  expect_refused(N, "rank 6: its device cannot share");
}
END_TEST

/* Who asks for it is told of a device that cannot, though not of too few of them. */
START_TEST(asked_for)
{
  struct tt_multicast out;
  set_up(4);
  ck_assert(!decide(2, TT_MULTICAST_WANTED).possible);
  snprintf(cards[1].why, sizeof(cards[1].why), "its GPU is too old");
  ck_assert_int_eq(tt_multicast_decide(cards, peers, machine, N, TT_MULTICAST_WANTED, &out), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_NVLS_ENABLE"));
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "rank 1: its GPU is too old"));
}
END_TEST

/* NVLSTree has smaller chunks where it is deep, or where users say so; lines are whole. */
START_TEST(chunks)
{
  static const struct {
    const char *nvls, *tree;
    size_t one, two, four;
  } rows[] = {
      {NULL, NULL, 131072, 131072, 65536},      {"8192", NULL, 8192, 8192, 8192}, {NULL, "4096", 131072, 4096, 4096},
      {NULL, "262144", 131072, 131072, 131072}, {"1000", "99", 960, 64, 64},      {"64", "1", 64, 64, 64},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    unsetenv("NCCL_NVLS_CHUNKSIZE");
    unsetenv("NCCL_NVLSTREE_MAX_CHUNKSIZE");
    if (rows[i].nvls) setenv("NCCL_NVLS_CHUNKSIZE", rows[i].nvls, 1);
    if (rows[i].tree) setenv("NCCL_NVLSTREE_MAX_CHUNKSIZE", rows[i].tree, 1);
    tt_param_reset();
    ck_assert_uint_eq(tt_shared_largest(1), rows[i].one);
    ck_assert_uint_eq(tt_shared_largest(2), rows[i].two);
    ck_assert_uint_eq(tt_shared_largest(4), rows[i].four);
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("plan_multicast");
  TCase *tc = tcase_create("decide");
  tcase_add_test(tc, possible);
  tcase_add_test(tc, refused);
  tcase_add_test(tc, across_hosts);
  tcase_add_test(tc, asked_for);
  tcase_add_test(tc, chunks);
  suite_add_tcase(suite, tc);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
