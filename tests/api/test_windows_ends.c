/* The ends of windows and of their memory: freed early, allocated again, held, used by a graph. */
#include "windows.h"

#include <string.h>

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

static struct tt_device failing;
static const struct tt_device *working;
static uint64_t graph;
static int ends;
static void (*end_graph)(void *argument);
static void *end_argument;

static ncclResult_t capturing(struct tt_device_context *context, void *stream, uint64_t *now)
{
  (void)context, (void)stream;
  *now = graph;
  return ncclSuccess;
}

static ncclResult_t at_graph_end(struct tt_device_context *context, void *stream, void (*done)(void *), void *argument)
{
  (void)context, (void)stream;
  if (graph == 13) { /* it cannot be noted */
    done(argument);
    return ncclUnhandledCudaError;
  }
  ends++;
  end_graph = done;
  end_argument = argument;
  return ncclSuccess;
}

/* A window that captured operations use is deregistered, and stays mapped until their graph's end. */
START_TEST(in_a_graph)
{
  struct world world;
  struct tt_user_place place;
  void *at[N];
  open_comms(&world);
  allocate(&world);
  int before = memories();
  ok(register_all(&world, 0, BYTES));
  struct tt_transport_env *env = world.comms[0]->env;
  ok(find(world.comms[0], world.buffers[0], BYTES, &place, at));
  working = env->device;
  failing = *working;
  failing.features &= ~(uint32_t)TT_DEVICE_GRAPHS;
  env->device = &failing;
  graph = 12;
  ok(tt_user_window_keep(env->users, place.window, NULL)); /* there are no graphs */
  failing.features |= TT_DEVICE_GRAPHS;
  failing.capturing = capturing;
  failing.at_graph_end = at_graph_end;
  graph = 0;
  ok(tt_user_window_keep(env->users, place.window, NULL));
  ck_assert_int_eq(ends, 0);
  graph = 13;
  ck_assert_int_eq(tt_user_window_keep(env->users, place.window, NULL), ncclUnhandledCudaError);
  graph = 12;
  for (int i = 0; i < 3; i++) ok(tt_user_window_keep(env->users, place.window, NULL));
  ck_assert_int_eq(ends, 1);
  env->device = working;
  deregister_all(&world);
  free_all(&world);
  ck_assert_int_eq(memories(), before - N + N - 1); /* without the buffers, and with rank 0's imports */
  ck_assert_int_eq(((unsigned char *)at[1])[BYTES - 1], 0);
  end_graph(end_argument);
  allocate(&world);
  ok(register_all(&world, 0, BYTES));
  deregister_all(&world);
  ck_assert_int_eq(memories(), before);
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
  suite_add_tcase(suite, tests);
}
