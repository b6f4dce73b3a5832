/* Buffers are checked where they lie: of each kind of memory, on each GPU, to their ends, and what is wrong is said. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "fake_cuda.h"
#include "kernels/cuda/state.h"

#define GRANULE ((size_t)2 << 20)

static struct tt_device_context *one, *other; /* of GPUs 1 and 3 */

static void open_both(const char *cumem)
{
  setenv("NCCL_CUMEM_ENABLE", cumem, 1);
  tt_param_reset();
  for (int device = 1; device < 4; device += 2) {
    struct tt_device_config config = {.size = sizeof(config), .index = device, .rank = device, .nranks = 4};
    ck_assert_int_eq(tt_cuda_open(&config, device == 1 ? &one : &other), ncclSuccess);
  }
}

/* What is said of a buffer; streams and the thread stay as they are. */
static const char *said(struct tt_device_context *context, const void *ptr, size_t bytes, bool write)
{
  static struct tt_device_check check;
  check = (struct tt_device_check){.size = sizeof(check), .ptr = ptr, .bytes = bytes, .write = write, .why = "?"};
  ck_assert_int_eq(tt_cuda_check_buffer(context, &check), ncclSuccess);
  ck_assert_ptr_eq(fake_current, NULL);
  ck_assert_int_eq(fake_mode, cudaStreamCaptureModeGlobal);
  return check.why;
}

static void good(struct tt_device_context *context, const void *ptr, size_t bytes)
{
  for (int write = 0; write < 2; write++) ck_assert_str_eq(said(context, ptr, bytes, write), "");
}

static void wrong(struct tt_device_context *context, const void *ptr, size_t bytes, const char *words)
{
  for (int write = 0; write < 2; write++) {
    const char *why = said(context, ptr, bytes, write);
    ck_assert_msg(strstr(why, words) != NULL, "\"%s\" does not say \"%s\"", why, words);
  }
}

/* _i: of cuMem, else of cudaMalloc. */
START_TEST(allocated)
{
  void *ptr;
  open_both(_i ? "1" : "0");
  ck_assert_int_eq(tt_cuda_user_alloc(1, GRANULE, &ptr), ncclSuccess);
  char *at = ptr;
  good(one, at, 1);
  good(one, at, GRANULE);
  good(one, at + 100, GRANULE - 100);
  good(one, at + GRANULE - 1, 1);
  wrong(other, at, 1, "it is memory of GPU 1, and the communicator is GPU 3's; use memory of that one");
  wrong(one, at, GRANULE + 1, "from byte 2097152 on");
  wrong(one, at + 100, GRANULE, "from byte 2097052 on");
  wrong(one, at + 100, GRANULE, "lower the count");
  ck_assert_int_eq(tt_cuda_user_free(ptr), ncclSuccess);
  wrong(one, at, 1, "CUDA knows no memory there: it was freed");
}
END_TEST

START_TEST(plain_memory_of_the_host)
{
  char *plain = malloc(100), local[10];
  open_both("0");
  wrong(one, plain, 100, "CUDA does not know it, though the host has memory there; use cudaMalloc");
  wrong(one, plain, 100, "cudaHostRegister");
  wrong(one, local, sizeof(local), "the host has memory there");
  wrong(one, (void *)64, 100, "CUDA knows no memory there");
  free(plain);
}
END_TEST

/* Registered memory of the host and managed memory are any GPU's, memory of a pool is its own GPU's. */
START_TEST(of_others)
{
  static const enum fake_kind kinds[] = {FAKE_POOL, FAKE_MANAGED, FAKE_HOST};
  open_both("0");
  char *ptr = fake_other_memory(kinds[_i], 10000);
  good(one, ptr, 10000);
  if (kinds[_i] == FAKE_POOL)
    wrong(other, ptr, 10000, "memory of GPU 1");
  else
    good(other, ptr, 10000);
  wrong(one, ptr + 1, 10000, "from byte 9999 on");
  fake_other_forget(ptr);
  wrong(one, ptr, 10000, "CUDA knows no memory there");
}
END_TEST

/* Several of cuMem in one range of addresses are as one, and the last one's end is found. */
START_TEST(side_by_side)
{
  open_both("1");
  fake_current = &fake_primaries[1];
  char *ptr = fake_side_by_side(3, GRANULE);
  fake_current = NULL;
  good(one, ptr, 3 * GRANULE);
  good(one, ptr + 100, 2 * GRANULE);
  wrong(one, ptr + GRANULE, 2 * GRANULE + 1, "from byte 4194304 on");
  wrong(other, ptr + GRANULE, 2 * GRANULE, "memory of GPU 1");
  fake_take_access(ptr + GRANULE, 1, true);
  ck_assert_str_eq(said(one, ptr, GRANULE, true), "");
  ck_assert_str_eq(said(one, ptr, 2 * GRANULE, false), "");
  ck_assert_ptr_nonnull(strstr(said(one, ptr, 2 * GRANULE, true),
                               "from byte 2097152 on it is memory of cuMem which GPU "
                               "1 may not write; call cuMemSetAccess"));
  fake_take_access(ptr + GRANULE, 1, false);
  ck_assert_ptr_nonnull(strstr(said(one, ptr, 2 * GRANULE, false), "GPU 1 may not read"));
  fake_side_by_side_end(ptr, 3, GRANULE);
}
END_TEST

/* Allocations of cudaMalloc are not. */
START_TEST(neighbours)
{
  open_both("0");
  char *ptr = fake_neighbours(4096);
  good(one, ptr, 4096);
  good(one, ptr + 4096, 4096);
  wrong(one, ptr, 4097, "from byte 4096 on it is not of the allocation at");
  fake_neighbours_end(ptr);
}
END_TEST

/* The driver itself fails: then nothing is said of the buffer. */
START_TEST(failures)
{
  struct tt_device_check check = {.size = sizeof(check), .bytes = 2 * GRANULE};
  int failures = 0;
  open_both("1");
  fake_current = &fake_primaries[1];
  void *ptr = fake_side_by_side(2, GRANULE);
  fake_current = NULL;
  check.ptr = ptr;
  for (int call = 1;; call++) {
    fake.fail_at = call;
    ncclResult_t result = tt_cuda_check_buffer(one, &check);
    bool reached = fake.fail_at == 0;
    fake.fail_at = 0;
    ck_assert_ptr_eq(fake_current, NULL);
    ck_assert_int_eq(fake_mode, cudaStreamCaptureModeGlobal);
    ck_assert_str_eq(check.why, "");
    if (!reached) break;
    failures += result != ncclSuccess;
  }
  ck_assert_int_ge(failures, 4);
  fake_side_by_side_end(ptr, 2, GRANULE);
}
END_TEST

void add_check(Suite *suite)
{
  TCase *tc = tcase_create("check");
  tcase_add_loop_test(tc, allocated, 0, 2);
  tcase_add_test(tc, plain_memory_of_the_host);
  tcase_add_loop_test(tc, of_others, 0, 3);
  tcase_add_test(tc, side_by_side);
  tcase_add_test(tc, neighbours);
  tcase_add_test(tc, failures);
  suite_add_tcase(suite, tc);
}
