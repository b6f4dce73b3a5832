/* Flushes by GDRCopy: each reads a word of the GPU's, what cannot be had is said each time, and nothing is left. */
#include <check.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/check.h"
#include "fake_cuda.h"
#include "kernels/cuda/state.h"

#define PAGE ((size_t)65536)

static int *pinned, *mapped;
static void **at;
static volatile sig_atomic_t reads;

static void setup(void)
{
  void *library = dlopen(TT_CUDA_GDRAPI, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != NULL, "%s", dlerror());
  pinned = dlsym(library, "fake_gdr_pinned");
  mapped = dlsym(library, "fake_gdr_mapped");
  at = dlsym(library, "fake_gdr_at");
}

static struct tt_device_context *open_context(void)
{
  struct tt_device_config config = {.size = sizeof(config), .index = 2, .rank = 0, .nranks = 2};
  struct tt_device_context *context;
  ck_assert_int_eq(tt_cuda_open(&config, &context), ncclSuccess);
  return context;
}

static void seen(int number)
{
  (void)number;
  reads++;
  mprotect(*at, PAGE, PROT_READ);
}

START_TEST(reading)
{
  struct sigaction action = {.sa_handler = seen};
  struct tt_device_context *context = open_context();
  ck_assert_int_eq(tt_cuda_flush(context), ncclSuccess);
  ck_assert_int_eq(*pinned, 1);
  ck_assert_int_eq(*mapped, 1);
  ck_assert_int_eq(sigaction(SIGSEGV, &action, NULL), 0);
  for (int i = 1; i <= 3; i++) {
    ck_assert_int_eq(mprotect(*at, PAGE, PROT_NONE), 0);
    ck_assert_int_eq(tt_cuda_flush(context), ncclSuccess);
    ck_assert_int_eq(reads, i);
  }
  ck_assert_int_eq(*mapped, 1);
  tt_cuda_close(context);
  ck_assert_int_eq(*pinned + *mapped, 0);
  ck_assert_int_eq(fake.handles + fake.mappings, 0);
}
END_TEST

START_TEST(without)
{
  static const char *const calls[] = {"open", "pin", "map"}, *const says[] = {"gdrdrv",
                                                                              "cannot pin memory of GPU 2 (error 22)",
                                                                              "cannot map memory of GPU 2 (error 12)"};
  setenv("FAKE_GDR", calls[_i], 1);
  struct tt_device_context *context = open_context();
  for (int i = 0; i < 2; i++) {
    tt_log_remember("nothing");
    ck_assert_int_eq(tt_cuda_flush(context), ncclSystemError);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), says[_i]));
    unsetenv("FAKE_GDR"); /* it is not tried again */
  }
  tt_cuda_close(context);
  ck_assert_int_eq(*pinned + *mapped, 0);
}
END_TEST

void add_gdrcopy(Suite *suite);
void add_gdrcopy(Suite *suite)
{
  TCase *tc = tcase_create("gdrcopy");
  tcase_add_checked_fixture(tc, setup, NULL);
  tcase_add_test(tc, reading);
  tcase_add_loop_test(tc, without, 0, 3);
  suite_add_tcase(suite, tc);
}
