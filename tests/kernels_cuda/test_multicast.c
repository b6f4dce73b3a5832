/* Teams: what keeps a device out of them, the steps by each kind of handle, and after every failure. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "fake_cuda.h"
#include "kernels/cuda/multicast.h"
#include "kernels/cuda/state.h"

#define BYTES ((size_t)3000000)

static struct tt_device_context *members[2];

/* Kernels are no part of this. */
static bool built = true;
bool tt_cuda_nvls_is_built(void)
{
  return built;
}
static int loads;
ncclResult_t tt_cuda_nvls_load(void)
{
  loads++;
  return ncclSuccess;
}

static void open_members(void)
{
  tt_param_reset();
  for (int m = 0; m < 2; m++) {
    struct tt_device_config config = {.size = sizeof(config), .index = m + 1, .rank = m, .nranks = 2};
    ck_assert_int_eq(tt_cuda_open(&config, &members[m]), ncclSuccess);
  }
}

static void expect_zero(const unsigned char *ptr, size_t bytes)
{
  size_t i = 0;
  while (i < bytes && ptr[i] == 0) i++;
  ck_assert_uint_eq(i, bytes);
}

static ncclResult_t steps(const struct tt_device_team_config *config, struct tt_device_export *shown,
                          struct tt_device_team **teams)
{
  void *own[2], *all[2];
  TT_TRY(tt_cuda_team_create(members[0], config, shown, &teams[0]));
  ck_assert_uint_eq(shown->kind, config->kind);
  ck_assert_int_eq(shown->fd >= 0, config->kind == TT_EXPORT_FD);
  TT_TRY(tt_cuda_team_import(members[1], config, shown, &teams[1]));
  for (int m = 0; m < 2; m++) TT_TRY(tt_cuda_team_add(members[m], teams[m]));
  for (int m = 0; m < 2; m++) {
    TT_TRY(tt_cuda_team_bind(members[m], teams[m], &own[m], &all[m]));
    ck_assert(own[m] != NULL && all[m] != NULL && own[m] != all[m]);
    expect_zero(own[m], BYTES);
    memset(own[m], 1 + m, BYTES);
  }
  expect_zero((unsigned char *)own[0] + BYTES, 1); /* each has a copy of its own, of whole granules */
  ck_assert_int_eq(*(unsigned char *)own[0], 1);
  ck_assert_int_eq(fake.bound, 2);
  return ncclSuccess;
}

/* Nothing is left of a team, however far it came. */
static ncclResult_t make(uint32_t kind, int first_to_leave)
{
  const struct tt_device_team_config config = {.size = sizeof(config), .devices = 2, .kind = kind, .bytes = BYTES};
  struct tt_device_export shown = {.fd = -1};
  struct tt_device_team *teams[2] = {NULL, NULL};
  ncclResult_t result = steps(&config, &shown, teams);
  if (shown.fd >= 0) close(shown.fd);
  for (int k = 0; k < 2; k++) {
    int m = k == 0 ? first_to_leave : 1 - first_to_leave;
    if (teams[m] != NULL) tt_cuda_team_leave(members[m], teams[m]);
  }
  return result;
}

START_TEST(teams)
{
  static const uint32_t kinds[] = {TT_EXPORT_LOCAL, TT_EXPORT_FD, TT_EXPORT_FABRIC};
  fake.fabric = fake.imex = true;
  open_members();
  const int before = fake.handles + fake.mappings + fake.ranges;
  for (int first = 0; first < 2; first++) {
    int failures = 0;
    for (int call = 1;; call++) {
      fake.fail_at = call;
      ncclResult_t result = make(kinds[_i], first);
      bool reached = fake.fail_at == 0;
      fake.fail_at = 0;
      ck_assert_int_eq(fake.handles + fake.mappings + fake.ranges, before);
      ck_assert_int_eq(fake.bound, 0);
      ck_assert_ptr_eq(fake_current, NULL);
      ck_assert_int_eq(result, reached ? ncclUnhandledCudaError : ncclSuccess);
      if (!reached) break;
      failures++;
    }
    ck_assert_int_gt(failures, 20);
  }
  ck_assert_int_ge(loads, 4);
}
END_TEST

/* Who imports a team of another size does not go on. */
START_TEST(other_size)
{
  struct tt_device_team_config config = {.size = sizeof(config), .devices = 2, .kind = TT_EXPORT_FD, .bytes = BYTES};
  struct tt_device_export shown;
  struct tt_device_team *team, *none;
  open_members();
  ck_assert_int_eq(tt_cuda_team_create(members[0], &config, &shown, &team), ncclSuccess);
  config.bytes *= 2;
  ck_assert_int_eq(tt_cuda_team_import(members[1], &config, &shown, &none), ncclRemoteError);
  ck_assert_ptr_null(none);
  close(shown.fd);
  tt_cuda_team_leave(members[0], team);
}
END_TEST

static struct tt_device_multicast check_device(void)
{
  struct tt_device_multicast own = {.size = sizeof(own)};
  tt_param_reset();
  ck_assert_int_eq(tt_cuda_team_check(2, &own), ncclSuccess);
  ck_assert_uint_eq(own.size, sizeof(own));
  return own;
}

static void expect_why(const char *text)
{
  struct tt_device_multicast own = check_device();
  ck_assert_msg(strstr(own.why, text) != NULL, "\"%s\" lacks \"%s\"", own.why, text);
}

START_TEST(obstacles)
{
  fake.fabric = true;
  struct tt_device_multicast own = check_device();
  ck_assert_str_eq(own.why, "");
  ck_assert_uint_eq(own.fabric, 1);
  ck_assert_uint_eq(own.reduces[ncclFloat32], 1u << ncclSum);
  ck_assert_uint_eq(own.reduces[ncclBfloat16], 1u << ncclSum | 1u << ncclMin | 1u << ncclMax);
  ck_assert_uint_eq(own.reduces[ncclInt8] + own.reduces[ncclFloat8e4m3], 0);
  fake.fabric = false;
  ck_assert_uint_eq(check_device().fabric, 0);
  built = false;
  expect_why("no kernels");
  setenv("NCCL_CUMEM_ENABLE", "0", 1);
  built = true;
  expect_why("NCCL_CUMEM_ENABLE");
  fake.no_multicast = true;
  expect_why("GPU 2 does not support multicast");
  fake.no_multicast_functions = true;
  expect_why("CUDA 12.1");
}
END_TEST

void add_multicast(Suite *suite)
{
  TCase *tc = tcase_create("multicast");
  tcase_set_timeout(tc, 60);
  tcase_add_loop_test(tc, teams, 0, 3);
  tcase_add_test(tc, other_size);
  tcase_add_test(tc, obstacles);
  suite_add_tcase(suite, tc);
}
