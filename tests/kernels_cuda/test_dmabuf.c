/* Dma-bufs: memory of a context is made for NICs, whole pages of it get descriptors, and what cannot be had is said. */
#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "fake_cuda.h"
#include "kernels/cuda/state.h"

#define BYTES ((size_t)1 << 20)

static struct tt_device_context *context;
static struct tt_device_memory memory;

static void open_context(void)
{
  struct tt_device_config config = {.size = sizeof(config), .index = 1, .rank = 0, .nranks = 2};
  ck_assert_int_eq(tt_cuda_open(&config, &context), ncclSuccess);
  ck_assert_int_eq(tt_cuda_alloc(context, BYTES, &memory), ncclSuccess);
}

static void close_context(void)
{
  tt_cuda_release(context, &memory);
  tt_cuda_close(context);
  ck_assert_int_eq(fake.handles + fake.mappings, 0);
  ck_assert_ptr_eq(fake_current, NULL);
}

START_TEST(made)
{
  char written[4] = "abc", read[4];
  open_context();
  ck_assert_int_gt(fake.nics, 0);
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (int pci = 0; pci < 2; pci++) {
    int fd = -1;
    ck_assert_int_eq(tt_cuda_export_dmabuf(context, (char *)memory.ptr + page, 4 * page, pci, &fd), ncclSuccess);
    ck_assert_int_eq(fake.dmabuf_flags, pci ? 1 : 0);
    ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
    memcpy((char *)memory.ptr + page, written, sizeof(written));
    ck_assert_int_eq(pread(fd, read, sizeof(read), (off_t)page), sizeof(read));
    ck_assert_str_eq(read, written);
    close(fd);
  }
  close_context();
}
END_TEST

START_TEST(memory_of_others)
{
  fake.no_nics = true;
  open_context();
  ck_assert_int_eq(fake.nics, 0);
  close_context();
}
END_TEST

/* What cannot do it: the driver, the GPU, the range, a call that fails. */
START_TEST(refused)
{
  static const char *const says[] = {"older than 11.7", "GPU 1 has no dma-bufs", "making a dma-buf"};
  open_context();
  for (int i = 0; i < 3; i++) {
    int fd = 7;
    fake.no_multicast_functions = i == 0;
    fake.no_dmabuf = i == 1;
    const char *ptr = (char *)memory.ptr + (i == 2 ? 64 : 0);
    ck_assert_int_ne(tt_cuda_export_dmabuf(context, ptr, BYTES, 0, &fd), ncclSuccess);
    ck_assert_int_eq(fd, -1);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), says[i]));
  }
  fake.no_multicast_functions = fake.no_dmabuf = false;
  for (int call = 1;; call++) {
    int fd;
    fake.fail_at = call;
    ncclResult_t result = tt_cuda_export_dmabuf(context, memory.ptr, BYTES, 0, &fd);
    bool reached = fake.fail_at == 0;
    fake.fail_at = 0;
    ck_assert_int_eq(result, reached ? ncclUnhandledCudaError : ncclSuccess);
    ck_assert_int_eq(fd >= 0, !reached);
    if (!reached) close(fd);
    if (!reached) break;
  }
  close_context();
}
END_TEST

void add_dmabuf(Suite *suite);
void add_dmabuf(Suite *suite)
{
  TCase *tc = tcase_create("dmabuf");
  tcase_add_test(tc, made);
  tcase_add_test(tc, memory_of_others);
  tcase_add_test(tc, refused);
  suite_add_tcase(suite, tc);
}
