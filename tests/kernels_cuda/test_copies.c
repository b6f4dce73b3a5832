/* Copies by copy engines: counted in their order, told when they are done, and nothing is left, whichever call fails.
 */
#include <check.h>
#include <string.h>
#include "base/check.h"
#include "fake_cuda.h"
#include "kernels/cuda/state.h"

static struct tt_device_context *context;
static unsigned char from[64], to[64];

static void setup(void)
{
  struct tt_device_config config = {.size = sizeof(config), .index = 1, .rank = 0, .nranks = 2};
  ck_assert_int_eq(tt_cuda_open(&config, &context), ncclSuccess);
  memset(from, 7, sizeof(from));
  memset(to, 0, sizeof(to));
}

static void teardown(void)
{
  fake.running = false;
  tt_cuda_close(context);
  ck_assert_int_eq(fake.streams, 0);
  ck_assert_int_eq(fake.events, 0);
}

static uint64_t copy(size_t bytes)
{
  uint64_t ticket = 0;
  ck_assert_int_eq(tt_cuda_copy(context, to, from, bytes, &ticket), ncclSuccess);
  return ticket;
}

static uint64_t copied(void)
{
  uint64_t ticket = 999;
  ck_assert_int_eq(tt_cuda_copied(context, &ticket), ncclSuccess);
  return ticket;
}

START_TEST(counted)
{
  ck_assert_uint_eq(copied(), 0);
  fake.running = true;
  ck_assert_uint_eq(copy(10), 1);
  ck_assert_uint_eq(copy(64), 2);
  ck_assert_uint_eq(copied(), 0); /* begun is not done */
  fake.running = false;
  ck_assert_uint_eq(copied(), 2);
  ck_assert_int_eq(memcmp(from, to, sizeof(to)), 0);
}
END_TEST

/* More than can be told apart at a time. */
START_TEST(many)
{
  for (uint64_t n = 1; n <= 3 * TT_CUDA_COPY_EVENTS; n++) ck_assert_uint_eq(copy(8), n);
  ck_assert_uint_eq(copied(), 3 * TT_CUDA_COPY_EVENTS);
}
END_TEST

/* The first copy makes what copies need; it can be tried again after a failure, which counts none. */
START_TEST(failures)
{
  uint64_t ticket;
  int failed = 0;
  for (int call = 1;; call++) {
    fake.fail_at = call;
    ncclResult_t result = tt_cuda_copy(context, to, from, 16, &ticket);
    bool used = fake.fail_at == 0;
    fake.fail_at = 0;
    if (!used) break;
    failed += result != ncclSuccess;
    ck_assert_uint_eq(ticket, 0);
    ck_assert_int_lt(call, 200);
  }
  ck_assert_int_gt(failed, 5); /* what was made is kept, so that each try needs less */
  ck_assert_uint_eq(ticket, 1);
  ck_assert_uint_eq(copied(), 1);
  copy(16);
  failed = 0;
  for (int call = 1; call <= 4; call++) {
    fake.fail_at = call;
    failed += tt_cuda_copied(context, &ticket) != ncclSuccess;
    fake.fail_at = 0;
  }
  ck_assert_int_gt(failed, 0);
  ck_assert_uint_eq(copied(), 2);
}
END_TEST

void add_copies(Suite *suite)
{
  TCase *tc = tcase_create("copies");
  tcase_add_checked_fixture(tc, setup, teardown);
  tcase_add_test(tc, counted);
  tcase_add_test(tc, many);
  tcase_add_test(tc, failures);
  suite_add_tcase(suite, tc);
}
