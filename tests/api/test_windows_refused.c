/* Windows that count on no rank: memory that cannot be mapped, a device that fails, ranks that disagree or say what
 * none would, and calls that are not wanted or end early. */
#include "windows.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "tests/common/faulty_device.h"

START_TEST(different_sizes)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  int before = memories();
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclCommWindowRegister(world.comms[r], world.buffers[r], r == 2 ? 8192 : 4096, &world.windows[r],
                              NCCL_WIN_COLL_SYMMETRIC));
  refused(ncclGroupEnd(), ncclInvalidArgument, "size is 4096 on rank 0 and 8192 on rank 2");
  for (int r = 0; r < N; r++) ck_assert_ptr_null(world.windows[r]);
  ck_assert_int_eq(memories(), before);
  ok(register_all(&world, 0, 4096)); /* the communicators are as good as before */
  expect_mapped(&world, 0, 4096, 2);
  destroy_all(&world);
  free_all(&world);
  expect_nothing_left();
}
END_TEST

START_TEST(destroyed_in_the_group)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclCommWindowRegister(world.comms[r], world.buffers[r], 4096, &world.windows[r], NCCL_WIN_COLL_SYMMETRIC));
  refused(ncclCommDestroy(world.comms[0]), ncclInvalidUsage, "open group");
  ok(ncclGroupEnd());
  expect_mapped(&world, 0, 4096, 1);
  destroy_all(&world);
  free_all(&world);
  expect_nothing_left();
}
END_TEST

/* What the log says meanwhile. */
static char logged[20000];
static pthread_mutex_t logged_lock = PTHREAD_MUTEX_INITIALIZER;

static void to_test(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                    const char *text)
{
  (void)level, (void)subsystems, (void)file, (void)line, (void)func;
  pthread_mutex_lock(&logged_lock);
  size_t length = strlen(logged);
  snprintf(logged + length, sizeof logged - length, "%s\n", text);
  pthread_mutex_unlock(&logged_lock);
}

/* One rank has memory that nobody can map. */
START_TEST(no_export)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  ok(ncclMemFree(world.buffers[1]));
  world.buffers[1] = fake_user_alloc(1, BYTES, false, NULL);
  int before = memories();
  tt_log_redirect(to_test);
  ok(register_all(&world, 0, 4096));
  tt_log_redirect(NULL);
  ck_assert_msg(strstr(logged, "rank 0: the window of 4096 bytes") != NULL, "%s", logged);
  ck_assert_msg(strstr(logged, "on rank 1 (") != NULL && strstr(logged, "ncclMemAlloc") != NULL, "%s", logged);
  expect_noted(&world, before);
  fake_user_free(world.buffers[1]);
  ok(ncclMemFree(world.buffers[0]));
  ok(ncclMemFree(world.buffers[2]));
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* One rank cannot import, after so many that it can; or cannot export, though it should. */
START_TEST(device_fails)
{
  struct world world;
  faulty_device_next(2, 0);
  open_comms(&world);
  allocate(&world);
  int before = memories();
  for (int good = -1; good < N; good++) {
    faulty_device.exports = good < 0 ? 0 : FAULTY_NEVER;
    faulty_device.imports = good < 0 ? FAULTY_NEVER : good;
    ok(register_all(&world, 0, BYTES));
    if (good < N - 1) {
      expect_noted(&world, before);
      continue;
    }
    expect_mapped(&world, 0, BYTES, N + 1);
    deregister_all(&world);
  }
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* Beyond the end of an allocation, and where none is. */
START_TEST(no_allocation)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  int before = memories();
  ok(register_all(&world, BYTES - 4096, 4097));
  expect_noted(&world, before);
  unsigned char *good = world.buffers[0], stack[64];
  world.buffers[0] = stack;
  ok(register_all(&world, 0, 64));
  expect_noted(&world, before);
  world.buffers[0] = good;
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* A window that is registered again over the one whose memory was freed counts nowhere. */
START_TEST(registered_over_freed)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  ok(register_all(&world, 0, BYTES));
  ok(ncclMemFree(world.buffers[1]));
  ck_assert_ptr_eq(fake_user_alloc(1, BYTES, true, world.buffers[1]), world.buffers[1]);
  logged[0] = '\0';
  tt_log_redirect(to_test);
  ok(register_all(&world, 0, BYTES));
  tt_log_redirect(NULL);
  ck_assert_msg(strstr(logged, "whose memory was freed while it was registered") != NULL, "%s", logged);
  destroy_all(&world);
  fake_user_free(world.buffers[1]);
  ok(ncclMemFree(world.buffers[0]));
  ok(ncclMemFree(world.buffers[2]));
  expect_nothing_left();
}
END_TEST

START_TEST(not_wanted)
{
  struct world world;
  setenv("NCCL_WIN_ENABLE", "0", 1);
  setenv("NCCL_LOCAL_REGISTER", "0", 1);
  tt_param_reset();
  open_comms(&world);
  allocate(&world);
  int before = memories();
  for (int r = 0; r < N; r++) /* needs nobody */
    ok(ncclCommWindowRegister(world.comms[r], world.buffers[r], 4096, &world.windows[r], NCCL_WIN_COLL_SYMMETRIC));
  expect_noted(&world, before);
  void *handle = &world;
  ok(ncclCommRegister(world.comms[0], world.buffers[0], 4096, &handle));
  ck_assert_ptr_null(handle);
  unsetenv("NCCL_WIN_ENABLE");
  unsetenv("NCCL_LOCAL_REGISTER");
  tt_param_reset();
  for (int r = 0; r < N; r++)
    ok(ncclCommWindowRegister(world.comms[r], world.buffers[r], 4096, &world.windows[r], NCCL_WIN_DEFAULT));
  expect_noted(&world, before);
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

static void *register_alone(void *arg)
{
  struct world *world = arg;
  refused(ncclCommWindowRegister(world->comms[0], world->buffers[0], 4096, &world->windows[0], NCCL_WIN_COLL_SYMMETRIC),
          ncclInternalError, "abort");
  return NULL;
}

/* The other ranks never come. */
START_TEST(aborted)
{
  struct world world;
  pthread_t thread;
  open_comms(&world);
  allocate(&world);
  ck_assert_int_eq(pthread_create(&thread, NULL, register_alone, &world), 0);
  while (atomic_load(&world.comms[0]->turns_taken) == 0) usleep(1000);
  ok(ncclCommAbort(world.comms[0]));
  pthread_join(thread, NULL);
  for (int r = 1; r < N; r++) ok(ncclCommAbort(world.comms[r]));
  free_all(&world);
  expect_nothing_left();
}
END_TEST

/* ---- A rank that says what none would ---- */

/* An offer of one allocation. */
enum {
  AT_OFFSET = 4 + 8,
  AT_PARTS = AT_OFFSET + 8,
  AT_WHY = AT_PARTS + 4,
  AT_ID = AT_WHY + 200,
  AT_ALLOCATION = AT_ID + 8,
  AT_LOCAL_KIND = AT_ALLOCATION + 16,
  AT_REMOTE_KIND = AT_LOCAL_KIND + 76,
  OFFER_BYTES = AT_REMOTE_KIND + 76
};

struct caller {
  struct world *world;
  int rank;
};

static void *expect_malformed(void *arg)
{
  struct caller *caller = arg;
  int r = caller->rank;
  refused(ncclCommWindowRegister(caller->world->comms[r], caller->world->buffers[r], 4096, &caller->world->windows[r],
                                 NCCL_WIN_COLL_SYMMETRIC),
          ncclRemoteError, "rank 2 sent a malformed description");
  return NULL;
}

static void put_word(unsigned char *to, uint64_t word, size_t bytes)
{
  for (size_t i = 0; i < bytes; i++) to[i] = (unsigned char)(word >> 8 * i);
}
START_TEST(malformed)
{
  struct world world;
  unsigned char offer[OFFER_BYTES] = {0}, *all;
  size_t offsets[N + 1], bytes = OFFER_BYTES;
  struct caller callers[N - 1];
  pthread_t threads[N - 1];
  open_comms(&world);
  allocate(&world);
  int before = memories();
  put_word(offer + 4, 4096, 8);
  put_word(offer + AT_PARTS, 1, 4);
  put_word(offer + AT_ALLOCATION, 8192, 8);
  if (_i == 0) memset(offer + AT_WHY, 0xff, AT_ID - AT_WHY); /* a text without an end */
  if (_i == 1) put_word(offer + AT_OFFSET, 4097, 8);         /* beyond the allocation */
  if (_i == 2) put_word(offer + AT_OFFSET, UINT64_MAX, 8);
  if (_i == 3) put_word(offer + AT_LOCAL_KIND, TT_EXPORT_FD, 4);
  if (_i == 4) put_word(offer + AT_REMOTE_KIND, TT_EXPORT_LOCAL, 4);
  if (_i == 5) put_word(offer + AT_PARTS, 2, 4); /* of which one is there */
  if (_i == 6) put_word(offer + AT_PARTS, UINT32_MAX, 4);
  if (_i == 7) put_word(offer + AT_PARTS, 0, 4);
  if (_i == 8) bytes = 3;
  for (int r = 0; r < N - 1; r++) {
    callers[r] = (struct caller){&world, r};
    ck_assert_int_eq(pthread_create(&threads[r], NULL, expect_malformed, &callers[r]), 0);
  }
  ok(tt_bootstrap_gather_sized(world.comms[2]->bootstrap, NULL, 2, N, offer, bytes, 1 << 20, &all, offsets));
  free(all);
  for (int r = 0; r < N - 1; r++) pthread_join(threads[r], NULL);
  ck_assert_int_eq(memories(), before);
  for (int r = 0; r < N; r++) ok(ncclCommAbort(world.comms[r]));
  free_all(&world);
  expect_nothing_left();
}
END_TEST

void add_windows_refused(Suite *suite)
{
  TCase *tests = tcase_create("windows that are refused");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, different_sizes);
  tcase_add_test(tests, destroyed_in_the_group);
  tcase_add_test(tests, no_export);
  tcase_add_test(tests, device_fails);
  tcase_add_test(tests, no_allocation);
  tcase_add_test(tests, registered_over_freed);
  tcase_add_test(tests, not_wanted);
  tcase_add_test(tests, aborted);
  tcase_add_loop_test(tests, malformed, 0, 9);
  suite_add_tcase(suite, tests);
}
