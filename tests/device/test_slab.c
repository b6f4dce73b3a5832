/* Contexts and slabs on the fake device: who keeps what alive, and what a failing device leaves. */
#include <check.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "device/slab.h"
#include "tests/fakes/device/fake.h"

static struct tt_device device;
static const struct tt_device *fake;
static bool fails;
static uint32_t kind;

static ncclResult_t may_fail_to_open(const struct tt_device_config *config, struct tt_device_context **context)
{
  if (!fails) return fake->open(config, context);
  TT_WARN("this device is closed");
  return ncclUnhandledCudaError;
}

static ncclResult_t may_fail_to_alloc(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory)
{
  if (!fails) return fake->alloc(context, bytes, memory);
  TT_WARN("this device is full");
  return ncclUnhandledCudaError;
}

static ncclResult_t export_as(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                              struct tt_device_export *out)
{
  ncclResult_t result = fake->export_memory(context, memory, local, out);
  if (kind != TT_EXPORT_NONE) out->kind = kind;
  return result;
}

static void print(int level, const char *text)
{
  fprintf(stderr, "fake device: %d %s\n", level, text);
}

static void use_fake(void)
{
  char why[64];
  fake = tutti_device(print, why, sizeof(why));
  device = *fake;
  device.open = may_fail_to_open;
  device.alloc = may_fail_to_alloc;
  device.export_memory = export_as;
  fails = false;
  kind = TT_EXPORT_NONE;
}

static const struct tt_device_config first_of_two = {.size = sizeof(first_of_two), .nranks = 2};

static struct fake_counts counts(void)
{
  struct fake_counts now;
  fake_count(&now);
  return now;
}

START_TEST(context_is_counted)
{
  const struct tt_device_config config = {.size = sizeof(config), .index = 3, .rank = 1, .nranks = 2};
  struct tt_context *context;
  ck_assert_int_eq(tt_context_open(&device, &config, &context), ncclSuccess);
  ck_assert_ptr_eq(tt_context_retain(context), context);
  tt_context_release(context);
  ck_assert_int_eq(counts().contexts, 1);
  tt_context_release(context);
  ck_assert_int_eq(counts().contexts, 0);
  tt_context_release(NULL);
  fails = true;
  ck_assert_int_eq(tt_context_open(&device, &config, &context), ncclUnhandledCudaError);
  ck_assert_ptr_null(context);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "rank 1 cannot use fake device 3: this device is closed"));
}
END_TEST

static void open_slabs(struct tt_slabs **slabs, const char *name)
{
  struct tt_context *context;
  ck_assert_int_eq(tt_context_open(&device, &first_of_two, &context), ncclSuccess);
  ck_assert_int_eq(tt_slabs_create(context, name, slabs), ncclSuccess);
  tt_context_release(context); /* the slabs have their own */
}

START_TEST(pieces)
{
  struct tt_slabs *slabs;
  struct tt_slab_piece before = {0}, piece;
  open_slabs(&slabs, "a");
  for (size_t i = 1; i < 300; i++) {
    ck_assert_int_eq(tt_slabs_alloc(slabs, i * 37, &piece), ncclSuccess);
    ck_assert_uint_ge(piece.bytes, i * 37);
    ck_assert_uint_eq((uintptr_t)piece.ptr % TT_SLAB_ALIGNMENT, 0);
    bool untouched = true; /* nobody else's */
    for (size_t k = 0; k < piece.bytes; k++) untouched = piece.ptr[k]++ == 0 && untouched;
    ck_assert(untouched);
    if (before.slab == piece.slab) ck_assert_uint_ge(piece.offset, before.offset + before.bytes);
    before = piece;
  }
  ck_assert_int_eq(counts().memories, 1);
  ck_assert_int_eq(tt_slabs_alloc(slabs, TT_SLAB_BYTES, &piece), ncclSuccess); /* no room for it in the first */
  ck_assert_uint_eq(tt_slab_number(piece.slab), 2);
  fails = true;
  ck_assert_int_eq(tt_slabs_alloc(slabs, TT_SLAB_LARGE_PIECE, &piece), ncclUnhandledCudaError);
  ck_assert_ptr_null(piece.slab);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_BUFFSIZE"));
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "this device is full"));
  tt_slabs_destroy(slabs);
  ck_assert_int_eq(counts().memories, 0);
  ck_assert_int_eq(counts().contexts, 0);
}
END_TEST

/* Pieces a little larger than a power of two leave little of a slab unused; a very large one has its own. */
START_TEST(slabs_suit_their_pieces)
{
  struct tt_slabs *slabs;
  struct tt_slab_piece piece;
  open_slabs(&slabs, "a");
  for (int i = 0; i < 8; i++) ck_assert_int_eq(tt_slabs_alloc(slabs, (4 << 20) + 4096, &piece), ncclSuccess);
  ck_assert_uint_eq(tt_slab_number(piece.slab), 2);
  ck_assert_int_eq(tt_slabs_alloc(slabs, TT_SLAB_LARGE_PIECE, &piece), ncclSuccess);
  ck_assert_uint_eq(tt_slab_number(piece.slab), 3);
  ck_assert_int_eq(tt_slabs_alloc(slabs, 1 << 20, &piece), ncclSuccess);
  ck_assert_uint_eq(tt_slab_number(piece.slab), 4); /* all the others are full */
  tt_slabs_destroy(slabs);
  ck_assert_int_eq(counts().memories, 0);
}
END_TEST

START_TEST(found_by_name_and_number)
{
  struct tt_slabs *a, *b;
  struct tt_slab_piece piece;
  open_slabs(&a, "a");
  open_slabs(&b, "b");
  ck_assert_ptr_null(tt_slab_find("a", 1));
  ck_assert_int_eq(tt_slabs_alloc(b, 1, &piece), ncclSuccess);
  ck_assert_ptr_null(tt_slab_find("a", 1));
  ck_assert_ptr_null(tt_slab_find("b", 2));
  ck_assert_ptr_null(tt_slab_find("b", 0));
  struct tt_slab *slab = tt_slab_find("b", 1);
  ck_assert_ptr_eq(slab, piece.slab);
  tt_slabs_destroy(b);
  piece.ptr[0] = 1; /* still there */
  ck_assert_int_eq(counts().contexts, 2);
  tt_slab_release(slab);
  ck_assert_int_eq(counts().memories, 0);
  ck_assert_int_eq(counts().contexts, 1);
  ck_assert_ptr_null(tt_slab_find("b", 1));
  tt_slabs_destroy(a);
  tt_slabs_destroy(NULL);
  tt_slab_release(NULL);
  ck_assert_int_eq(counts().contexts, 0);
}
END_TEST

START_TEST(exports)
{
  struct tt_slabs *slabs;
  struct tt_slab_piece piece;
  struct tt_device_export local, other, again;
  uint64_t bytes;
  open_slabs(&slabs, "a");
  ck_assert_int_eq(tt_slabs_descriptor(slabs, 1, &bytes), -1);
  ck_assert_int_eq(tt_slabs_alloc(slabs, 1, &piece), ncclSuccess);
  ck_assert_int_eq(tt_slabs_descriptor(slabs, 1, &bytes), -1); /* not exported */
  ck_assert_int_eq(tt_slab_export(piece.slab, TT_EXPORT_HERE, &local), ncclSuccess);
  ck_assert_uint_eq(local.kind, TT_EXPORT_LOCAL);
  ck_assert_int_eq(tt_slabs_descriptor(slabs, 1, &bytes), -1); /* not to others */
  ck_assert_int_eq(tt_slab_export(piece.slab, TT_EXPORT_NEAR, &other), ncclSuccess);
  ck_assert_int_eq(tt_slab_export(piece.slab, TT_EXPORT_NEAR, &again), ncclSuccess);
  ck_assert_int_eq(other.fd, again.fd);
  int fd = tt_slabs_descriptor(slabs, 1, &bytes);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_ne(fd, other.fd);
  ck_assert_uint_eq(bytes, TT_SLAB_BYTES);
  close(fd);
  static const uint64_t none[] = {0, 2, UINT64_MAX};
  for (int i = 0; i < 3; i++) ck_assert_int_eq(tt_slabs_descriptor(slabs, none[i], &bytes), -1);
  tt_slabs_destroy(slabs);
  ck_assert_int_eq(close(other.fd), -1); /* closed with the slab */
}
END_TEST

/* A device that exports in a way which the receiver could not use is caught here. */
START_TEST(wrong_kinds)
{
  struct tt_slabs *slabs;
  struct tt_slab_piece piece;
  struct tt_device_export out;
  open_slabs(&slabs, "a");
  ck_assert_int_eq(tt_slabs_alloc(slabs, 1, &piece), ncclSuccess);
  kind = TT_EXPORT_HANDLE;
  ck_assert_int_eq(tt_slab_export(piece.slab, TT_EXPORT_HERE, &out), ncclInternalError);
  kind = 9;
  ck_assert_int_eq(tt_slab_export(piece.slab, TT_EXPORT_NEAR, &out), ncclInternalError);
  setenv("FAKE_FABRIC", "1", 1); /* which it may use */
  kind = TT_EXPORT_FD;
  ck_assert_int_eq(tt_slab_export(piece.slab, TT_EXPORT_FAR, &out), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "to another host as kind 2"));
  kind = TT_EXPORT_NONE;
  ck_assert_int_eq(tt_slab_export(piece.slab, TT_EXPORT_HERE, &out), ncclSuccess); /* it is asked again */
  tt_slabs_destroy(slabs);
}
END_TEST

#define THREADS 4

static void *find_and_release(void *arg)
{
  (void)arg;
  for (int i = 0; i < 2000; i++) {
    struct tt_slab *slab = tt_slab_find("shared", 1);
    struct tt_device_export out;
    if (slab && tt_slab_export(slab, TT_EXPORT_HERE, &out) != ncclSuccess) return arg;
    tt_slab_release(slab);
  }
  return NULL;
}

START_TEST(threads)
{
  struct tt_slabs *slabs;
  struct tt_slab_piece piece;
  pthread_t ids[THREADS];
  open_slabs(&slabs, "shared");
  ck_assert_int_eq(tt_slabs_alloc(slabs, 1, &piece), ncclSuccess);
  for (int i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&ids[i], NULL, find_and_release, slabs), 0);
  usleep(1000);
  tt_slabs_destroy(slabs);
  for (int i = 0; i < THREADS; i++) {
    void *failed;
    pthread_join(ids[i], &failed);
    ck_assert_ptr_null(failed);
  }
  ck_assert_int_eq(counts().memories, 0);
  ck_assert_int_eq(counts().contexts, 0);
}
END_TEST

/* Who lends finds the same slab for the same number, whoever asks, in this process or by a descriptor; and not without
 * end. */
START_TEST(lent_slabs)
{
  struct tt_context *context;
  struct tt_slabs *slabs;
  struct tt_slab_piece own;
  uint64_t bytes;
  ck_assert_int_eq(tt_context_open(&device, &first_of_two, &context), ncclSuccess);
  ck_assert_int_eq(tt_slabs_create(context, "lender", &slabs), ncclSuccess);
  ck_assert_int_eq(tt_slabs_alloc(slabs, 100, &own), ncclSuccess);
  ck_assert_ptr_null(tt_slab_find("nobody", TT_SLAB_LENT | 5));
  struct tt_slab *one = tt_slab_find("lender", TT_SLAB_LENT | 5), *same = tt_slab_find("lender", TT_SLAB_LENT | 5);
  ck_assert_ptr_nonnull(one);
  ck_assert_ptr_eq(one, same);
  ck_assert_uint_eq(tt_slab_number(one), TT_SLAB_LENT | 5);
  int fd = tt_slabs_descriptor(slabs, TT_SLAB_LENT | 5, &bytes);
  ck_assert_int_ge(fd, 0);
  ck_assert_uint_ge(bytes, TT_SLAB_LENT_BYTES);
  close(fd);
  ck_assert_int_eq(counts().memories, 2);
  fails = true;
  ck_assert_int_eq(tt_slabs_descriptor(slabs, TT_SLAB_LENT | 6, &bytes), -1);
  ck_assert_ptr_null(tt_slab_find("lender", TT_SLAB_LENT | 6));
  fails = false;
  ck_assert_int_eq(tt_slabs_descriptor(slabs, (uint64_t)1 << 40 | TT_SLAB_LENT, &bytes), -1);
  for (uint32_t n = 6; n < 5 + TT_SLAB_MOST_LENT; n++) {
    fd = tt_slabs_descriptor(slabs, TT_SLAB_LENT | n, &bytes);
    ck_assert_int_ge(fd, 0);
    close(fd);
  }
  ck_assert_int_eq(tt_slabs_descriptor(slabs, TT_SLAB_LENT | 99, &bytes), -1);
  tt_slabs_destroy(slabs);
  ck_assert_int_eq(counts().memories, 1); /* who has it keeps it */
  tt_slab_release(one);
  tt_slab_release(same);
  tt_context_release(context);
  ck_assert_int_eq(counts().memories, 0);
  ck_assert_int_eq(counts().contexts, 0);
}
END_TEST

void add_slab(Suite *suite)
{
  TCase *tc = tcase_create("slab");
  tcase_set_timeout(tc, 60);
  tcase_add_checked_fixture(tc, use_fake, NULL);
  tcase_add_test(tc, context_is_counted);
  tcase_add_test(tc, pieces);
  tcase_add_test(tc, slabs_suit_their_pieces);
  tcase_add_test(tc, found_by_name_and_number);
  tcase_add_test(tc, exports);
  tcase_add_test(tc, wrong_kinds);
  tcase_add_test(tc, threads);
  tcase_add_test(tc, lent_slabs);
  suite_add_tcase(suite, tc);
}
