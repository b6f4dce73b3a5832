/* Memory: allocated, shared in each way, released in any order, and after every failure. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "base/timer.h"
#include "fake_cuda.h"
#include "kernels/cuda/state.h"

#define BYTES ((size_t)3000000)
#define ROUNDED ((size_t)4 << 20)

static struct tt_device_context *one, *other;

static struct tt_device_context *open_on(int device)
{
  struct tt_device_config config = {.size = sizeof(config), .index = device, .rank = device, .nranks = 4};
  struct tt_device_context *context;
  ck_assert_int_eq(tt_cuda_open(&config, &context), ncclSuccess);
  return context;
}

static void open_both(const char *cumem)
{
  if (cumem != NULL) setenv("NCCL_CUMEM_ENABLE", cumem, 1);
  tt_param_reset();
  one = open_on(1);
  other = open_on(3);
}

static int all_memory(void)
{
  return fake.handles + fake.mappings + fake.ranges + fake.mallocs + fake.opened;
}

static bool is_all(const void *ptr, size_t count, int value)
{
  const unsigned char *bytes = ptr;
  for (size_t i = 0; i < count; i++)
    if (bytes[i] != value) return false;
  return true;
}

/* Allocates, exports, imports, and writes on both sides. Returns the first failure; nothing is left then. */
static ncclResult_t share(int whom, uint32_t kind, bool owner_first)
{
  struct tt_device_memory memory, import;
  struct tt_device_export export;
  if (whom == TT_EXPORT_FAR) one->state->fabric = true; /* whatever failed before */
  ncclResult_t result = tt_cuda_alloc(one, BYTES, &memory);
  if (result != ncclSuccess) return result;
  ck_assert_uint_eq(memory.bytes, ROUNDED);
  ck_assert(is_all(memory.ptr, memory.bytes, 0));
  result = tt_cuda_export(one, &memory, whom, &export);
  if (result == ncclSuccess) {
    ck_assert_uint_eq(export.kind, kind);
    ck_assert_uint_eq(export.bytes, memory.bytes);
    ck_assert_int_eq(export.fd >= 0, kind == TT_EXPORT_FD);
    result = tt_cuda_import(other, &export, &import);
    if (export.fd >= 0) close(export.fd);
  }
  if (result != ncclSuccess) {
    tt_cuda_release(one, &memory);
    return result;
  }
  ck_assert_uint_eq(import.bytes, memory.bytes);
  ((char *)import.ptr)[import.bytes - 1] = 42;
  ck_assert_int_eq(((char *)memory.ptr)[memory.bytes - 1], 42);
  if (owner_first) {
    tt_cuda_release(one, &memory);
    ck_assert_int_eq(((char *)import.ptr)[import.bytes - 1], 42);
  }
  tt_cuda_release(other, &import);
  tt_cuda_release(one, &memory); /* of cleared memory: nothing */
  ck_assert_ptr_eq(memory.ptr, NULL);
  ck_assert_ptr_eq(import.ptr, NULL);
  return ncclSuccess;
}

/* And once with each of the calls failing. */
static void share_each_way(int whom, uint32_t kind, bool owner_first)
{
  int before = all_memory(), failures = 0;
  for (int call = 1;; call++) {
    fake.fail_at = call;
    ncclResult_t result = share(whom, kind, owner_first);
    bool reached = fake.fail_at == 0;
    fake.fail_at = 0;
    ck_assert_int_eq(all_memory(), before);
    ck_assert_ptr_eq(fake_current, NULL);
    ck_assert_int_eq(fake_mode, cudaStreamCaptureModeGlobal);
    bool without = whom == TT_EXPORT_FAR && result == ncclSystemError; /* it was allocated for this host only */
    ck_assert_int_eq(result, without ? result : reached ? ncclUnhandledCudaError : ncclSuccess);
    if (!reached) break;
    failures++;
  }
  ck_assert_int_gt(failures, 3);
}

START_TEST(by_cumem)
{
  open_both(_i == 0 ? "1" : NULL);
  for (int owner_first = 0; owner_first < 2; owner_first++) {
    share_each_way(1, TT_EXPORT_LOCAL, owner_first);
    share_each_way(0, TT_EXPORT_FD, owner_first);
  }
}
END_TEST

/* To another host of the fabric, where devices have joined one; who has no right to it has other memory. */
START_TEST(by_fabric)
{
  struct tt_device_memory memory;
  struct tt_device_export export;
  fake.joined = true;
  fake.imex = _i == 0;
  open_both(NULL);
  if (fake.imex)
    for (int owner_first = 0; owner_first < 2; owner_first++)
      share_each_way(TT_EXPORT_FAR, TT_EXPORT_FABRIC, owner_first);
  ck_assert_int_eq(share(TT_EXPORT_NEAR, TT_EXPORT_FD, false), ncclSuccess);
  if (fake.imex) return;
  ck_assert_int_eq(tt_cuda_alloc(one, BYTES, &memory), ncclSuccess);
  ck_assert_int_eq(tt_cuda_export(one, &memory, TT_EXPORT_FAR, &export), ncclSystemError);
  ck_assert_int_eq(export.kind, TT_EXPORT_NONE);
  tt_cuda_release(one, &memory);
}
END_TEST

START_TEST(by_cuda_malloc)
{
  fake.no_vmm = _i == 1;
  open_both(_i == 0 ? "0" : NULL);
  share_each_way(1, TT_EXPORT_LOCAL, false);
  ck_assert_int_eq(share(1, TT_EXPORT_LOCAL, false), ncclSuccess); /* the peers know each other already */
  ck_assert_int_eq(fake.peers, 2);
  share_each_way(0, TT_EXPORT_HANDLE, false);
}
END_TEST

START_TEST(required)
{
  struct tt_device_config config = {.size = sizeof(config), .index = 1};
  struct tt_device_context *context;
  fake.no_vmm = true;
  setenv("NCCL_CUMEM_ENABLE", "1", 1);
  ck_assert_int_eq(tt_cuda_open(&config, &context), ncclInvalidUsage);
  ck_assert_ptr_ne(strstr(tt_log_thread_error(), "NCCL_CUMEM_ENABLE"), NULL);
}
END_TEST

START_TEST(not_exported)
{
  struct tt_device_memory memory, import;
  struct tt_device_export export;
  open_both("0");
  ck_assert_int_eq(tt_cuda_alloc(one, 1, &memory), ncclSuccess);
  ck_assert_int_eq(tt_cuda_export(one, &memory, 1, &export), ncclSuccess);
  ck_assert_int_eq(tt_cuda_import(other, &export, &import), ncclSuccess);
  ck_assert_int_eq(tt_cuda_export(other, &import, 1, &export), ncclInternalError);
  ck_assert_int_eq(export.kind, TT_EXPORT_NONE);
  tt_cuda_release(other, &import);
  ck_assert_int_eq(tt_cuda_import(other, &export, &import), ncclInternalError);
  ck_assert_ptr_eq(import.resource, NULL);
  tt_cuda_release(one, &memory);
}
END_TEST

START_TEST(small_pieces)
{
  void *pieces[200];
  open_both(NULL);
  int before = fake.handles;
  for (size_t i = 0; i < TT_COUNT(pieces); i++) {
    size_t bytes = i % 2 ? 1 : 40000; /* 4 MB in all */
    ck_assert_int_eq(tt_cuda_small_alloc(one, bytes, &pieces[i]), ncclSuccess);
    ck_assert_uint_eq((uintptr_t)pieces[i] % 256, 0);
    ck_assert(is_all(pieces[i], bytes, 0));
    memset(pieces[i], (int)i + 1, bytes);
  }
  for (size_t i = 0; i < TT_COUNT(pieces); i++) ck_assert(is_all(pieces[i], i % 2 ? 1 : 40000, (int)i + 1));
  ck_assert_int_le(fake.handles, before + 2);
  void *large;
  ck_assert_int_eq(tt_cuda_small_alloc(one, 5000000, &large), ncclSuccess);
  memset(large, 1, 5000000);
  tt_cuda_close(one);
  tt_cuda_close(other);
  ck_assert_int_eq(all_memory(), 0);
}
END_TEST

START_TEST(uploaded)
{
  size_t bytes = 3 * TT_CUDA_STAGING_BYTES + 17;
  unsigned char *from = malloc(bytes);
  void *to;
  open_both(NULL);
  for (size_t i = 0; i < bytes; i++) from[i] = (unsigned char)(i * 31 >> 3);
  ck_assert_int_eq(tt_cuda_small_alloc(one, bytes + 1, &to), ncclSuccess);
  ck_assert_int_eq(tt_cuda_upload(one, to, from, bytes), ncclSuccess);
  ck_assert_mem_eq(to, from, bytes);
  ck_assert_int_eq(((unsigned char *)to)[bytes], 0);
  for (int call = 1; call <= 8; call++) { /* copy and query of four pieces */
    fake.fail_at = call;
    ck_assert_int_eq(tt_cuda_upload(one, to, from, bytes), ncclUnhandledCudaError);
    ck_assert_ptr_eq(fake_current, NULL);
  }
  ck_assert_int_eq(fake.fail_at, 0);
  free(from);
}
END_TEST

/* A GPU that does nothing more is waited for once. What it may still write to is not freed. */
START_TEST(stuck)
{
  struct tt_device_memory memory;
  void *to;
  char from[8] = "";
  open_both(_i == 0 ? "1" : "0");
  ck_assert_int_eq(tt_cuda_small_alloc(one, 8, &to), ncclSuccess);
  int before = all_memory();
  fake.stuck = true;
  uint64_t start = tt_timer_ns();
  ck_assert_int_eq(tt_cuda_alloc(one, BYTES, &memory), ncclSystemError);
  ck_assert_uint_ge(tt_timer_ns() - start, TT_CUDA_SIDE_MS * 1000000ull);
  ck_assert_ptr_eq(memory.ptr, NULL);
  ck_assert_int_gt(all_memory(), before);
  ck_assert_ptr_ne(strstr(tt_log_thread_error(), "GPU 1"), NULL);
  int asked = fake.queries;
  ck_assert_int_eq(tt_cuda_upload(one, to, from, sizeof(from)), ncclSystemError);
  ck_assert_int_eq(tt_cuda_alloc(one, BYTES, &memory), ncclSystemError);
  ck_assert_int_le(fake.queries - asked, 2); /* each asks once */
  before = all_memory();
  tt_cuda_close(one);
  ck_assert_int_eq(all_memory(), before);
  fake.stuck = false;
  tt_cuda_close(other);
}
END_TEST

void add_memory(Suite *suite)
{
  TCase *tc = tcase_create("memory");
  tcase_set_timeout(tc, 60);
  tcase_add_loop_test(tc, by_cumem, 0, 2);
  tcase_add_loop_test(tc, by_fabric, 0, 2);
  tcase_add_loop_test(tc, by_cuda_malloc, 0, 2);
  tcase_add_test(tc, required);
  tcase_add_test(tc, not_exported);
  tcase_add_test(tc, small_pieces);
  tcase_add_test(tc, uploaded);
  tcase_add_loop_test(tc, stuck, 0, 2);
  suite_add_tcase(suite, tc);
}
