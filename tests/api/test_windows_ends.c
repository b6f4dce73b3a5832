/* The ends of windows and of their memory: freed early, allocated again, held, used by a graph. */
#include "windows.h"

#include <string.h>
#include "tests/common/faulty_device.h"

/* Other memory comes where a window's was. */
START_TEST(freed_and_allocated_again)
{
  struct world world;
  struct tt_user_place place;
  void *at[N];
  open_comms(&world);
  allocate(&world);
  ok(register_all(&world, 0, BYTES));
  ok(ncclMemFree(world.buffers[1]));
  refused(find(world.comms[1], world.buffers[1], 8, &place, at), ncclInvalidUsage, "memory was freed;");
  ck_assert_ptr_eq(fake_user_alloc(1, BYTES, true, world.buffers[1]), world.buffers[1]);
  refused(find(world.comms[1], world.buffers[1], 8, &place, at), ncclInvalidUsage, "and allocated again");
  ck_assert_ptr_null(place.window);
  ck_assert(is_mapped(world.comms[0], world.buffers[0], BYTES)); /* whose memory is there */
  deregister_all(&world);
  expect_unmapped(&world);
  ok(register_all(&world, 0, BYTES));
  expect_mapped(&world, 0, BYTES, 2); /* the new memory, not what was imported before */
  deregister_all(&world);
  fake_user_free(world.buffers[1]);
  ok(ncclMemFree(world.buffers[0]));
  ok(ncclMemFree(world.buffers[2]));
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* Who holds a window, as a graph does, has its addresses longer than it is registered, and lets go at any time. */
START_TEST(held)
{
  struct world world;
  struct tt_user_place place;
  void *at[N];
  open_comms(&world);
  allocate(&world);
  int before = memories();
  ok(register_all(&world, 0, BYTES));
  ok(find(world.comms[0], world.buffers[0], BYTES, &place, at));
  tt_user_window_hold(place.window);
  tt_user_window_hold(place.window);
  deregister_all(&world);
  expect_unmapped(&world);
  ck_assert_int_eq(memories(), before + N - 1); /* rank 0's imports */
  memset(at[2], 7, BYTES);
  ck_assert_int_eq(world.buffers[2][BYTES - 1], 7);
  ok(register_all(&world, 0, BYTES)); /* one more */
  tt_user_window_let_go(place.window);
  deregister_all(&world);
  ck_assert_int_eq(memories(), before + N - 1);
  tt_user_window_let_go(place.window);
  ok(register_all(&world, 0, BYTES));
  deregister_all(&world);
  ck_assert_int_eq(memories(), before);
  ok(register_all(&world, 0, BYTES));
  ok(find(world.comms[0], world.buffers[0], BYTES, &place, at));
  tt_user_window_hold(place.window);
  destroy_all(&world);
  free_all(&world);
  expect_nothing_left();
  tt_user_window_let_go(place.window);
}
END_TEST

/* A window that captured operations use is deregistered, and stays mapped until their graph's end. */
START_TEST(in_a_graph)
{
  struct world world;
  struct tt_user_place place;
  void *at[N];
  faulty_device_next(0, 0);
  open_comms(&world);
  allocate(&world);
  fake_set_device(0);
  void *stream = fake_stream_create(0);
  int before = memories();
  ok(register_all(&world, 0, BYTES));
  struct tt_user_buffers *users = world.comms[0]->env->users;
  ok(find(world.comms[0], world.buffers[0], BYTES, &place, at));
  faulty_device.graph_ends = 0;
  ok(tt_user_window_keep(users, place.window, stream)); /* it is not captured */
  fake_capture_begin(stream);
  ck_assert_int_eq(tt_user_window_keep(users, place.window, stream), ncclUnhandledCudaError);
  faulty_device.graph_ends = 1; /* is told once */
  for (int i = 0; i < 3; i++) ok(tt_user_window_keep(users, place.window, stream));
  struct fake_graph *graph = fake_capture_end(stream);
  deregister_all(&world);
  free_all(&world);
  ck_assert_int_eq(memories(), before - N + N - 1); /* without the buffers, and with rank 0's imports */
  ck_assert_int_eq(((unsigned char *)at[1])[BYTES - 1], 0);
  fake_graph_destroy(graph);
  allocate(&world);
  ok(register_all(&world, 0, BYTES));
  deregister_all(&world);
  ck_assert_int_eq(memories(), before);
  fake_stream_destroy(stream);
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* A device that knows no graphs. */
START_TEST(without_graphs)
{
  struct world world;
  struct tt_user_place place;
  void *at[N];
  faulty_device_next(0, TT_DEVICE_GRAPHS);
  open_comms(&world);
  allocate(&world);
  fake_set_device(0);
  void *stream = fake_stream_create(0);
  int before = memories();
  ok(register_all(&world, 0, BYTES));
  ok(find(world.comms[0], world.buffers[0], BYTES, &place, at));
  fake_capture_begin(stream);
  ok(tt_user_window_keep(world.comms[0]->env->users, place.window, stream));
  deregister_all(&world);
  ck_assert_int_eq(memories(), before); /* though the graph is there */
  fake_graph_destroy(fake_capture_end(stream));
  fake_stream_destroy(stream);
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

void add_windows_ends(Suite *suite)
{
  TCase *tests = tcase_create("ends of windows");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, freed_and_allocated_again);
  tcase_add_test(tests, held);
  tcase_add_test(tests, in_a_graph);
  tcase_add_test(tests, without_graphs);
  suite_add_tcase(suite, tests);
}
