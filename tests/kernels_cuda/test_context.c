/* A context's life, the callers' threads, and waiting for works. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/check.h"
#include "base/timer.h"
#include "fake_cuda.h"
#include "kernels/cuda/state.h"

static const struct tt_device_config config = {.size = sizeof(config), .index = 2, .rank = 5, .nranks = 8};

static int all_that_exists(void)
{
  return fake.handles + fake.mappings + fake.ranges + fake.mallocs + fake.opened + fake.streams + fake.events;
}

static struct tt_device_context *open_one(void)
{
  struct tt_device_context *context;
  ck_assert_int_eq(tt_cuda_open(&config, &context), ncclSuccess);
  return context;
}

START_TEST(opened)
{
  struct tt_device_context *context = open_one();
  ck_assert_int_eq(context->device, 2);
  ck_assert_int_eq(context->rank, 5);
  ck_assert_int_eq(context->nranks, 8);
  ck_assert_int_eq(context->processors, 132);
  ck_assert_uint_eq(context->mapped->abort, 0);
  ck_assert_ptr_eq(fake_current, NULL);
  ck_assert_int_eq(fake_mode, cudaStreamCaptureModeGlobal);
  tt_cuda_close(context);
  ck_assert_int_eq(all_that_exists(), 0);
}
END_TEST

/* Whichever call fails, nothing is left, and the thread is as it was. */
START_TEST(open_fails)
{
  int failures = 0;
  fake_current = &fake_primaries[1];
  for (int call = 1;; call++) {
    struct tt_device_context *context;
    fake.fail_at = call;
    ncclResult_t result = tt_cuda_open(&config, &context);
    bool reached = fake.fail_at == 0;
    fake.fail_at = 0;
    ck_assert_ptr_eq(fake_current, &fake_primaries[1]);
    ck_assert_int_eq(fake_mode, cudaStreamCaptureModeGlobal);
    if (!reached) {
      ck_assert_int_eq(result, ncclSuccess);
      tt_cuda_close(context);
      break;
    }
    failures++;
    ck_assert_int_eq(result, ncclUnhandledCudaError);
    ck_assert_ptr_eq(context, NULL);
    ck_assert_int_eq(all_that_exists(), 0);
  }
  ck_assert_int_gt(failures, 10);
  ck_assert_int_eq(all_that_exists(), 0);
}
END_TEST

START_TEST(entered)
{
  struct tt_device_context *context = open_one();
  struct tt_cuda_enter outer, inner;
  void *const before[] = {NULL, &fake_primaries[0], &fake_primaries[2]};
  for (size_t i = 0; i < TT_COUNT(before); i++) {
    fake_current = before[i];
    fake_mode = cudaStreamCaptureModeThreadLocal;
    ck_assert_int_eq(tt_cuda_enter(context, &outer), ncclSuccess);
    ck_assert_ptr_eq(fake_current, &fake_primaries[2]);
    ck_assert_int_eq(fake_mode, cudaStreamCaptureModeRelaxed);
    ck_assert_int_eq(tt_cuda_enter(context, &inner), ncclSuccess);
    tt_cuda_leave(&inner);
    ck_assert_ptr_eq(fake_current, &fake_primaries[2]);
    ck_assert_int_eq(fake_mode, cudaStreamCaptureModeRelaxed);
    tt_cuda_leave(&outer);
    ck_assert_ptr_eq(fake_current, before[i]);
    ck_assert_int_eq(fake_mode, cudaStreamCaptureModeThreadLocal);
  }
  tt_cuda_close(context);
}
END_TEST

/* Page-locked memory is used again, zeroed, since to free it would wait; but not what cudaDeviceReset took away. */
START_TEST(page_locked)
{
  struct tt_device_context *context = open_one();
  struct tt_cuda_mapped *page = context->mapped;
  page->stalls = 7;
  tt_cuda_stop(context);
  ck_assert_uint_eq(page->abort, 1);
  tt_cuda_close(context);
  context = open_one();
  ck_assert_ptr_eq(context->mapped, page);
  ck_assert_uint_eq(page->abort, 0);
  ck_assert_uint_eq(page->stalls, 0);
  struct tt_device_context *second = open_one();
  ck_assert_ptr_ne(second->mapped, page);
  tt_cuda_close(second);
  tt_cuda_close(context);
  ck_assert_int_eq(fake.host_blocks, 2);
  fake.host_reset = true;
  context = open_one();
  ck_assert_int_eq(fake.host_blocks, 3);
  tt_cuda_close(context);
}
END_TEST

START_TEST(drained)
{
  struct tt_device_context *context = open_one();
  int done = 0;
  fake.running = true; /* something, but nothing of this context */
  ck_assert_int_eq(tt_cuda_drain(context, 10000, &done), ncclSuccess);
  ck_assert_int_eq(done, 1);
  ck_assert_int_eq(tt_cuda_launched(context, NULL), ncclSuccess);
  uint64_t start = tt_timer_ns();
  ck_assert_int_eq(tt_cuda_drain(context, 50, &done), ncclSuccess);
  ck_assert_int_eq(done, 0);
  ck_assert_uint_ge(tt_timer_ns() - start, 50000000u);
  ck_assert_int_eq(tt_cuda_drain(context, 0, &done), ncclSuccess);
  ck_assert_int_eq(done, 0);
  fake.running = false;
  ck_assert_int_eq(tt_cuda_drain(context, 0, &done), ncclSuccess);
  ck_assert_int_eq(done, 1);
  fake.fail_at = 1; /* the query */
  ck_assert_int_eq(tt_cuda_drain(context, 10000, &done), ncclUnhandledCudaError);
  ck_assert_int_eq(done, 0);
  ck_assert_ptr_eq(fake_current, NULL);
  tt_cuda_close(context);
}
END_TEST

static void *end_works(void *unused)
{
  (void)unused;
  usleep(1500000);
  __atomic_store_n(&fake.running, false, __ATOMIC_RELEASE);
  return NULL;
}

/* Works that were not stopped are waited for, longer than stopped ones. */
START_TEST(close_waits)
{
  struct tt_device_context *context = open_one();
  pthread_t thread;
  fake.running = true;
  ck_assert_int_eq(tt_cuda_launched(context, NULL), ncclSuccess);
  ck_assert_int_eq(pthread_create(&thread, NULL, end_works, NULL), 0);
  tt_cuda_close(context);
  ck_assert(!__atomic_load_n(&fake.running, __ATOMIC_ACQUIRE));
  ck_assert_int_eq(all_that_exists(), 0);
  pthread_join(thread, NULL);
}
END_TEST

/* Works that do not end though they were stopped keep what they may still use. */
START_TEST(close_gives_up)
{
  static struct tt_device_context *volatile kept; /* so that the leak sanitizer finds it */
  struct tt_device_context *context = kept = open_one();
  struct tt_cuda_mapped *page = context->mapped;
  fake.running = true;
  ck_assert_int_eq(tt_cuda_launched(context, NULL), ncclSuccess);
  int before = all_that_exists();
  tt_cuda_stop(context);
  tt_cuda_close(context);
  ck_assert_int_eq(all_that_exists(), before);
  ck_assert_ptr_eq(fake_current, NULL);
  context = open_one();
  ck_assert_ptr_ne(context->mapped, page);
  tt_cuda_close(context);
}
END_TEST

void add_context(Suite *suite)
{
  TCase *tc = tcase_create("context");
  tcase_set_timeout(tc, 60);
  tcase_add_test(tc, opened);
  tcase_add_test(tc, open_fails);
  tcase_add_test(tc, entered);
  tcase_add_test(tc, page_locked);
  tcase_add_test(tc, drained);
  tcase_add_test(tc, close_waits);
  tcase_add_test(tc, close_gives_up);
  suite_add_tcase(suite, tc);
}
