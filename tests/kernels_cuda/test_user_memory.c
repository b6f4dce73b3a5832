/* Users' memory: allocated and freed, recognised whatever it is, and exported as its kind can be. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "fake_cuda.h"
#include "kernels/cuda/state.h"

#define GRANULE ((size_t)2 << 20)
#define LOCAL (1u << TT_EXPORT_LOCAL)

static struct tt_device_context *one, *other;

static void open_both(const char *cumem, const char *legacy)
{
  setenv("NCCL_CUMEM_ENABLE", cumem, 1);
  setenv("NCCL_LEGACY_CUDA_REGISTER", legacy, 1);
  tt_param_reset();
  for (int device = 1; device < 4; device += 2) {
    struct tt_device_config config = {.size = sizeof(config), .index = device, .rank = device, .nranks = 4};
    ck_assert_int_eq(tt_cuda_open(&config, device == 1 ? &one : &other), ncclSuccess);
  }
}

static int all_memory(void)
{
  return fake.handles + fake.mappings + fake.ranges + fake.mallocs + fake.opened + fake.streams;
}

static bool is_all(const void *ptr, size_t count, int value)
{
  const unsigned char *bytes = ptr;
  for (size_t i = 0; i < count; i++)
    if (bytes[i] != value) return false;
  return true;
}

static struct tt_device_buffer find(const void *ptr)
{
  struct tt_device_buffer buffer = {.size = sizeof(buffer)};
  ck_assert_int_eq(tt_cuda_find_buffer(one, ptr, &buffer), ncclSuccess);
  ck_assert_uint_eq(buffer.size, sizeof(buffer));
  ck_assert_ptr_eq(fake_current, NULL);
  ck_assert_int_eq(fake_mode, cudaStreamCaptureModeGlobal);
  return buffer;
}

/* Once with each of the calls failing, then without a failure; nothing is left by any. _i: cudaMalloc. */
START_TEST(allocated)
{
  void *ptr;
  int failures = 0;
  open_both(_i ? "0" : "-2", "0");
  int before = all_memory();
  for (int call = 1;; call++) {
    fake.fail_at = call;
    ncclResult_t result = tt_cuda_user_alloc(3, 100000, &ptr);
    bool reached = fake.fail_at == 0;
    fake.fail_at = 0;
    ck_assert_ptr_eq(fake_current, NULL);
    ck_assert_int_eq(fake_mode, cudaStreamCaptureModeGlobal);
    ck_assert_int_eq(result, reached ? ncclUnhandledCudaError : ncclSuccess);
    if (!reached) break;
    ck_assert_ptr_eq(ptr, NULL);
    ck_assert_int_eq(all_memory(), before);
    failures++;
  }
  ck_assert_int_gt(failures, 4);
  ck_assert(is_all(ptr, 100000, 0));
  ck_assert_int_gt(all_memory(), before);
  if (_i == 0) ck_assert_int_gt(fake.nics, 0);
  ck_assert_int_eq(tt_cuda_user_free((char *)ptr + 8), ncclInvalidArgument);
  ck_assert_int_eq(tt_cuda_user_free(ptr), ncclSuccess);
  ck_assert_int_eq(tt_cuda_user_free(ptr), ncclInvalidArgument);
  ck_assert_int_eq(all_memory(), before);
}
END_TEST

/* GPUs of this process that reach it have it mapped: 0 and 1 reach 3, and 2 does not. */
START_TEST(for_all_gpus)
{
  void *ptr;
  open_both("1", "0");
  fake.accesses = 0;
  ck_assert_int_eq(tt_cuda_user_alloc(3, 1, &ptr), ncclSuccess);
  ck_assert_int_eq(fake.accesses, 2);
  ck_assert_int_eq(tt_cuda_user_free(ptr), ncclSuccess);
}
END_TEST

/* Without the right to a fabric it goes without. */
START_TEST(no_fabric)
{
  void *ptr;
  open_both("1", "0");
  fake.fabric = true;
  ck_assert_int_eq(tt_cuda_user_alloc(3, 1, &ptr), ncclSuccess);
  ck_assert_uint_eq(find(ptr).exports, LOCAL | 1u << TT_EXPORT_FD);
  ck_assert_int_eq(tt_cuda_user_free(ptr), ncclSuccess);
}
END_TEST

/* Drivers before CUDA 12.3 do not know what a fabric is. */
START_TEST(no_fabric_known)
{
  void *ptr;
  open_both("1", "0");
  fake.old_driver = true;
  ck_assert_int_eq(tt_cuda_user_alloc(3, 100000, &ptr), ncclSuccess);
  ck_assert_int_eq(tt_cuda_user_free(ptr), ncclSuccess);
}
END_TEST

START_TEST(too_large)
{
  void *ptr;
  open_both("1", "0");
  ck_assert_int_eq(tt_cuda_user_alloc(1, SIZE_MAX - 5, &ptr), ncclInvalidArgument);
  ck_assert_ptr_eq(ptr, NULL);
}
END_TEST

/* A GPU that does nothing more: the memory that it may still write to is left. */
START_TEST(stuck)
{
  void *ptr;
  open_both("1", "0");
  int before = all_memory();
  fake.stuck = true;
  ck_assert_int_eq(tt_cuda_user_alloc(3, 1, &ptr), ncclSystemError);
  ck_assert_ptr_eq(ptr, NULL);
  ck_assert_int_eq(all_memory(), before + 3);
  fake.stuck = false;
}
END_TEST

/* Exports from device 1, imports on device 3, writes and reads. */
static void share(void *ptr, size_t offset, int local, uint32_t kind)
{
  struct tt_device_export export;
  struct tt_device_memory import;
  ck_assert_int_eq(tt_cuda_export_buffer(one, (char *)ptr + offset, local, &export), ncclSuccess);
  ck_assert_uint_eq(export.kind, kind);
  ck_assert_int_eq(export.fd >= 0, kind == TT_EXPORT_FD);
  ck_assert_int_eq(tt_cuda_import(other, &export, &import), ncclSuccess);
  if (export.fd >= 0) close(export.fd);
  ck_assert_uint_eq(import.bytes, find(ptr).bytes);
  size_t at = offset + (size_t)((char *)ptr - (char *)find(ptr).base);
  ((char *)import.ptr)[at] = 9;
  ck_assert_int_eq(((char *)ptr)[offset], 9);
  ((char *)ptr)[offset] = 0;
  ck_assert_int_eq(((char *)import.ptr)[at], 0);
  tt_cuda_release(other, &import);
}

static void expect_no_export(void *ptr, int local)
{
  struct tt_device_export export;
  ck_assert_int_eq(tt_cuda_export_buffer(one, ptr, local, &export), ncclInvalidArgument);
  ck_assert_int_eq(export.kind, TT_EXPORT_NONE);
  ck_assert_int_eq(export.fd, -1);
}

START_TEST(of_cumem)
{
  void *ptr;
  open_both("1", "0");
  fake.old_driver = _i;
  ck_assert_int_eq(tt_cuda_user_alloc(1, 3 * GRANULE - 5, &ptr), ncclSuccess);
  struct tt_device_buffer buffer = find((char *)ptr + 2 * GRANULE);
  ck_assert_ptr_eq(buffer.base, ptr);
  ck_assert_uint_eq(buffer.bytes, 3 * GRANULE);
  ck_assert_uint_eq(buffer.exports, LOCAL | 1u << TT_EXPORT_FD);
  ck_assert_int_eq(fake.old_driver, (int)(buffer.id >> 63) == 0);
  int before = all_memory();
  for (int local = 0; local < 2; local++) share(ptr, 2 * GRANULE + 77, local, local ? TT_EXPORT_LOCAL : TT_EXPORT_FD);
  ck_assert_int_eq(all_memory(), before);
  ck_assert_int_eq(tt_cuda_user_free(ptr), ncclSuccess);
}
END_TEST

/* As PyTorch's expandable segments: each of the allocations by itself. */
START_TEST(side_by_side)
{
  open_both("1", "0");
  char *ptr = fake_side_by_side(3, GRANULE);
  uint64_t ids[3];
  for (size_t i = 0; i < 3; i++) {
    struct tt_device_buffer buffer = find(ptr + i * GRANULE + 100);
    ck_assert_ptr_eq(buffer.base, ptr + i * GRANULE);
    ck_assert_uint_eq(buffer.bytes, GRANULE);
    ids[i] = buffer.id;
    share(ptr + i * GRANULE, 5, 0, TT_EXPORT_FD);
  }
  ck_assert(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
  fake_side_by_side_end(ptr, 3, GRANULE);
}
END_TEST

/* _i: by CUDA IPC to other processes, which the user has asked for. */
START_TEST(of_cuda_malloc)
{
  void *ptr, *next;
  open_both("0", _i ? "1" : "0");
  ck_assert_int_eq(tt_cuda_user_alloc(1, 5000, &ptr), ncclSuccess);
  ck_assert_int_eq(tt_cuda_user_alloc(1, 5000, &next), ncclSuccess);
  struct tt_device_buffer buffer = find((char *)ptr + 4999);
  ck_assert_ptr_eq(buffer.base, ptr);
  ck_assert_uint_eq(buffer.bytes, 5000);
  ck_assert_int_eq(buffer.device, 1);
  ck_assert_uint_ne(buffer.id, find(next).id);
  ck_assert_uint_eq(buffer.exports, _i ? LOCAL | 1u << TT_EXPORT_HANDLE : LOCAL);
  share(ptr, 100, 1, TT_EXPORT_LOCAL);
  if (_i)
    share(ptr, 100, 0, TT_EXPORT_HANDLE);
  else
    expect_no_export(ptr, 0);
  ck_assert_int_eq(tt_cuda_user_free(ptr), ncclSuccess);
  ck_assert_int_eq(tt_cuda_user_free(next), ncclSuccess);
}
END_TEST

/* Three of them as one range on another device, by each way, also where a call fails. */
START_TEST(imported_side_by_side)
{
  struct tt_device_export parts[3];
  struct tt_device_memory import;
  int failures = 0;
  open_both("1", "0");
  char *ptr = fake_side_by_side(3, GRANULE);
  int local = _i ? TT_EXPORT_HERE : TT_EXPORT_NEAR;
  for (size_t i = 0; i < 3; i++)
    ck_assert_int_eq(tt_cuda_export_buffer(one, ptr + i * GRANULE, local, &parts[i]), ncclSuccess);
  int before = all_memory();
  for (int call = 1;; call++) {
    fake.fail_at = call;
    ncclResult_t result = tt_cuda_import_parts(other, parts, 3, &import);
    bool reached = fake.fail_at == 0;
    fake.fail_at = 0;
    ck_assert_ptr_eq(fake_current, NULL);
    ck_assert_msg((result == ncclSuccess) == !reached, "%s", tt_log_thread_error());
    if (!reached) break;
    ck_assert_int_eq(all_memory(), before);
    failures++;
  }
  ck_assert_int_ge(failures, 8);
  ck_assert_uint_eq(import.bytes, 3 * GRANULE);
  for (size_t i = 0; i < 3; i++) ptr[i * GRANULE + 7] = (char)(10 + i);
  for (size_t i = 0; i < 3; i++) ck_assert_int_eq(((char *)import.ptr)[i * GRANULE + 7], (int)(10 + i));
  struct tt_device_export again;
  ck_assert_int_ne(tt_cuda_export(other, &import, TT_EXPORT_NEAR, &again), ncclSuccess);
  tt_cuda_release(other, &import);
  ck_assert_int_eq(all_memory(), before);
  parts[1].kind = TT_EXPORT_HANDLE;
  ck_assert_int_eq(tt_cuda_import_parts(other, parts, 3, &import), ncclInvalidArgument);
  ck_assert_int_eq(all_memory(), before);
  for (int i = 0; i < 3; i++)
    if (parts[i].fd >= 0) close(parts[i].fd);
  fake_side_by_side_end(ptr, 3, GRANULE);
}
END_TEST

static void expect_unreached(struct tt_device_context *context, const void *ptr)
{
  struct tt_device_buffer buffer = {.size = sizeof(buffer)};
  ck_assert_int_ne(tt_cuda_reach_buffer(context, ptr, &buffer), ncclSuccess);
  ck_assert_ptr_eq(fake_current, NULL);
  ck_assert_int_eq(fake_mode, cudaStreamCaptureModeGlobal);
}

START_TEST(of_others)
{
  static const enum fake_kind kinds[] = {FAKE_POOL, FAKE_MANAGED, FAKE_HOST};
  open_both("-2", "1");
  void *ptr = fake_other_memory(kinds[_i], 10000);
  struct tt_device_buffer buffer = find((char *)ptr + 5000);
  ck_assert_ptr_eq(buffer.base, ptr);
  ck_assert_uint_eq(buffer.exports, 0);
  ck_assert_int_eq(buffer.device, kinds[_i] == FAKE_HOST ? -1 : 1);
  for (int local = 0; local < 2; local++) expect_no_export(ptr, local);
  expect_unreached(other, ptr);
  fake_other_forget(ptr);
  ck_assert_int_eq(tt_cuda_find_buffer(one, ptr, &buffer), ncclInvalidArgument);
  for (int call = 1; call <= 3; call++) { /* the context, the driver, and what an older one is asked */
    fake.fail_at = call;
    tt_cuda_find_buffer(one, ptr, &buffer);
    fake.fail_at = 0;
    ck_assert_ptr_eq(fake_current, NULL);
  }
}
END_TEST

/* A GPU gets the right to another one's memory, each allocation by itself, and nothing comes to be held. _i: of
 * cudaMalloc. */
START_TEST(used_where_it_lies)
{
  struct tt_device_buffer buffer = {.size = sizeof(buffer)};
  struct tt_device_config config = {.size = sizeof(config), .index = 2, .rank = 2, .nranks = 4};
  struct tt_device_context *apart;
  void *ptr;
  open_both(_i ? "0" : "1", "0");
  ck_assert_int_eq(tt_cuda_open(&config, &apart), ncclSuccess);
  if (_i)
    ck_assert_int_eq(tt_cuda_user_alloc(1, 5000, &ptr), ncclSuccess);
  else
    ptr = fake_side_by_side(3, GRANULE);
  const char *at = (char *)ptr + (_i ? 4000 : GRANULE + 100);
  int before = all_memory(), failures = 0;
  fake.peers = 0;
  for (int call = 1;; call++) {
    fake.given = -1;
    fake.fail_at = call;
    ncclResult_t result = tt_cuda_reach_buffer(other, at, &buffer);
    bool reached = fake.fail_at == 0;
    fake.fail_at = 0;
    ck_assert_ptr_eq(fake_current, NULL);
    if (!reached) break;
    failures += result != ncclSuccess;
  }
  ck_assert_int_gt(failures, 2);
  ck_assert_uint_eq(buffer.id, find(at).id);
  ck_assert_int_eq(fake.peers, _i);
  ck_assert_int_eq(fake.given, _i ? -1 : 3);
  if (!_i) ck_assert_ptr_eq(fake.given_at, (char *)ptr + GRANULE);
  if (!_i) ck_assert_uint_eq(fake.given_bytes, GRANULE);
  ck_assert_int_eq(tt_cuda_reach_buffer(one, at, &buffer), ncclSuccess);
  ck_assert_int_eq(fake.peers, _i); /* of cudaMalloc it is its own; cuMem's is device 0's here */
  expect_unreached(apart, at);
  ck_assert_int_eq(all_memory(), before);
  if (_i)
    ck_assert_int_eq(tt_cuda_user_free(ptr), ncclSuccess);
  else
    fake_side_by_side_end(ptr, 3, GRANULE);
  expect_unreached(other, at);
  tt_cuda_close(apart);
}
END_TEST

void add_user_memory(Suite *suite)
{
  TCase *tc = tcase_create("user memory");
  tcase_set_timeout(tc, 60);
  tcase_add_loop_test(tc, allocated, 0, 2);
  tcase_add_test(tc, for_all_gpus);
  tcase_add_test(tc, no_fabric);
  tcase_add_test(tc, no_fabric_known);
  tcase_add_test(tc, too_large);
  tcase_add_test(tc, stuck);
  tcase_add_loop_test(tc, of_cumem, 0, 2);
  tcase_add_test(tc, side_by_side);
  tcase_add_loop_test(tc, of_cuda_malloc, 0, 2);
  tcase_add_loop_test(tc, imported_side_by_side, 0, 2);
  tcase_add_loop_test(tc, used_where_it_lies, 0, 2);
  tcase_add_loop_test(tc, of_others, 0, 3);
  suite_add_tcase(suite, tc);
}
