/* The host's memory as GPUs use it: registered once however many contexts map it, and not a moment longer. */
#include <check.h>
#include <string.h>
#include <sys/mman.h>
#include "base/check.h"
#include "fake_cuda.h"
#include "kernels/cuda/state.h"

#define PAGE ((size_t)4096)

static struct tt_device_context *one, *other;
static unsigned char *memory; /* of eight pages */

static struct tt_device_context *open_on(int device)
{
  struct tt_device_config config = {.size = sizeof(config), .index = device, .rank = device, .nranks = 4};
  struct tt_device_context *context;
  ck_assert_int_eq(tt_cuda_open(&config, &context), ncclSuccess);
  return context;
}

static void setup(void)
{
  one = open_on(1);
  other = open_on(3);
  memory = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
}

static void teardown(void)
{
  tt_cuda_close(one);
  tt_cuda_close(other);
  munmap(memory, 8 * PAGE);
  ck_assert_int_eq(fake.registered, 0);
}

START_TEST(counted)
{
  void *at[3] = {NULL};
  ck_assert_int_eq(tt_cuda_map_host(one, memory, 2 * PAGE, &at[0]), ncclSuccess);
  ck_assert_int_eq(tt_cuda_map_host(other, memory, 2 * PAGE, &at[1]), ncclSuccess);
  ck_assert_int_eq(tt_cuda_map_host(one, memory + 2 * PAGE, PAGE, &at[2]), ncclSuccess); /* a neighbour is no part */
  memory[0] = 7;
  memory[2 * PAGE] = 8;
  ck_assert_int_eq(*(unsigned char *)at[0], 7);
  ck_assert_ptr_eq(at[1], at[0]);
  ck_assert_int_eq(*(unsigned char *)at[2], 8);
  ck_assert_int_eq(fake.registered, 2);
  tt_cuda_unmap_host(one, memory, 2 * PAGE);
  ck_assert_int_eq(fake.registered, 2);
  tt_cuda_unmap_host(other, memory, 2 * PAGE);
  ck_assert_int_eq(fake.registered, 1);
  ck_assert_int_eq(tt_cuda_map_host(one, memory, PAGE, &at[0]), ncclSuccess); /* as if it had never been */
  tt_cuda_unmap_host(one, memory, PAGE);
  tt_cuda_unmap_host(one, memory + 2 * PAGE, PAGE);
  ck_assert_ptr_eq(fake_current, NULL);
}
END_TEST

/* Also where the addresses differ by less than their lengths on either side. */
START_TEST(parts)
{
  static const struct {
    size_t from, pages;
  } wrong[] = {{2, 1}, {1, 2}, {4, 4}, {0, 8}, {2, 4}};
  void *at;
  ck_assert_int_eq(tt_cuda_map_host(one, memory + 2 * PAGE, 3 * PAGE, &at), ncclSuccess);
  for (size_t i = 0; i < TT_COUNT(wrong); i++) {
    unsigned char *ptr = memory + wrong[i].from * PAGE;
    ck_assert_int_eq(tt_cuda_map_host(other, ptr, wrong[i].pages * PAGE, &at), ncclInternalError);
    ck_assert_ptr_eq(at, NULL);
    ck_assert_ptr_ne(strstr(tt_log_thread_error(), "already"), NULL);
    tt_cuda_unmap_host(other, ptr, wrong[i].pages * PAGE);
    ck_assert_int_eq(fake.registered, 1);
  }
  tt_cuda_unmap_host(one, memory + 2 * PAGE, 3 * PAGE);
}
END_TEST

START_TEST(each_call_fails)
{
  int failures = 0;
  void *at;
  for (int call = 1;; call++) {
    fake.fail_at = call;
    ncclResult_t result = tt_cuda_map_host(one, memory, PAGE, &at);
    bool reached = fake.fail_at == 0;
    fake.fail_at = 0;
    ck_assert_int_eq(result, reached ? ncclUnhandledCudaError : ncclSuccess);
    ck_assert_int_eq(fake.registered, reached ? 0 : 1);
    ck_assert_ptr_eq(fake_current, NULL);
    ck_assert_int_eq(fake_mode, cudaStreamCaptureModeGlobal);
    if (!reached) break;
    if (call == 1) ck_assert_ptr_ne(strstr(tt_log_thread_error(), "NCCL_SHM_DISABLE"), NULL);
    failures++;
  }
  ck_assert_int_eq(failures, 2);
  /* A failure of the second context does not take it from the first. */
  fake.fail_at = 1;
  ck_assert_int_eq(tt_cuda_map_host(other, memory, PAGE, &at), ncclUnhandledCudaError);
  ck_assert_int_eq(fake.registered, 1);
  tt_cuda_unmap_host(one, memory, PAGE);
}
END_TEST

void add_host_memory(Suite *suite)
{
  TCase *tc = tcase_create("host memory");
  tcase_add_checked_fixture(tc, setup, teardown);
  tcase_add_test(tc, counted);
  tcase_add_test(tc, parts);
  tcase_add_test(tc, each_call_fails);
  suite_add_tcase(suite, tc);
}
