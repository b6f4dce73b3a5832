/* Windows over several allocations, side by side, as PyTorch's expandable segments have them. */
#include <stdlib.h>
#include "base/param.h"
#include "tests/common/faulty_device.h"
#include "windows.h"

/* A window over several allocations, of other sizes on each rank; what lies in one of them; and a second window that
 * shares some of them. */
START_TEST(several_allocations)
{
  enum { PART = 1 << 14, PARTS = 12 };
  static const int sizes[N] = {1, 2, 3};
  struct world world, other;
  open_comms(&world);
  for (int r = 0; r < N; r++) world.buffers[r] = allocate_parts(r, PARTS / sizes[r], (size_t)(sizes[r] * PART));
  int before = memories();
  ok(register_all(&world, PART / 2, (PARTS - 1) * PART));
  ck_assert_int_eq(memories(), before + N * (N - 1));
  expect_mapped(&world, PART / 2, (PARTS - 1) * PART, 1);
  expect_mapped(&world, 5 * PART - 100, 200, 1);
  deregister_all(&world);
  ck_assert_int_eq(memories(), before);
  ok(register_all(&world, 0, 3 * PART));
  other = world;
  ok(register_all(&other, 3 * PART, 4 * PART));
  expect_mapped(&world, 0, 3 * PART, 2);
  expect_mapped(&other, 3 * PART, 4 * PART, 3);
  ok(register_all(&world, 0, 3 * PART)); /* the same again */
  expect_mapped(&world, 0, 3 * PART, 2);
  deregister_all(&other);
  expect_mapped(&world, 0, 3 * PART, 2);
  destroy_all(&world);
  for (int r = 0; r < N; r++) free_parts(world.buffers[r], PARTS / sizes[r], (size_t)(sizes[r] * PART));
  expect_nothing_left();
}
END_TEST

/* One of a window's allocations is freed, and another comes there: found out by who uses that part. */
START_TEST(part_freed)
{
  enum { PART = 1 << 14, PARTS = 3 };
  struct world world;
  struct tt_user_place place;
  void *at[N];
  open_comms(&world);
  for (int r = 0; r < N; r++) world.buffers[r] = allocate_parts(r, PARTS, PART);
  ok(register_all(&world, 0, PARTS * PART));
  ck_assert(fake_user_free(world.buffers[1] + PART));
  ck_assert_ptr_nonnull(fake_user_alloc(1, PART, true, world.buffers[1] + PART));
  ck_assert(is_mapped(world.comms[1], world.buffers[1], PART));
  ck_assert(is_mapped(world.comms[1], world.buffers[1] + 2 * PART, PART));
  refused(find(world.comms[1], world.buffers[1] + PART, 8, &place, at), ncclInvalidUsage, "allocated again");
  refused(find(world.comms[1], world.buffers[1] + PART - 8, 16, &place, at), ncclInvalidUsage, "memory was freed");
  ck_assert(is_mapped(world.comms[0], world.buffers[0], PARTS * PART));
  deregister_all(&world);
  destroy_all(&world);
  for (int r = 0; r < N; r++) free_parts(world.buffers[r], PARTS, PART);
  expect_nothing_left();
}
END_TEST

/* _i: too many allocations; the user does not want it; a device that cannot. */
START_TEST(too_many_parts)
{
  enum { PART = 4096 };
  struct world world;
  int parts = _i == 0 ? 257 : 2;
  if (_i == 1) setenv("NCCL_MULTI_SEGMENT_REGISTER", "0", 1);
  tt_param_reset();
  if (_i == 2) faulty_device_next(1, TT_DEVICE_PARTS);
  open_comms(&world);
  unsetenv("NCCL_MULTI_SEGMENT_REGISTER");
  for (int r = 0; r < N; r++) world.buffers[r] = allocate_parts(r, parts, PART);
  int before = memories();
  ok(register_all(&world, 0, (size_t)(parts * PART)));
  expect_noted(&world, before);
  ok(register_all(&world, 0, (size_t)(_i == 0 ? 256 * PART : PART))); /* so many are allowed */
  ck_assert(is_mapped(world.comms[0], world.buffers[0], 1));
  destroy_all(&world);
  for (int r = 0; r < N; r++) free_parts(world.buffers[r], parts, PART);
  expect_nothing_left();
}
END_TEST

void add_windows_parts(Suite *suite)
{
  TCase *tests = tcase_create("windows over several allocations");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, several_allocations);
  tcase_add_test(tests, part_freed);
  tcase_add_loop_test(tests, too_many_parts, 0, 3);
  suite_add_tcase(suite, tests);
}
