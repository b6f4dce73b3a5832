/* See windows.h. */
#include "windows.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"

void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, tt_log_thread_error());
}

void refused(ncclResult_t result, ncclResult_t wanted, const char *words)
{
  ck_assert_msg(result == wanted, "result %d, not %d: %s", result, wanted, tt_log_thread_error());
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

int memories(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  return counts.memories;
}

void expect_nothing_left(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 0);
  ck_assert_int_eq(counts.memories, 0);
  ck_assert_int_eq(counts.users, 0);
}

void open_comms(struct world *world)
{
  ok(ncclCommInitAll(world->comms, N, NULL));
}

void allocate(struct world *world)
{
  for (int r = 0; r < N; r++) {
    void *ptr;
    fake_set_device(r);
    ok(ncclMemAlloc(&ptr, BYTES));
    world->buffers[r] = ptr;
  }
}

unsigned char *allocate_parts(int device, int parts, size_t bytes)
{
  unsigned char *at = fake_user_alloc(device, (size_t)parts * bytes, true, NULL);
  ck_assert(at != NULL && fake_user_free(at)); /* so much is free there */
  for (int i = 0; i < parts; i++)
    ck_assert_ptr_eq(fake_user_alloc(device, bytes, true, at + (size_t)i * bytes), at + (size_t)i * bytes);
  return at;
}

void free_parts(unsigned char *ptr, int parts, size_t bytes)
{
  for (int i = 0; i < parts; i++) ck_assert(fake_user_free(ptr + (size_t)i * bytes));
}

ncclResult_t register_all(struct world *world, size_t offset, size_t bytes)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclCommWindowRegister(world->comms[r], world->buffers[r] + offset, bytes, &world->windows[r],
                              NCCL_WIN_COLL_SYMMETRIC));
  return ncclGroupEnd();
}

void deregister_all(struct world *world)
{
  for (int r = 0; r < N; r++) ok(ncclCommWindowDeregister(world->comms[r], world->windows[r]));
}

void destroy_all(struct world *world)
{
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(world->comms[r]));
}

void free_all(struct world *world)
{
  for (int r = 0; r < N; r++) ok(ncclMemFree(world->buffers[r]));
}

ncclResult_t find(ncclComm_t comm, const void *ptr, size_t bytes, struct tt_user_place *place, void **at)
{
  return tt_user_buffers_find(comm->env->users, ptr, bytes, place, at);
}

bool is_mapped(ncclComm_t comm, const void *ptr, size_t bytes)
{
  struct tt_user_place place;
  void *at[N];
  ok(find(comm, ptr, bytes, &place, at));
  return place.window != NULL;
}

bool is_all(const void *ptr, size_t count, int value)
{
  const unsigned char *bytes = ptr;
  for (size_t i = 0; i < count; i++)
    if (bytes[i] != value) return false;
  return true;
}

void expect_mapped(struct world *world, size_t offset, size_t bytes, uint32_t number)
{
  for (int r = 0; r < N; r++) memset(world->buffers[r] + offset, 100 + r, bytes);
  for (int r = 0; r < N; r++) {
    struct tt_user_place place;
    void *at[N];
    ok(find(world->comms[r], world->buffers[r] + offset, bytes, &place, at));
    ck_assert_ptr_nonnull(place.window);
    ck_assert(place.everywhere);
    ck_assert_uint_eq(place.number, number);
    for (int p = 0; p < N; p++) {
      ck_assert_int_eq(p == r, at[p] == world->buffers[p] + offset);
      ck_assert(is_all(at[p], bytes, 100 + p));
      ((unsigned char *)at[p])[r] = (unsigned char)(10 * r + p);
    }
    for (int p = 0; p < N; p++) {
      ck_assert_int_eq(world->buffers[p][offset + (size_t)r], 10 * r + p);
      world->buffers[p][offset + (size_t)r] = (unsigned char)(100 + p);
    }
  }
}

void expect_unmapped(struct world *world)
{
  for (int r = 0; r < N; r++) ck_assert(!is_mapped(world->comms[r], world->buffers[r], 1));
}

void expect_noted(struct world *world, int before)
{
  for (int r = 0; r < N; r++) ck_assert_ptr_nonnull(world->windows[r]);
  ck_assert_int_eq(memories(), before);
  expect_unmapped(world);
  deregister_all(world);
}

int main(void)
{
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", "/dev/null", 1);
  setenv("NCCL_DEBUG_SUBSYS", "REG", 1);
  setenv("TUTTI_DEVICE", FAKE_DEVICE, 1);
  tt_param_reset();
  Suite *suite = suite_create("windows");
  add_windows(suite);
  add_windows_ends(suite);
  add_windows_parts(suite);
  add_windows_refused(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
