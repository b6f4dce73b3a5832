/* Windows on a device with memory of its own (the fake one): what ranks map of each other and at which addresses, that
 * it counts on all or on none, freed memory, and that nothing is left. Looks into communicators for what was mapped. */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "nccl.h"
#include "plan/comm.h"
#include "tests/fakes/device/fake.h"
#include "transport/user_buffers.h"

enum { N = 3, BYTES = 3 << 16 };

struct world {
  ncclComm_t comms[N];
  unsigned char *buffers[N];
  ncclWindow_t windows[N];
};

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, tt_log_thread_error());
}

static void refused(ncclResult_t result, ncclResult_t wanted, const char *words)
{
  ck_assert_msg(result == wanted, "result %d, not %d: %s", result, wanted, tt_log_thread_error());
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

static int memories(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  return counts.memories;
}

static void expect_nothing_left(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 0);
  ck_assert_int_eq(counts.memories, 0);
  ck_assert_int_eq(counts.users, 0);
}

static void open_comms(struct world *world)
{
  ok(ncclCommInitAll(world->comms, N, NULL));
}

static void allocate(struct world *world)
{
  for (int r = 0; r < N; r++) {
    void *ptr;
    fake_set_device(r);
    ok(ncclMemAlloc(&ptr, BYTES));
    world->buffers[r] = ptr;
  }
}

static ncclResult_t register_all(struct world *world, size_t offset, size_t bytes)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclCommWindowRegister(world->comms[r], world->buffers[r] + offset, bytes, &world->windows[r],
                              NCCL_WIN_COLL_SYMMETRIC));
  return ncclGroupEnd();
}

static void deregister_all(struct world *world)
{
  for (int r = 0; r < N; r++) ok(ncclCommWindowDeregister(world->comms[r], world->windows[r]));
}

static void destroy_all(struct world *world)
{
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(world->comms[r]));
}

static void free_all(struct world *world)
{
  for (int r = 0; r < N; r++) ok(ncclMemFree(world->buffers[r]));
}

static ncclResult_t find(ncclComm_t comm, const void *ptr, size_t bytes, struct tt_user_place *place, void **at)
{
  return tt_user_buffers_find(comm->env->users, ptr, bytes, place, at);
}

static bool is_mapped(ncclComm_t comm, const void *ptr, size_t bytes)
{
  struct tt_user_place place;
  void *at[N];
  ok(find(comm, ptr, bytes, &place, at));
  return place.window != NULL;
}

static bool is_all(const void *ptr, size_t count, int value)
{
  const unsigned char *bytes = ptr;
  for (size_t i = 0; i < count; i++)
    if (bytes[i] != value) return false;
  return true;
}

/* Each rank finds each other's buffer where it wrote its mark, and is the only one to. */
static void expect_mapped(struct world *world, size_t offset, size_t bytes, uint32_t number)
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

static void expect_unmapped(struct world *world)
{
  for (int r = 0; r < N; r++) ck_assert(!is_mapped(world->comms[r], world->buffers[r], 1));
}

START_TEST(addresses)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  int before = memories();
  expect_unmapped(&world);
  ok(register_all(&world, 4096, 8192));
  ck_assert_int_eq(memories(), before + N * (N - 1));
  expect_mapped(&world, 4096, 8192, 1);
  expect_mapped(&world, 4096 + 100, 50, 1);
  for (int r = 0; r < N; r++) {
    struct tt_user_place place;
    void *at[N];
    ok(find(world.comms[r], world.buffers[r] + 4096 + 8000, 192, &place, at));
    ck_assert_uint_eq(place.offset, 8000);
    ck_assert(!is_mapped(world.comms[r], world.buffers[r] + 4096 + 8000, 193));
    ck_assert(!is_mapped(world.comms[r], world.buffers[r] + 4095, 1));
    ck_assert(!is_mapped(world.comms[r], world.buffers[r] + 4096 + 8192, 1));
  }
  deregister_all(&world);
  expect_unmapped(&world);
  ck_assert_int_eq(memories(), before);
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* Several windows of an allocation use one import of it. */
START_TEST(many_windows)
{
  enum { WINDOWS = 12 };
  struct world world;
  ncclWindow_t windows[WINDOWS][N];
  open_comms(&world);
  allocate(&world);
  int before = memories();
  for (int w = 0; w < WINDOWS; w++) {
    ok(register_all(&world, (size_t)(w * 5 % WINDOWS) * 4096, 4096));
    memcpy(windows[w], world.windows, sizeof world.windows);
  }
  ck_assert_int_eq(memories(), before + N * (N - 1));
  for (int w = 0; w < WINDOWS; w++) expect_mapped(&world, (size_t)(w * 5 % WINDOWS) * 4096, 4096, (uint32_t)w + 1);
  ck_assert(!is_mapped(world.comms[0], world.buffers[0], 4097));
  for (int w = 0; w < WINDOWS; w += 2) {
    memcpy(world.windows, windows[w], sizeof world.windows);
    deregister_all(&world);
  }
  for (int w = 0; w < WINDOWS; w++)
    if (w % 2 != 0)
      expect_mapped(&world, (size_t)(w * 5 % WINDOWS) * 4096, 4096, (uint32_t)w + 1);
    else
      ck_assert(!is_mapped(world.comms[1], world.buffers[1] + w * 5 % WINDOWS * 4096, 1));
  destroy_all(&world); /* with the others left */
  free_all(&world);
  expect_nothing_left();
}
END_TEST

/* Operations on windows, and memory that is freed before the communicators end. */
START_TEST(operations)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  ok(register_all(&world, 0, BYTES));
  for (int r = 0; r < N; r++)
    for (int i = 0; i < BYTES / 4; i++) ((int32_t *)(void *)world.buffers[r])[i] = i * (r + 1);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclAllReduce(world.buffers[r], world.buffers[r], BYTES / 4, ncclInt32, ncclSum, world.comms[r], NULL));
  ok(ncclGroupEnd());
  ck_assert(fake_wait_idle(60000));
  for (int r = 0; r < N; r++)
    for (int i = 0; i < BYTES / 4; i++)
      if (((int32_t *)(void *)world.buffers[r])[i] != i * 6) ck_abort_msg("rank %d, element %d", r, i);
  deregister_all(&world);
  free_all(&world);
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.users, 0);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* As if the last rank were of another host: it is mapped by no other, and maps no other. */
START_TEST(several_hosts)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  for (int r = 0; r < N; r++) ((struct tt_peer_info *)world.comms[r]->env->peers)[N - 1].node = N - 1;
  int before = memories();
  ok(register_all(&world, 0, BYTES));
  ck_assert_int_eq(memories(), before + (N - 1) * (N - 2));
  for (int r = 0; r < N; r++) {
    struct tt_user_place place;
    void *at[N];
    ok(find(world.comms[r], world.buffers[r] + 8, 8, &place, at));
    ck_assert_ptr_nonnull(place.window);
    ck_assert(!place.everywhere);
    for (int p = 0; p < N; p++) ck_assert_int_eq(at[p] != NULL, p == r || (p < N - 1 && r < N - 1));
    ck_assert_ptr_eq(at[r], world.buffers[r] + 8);
  }
  for (int r = 0; r < N; r++) ((struct tt_peer_info *)world.comms[r]->env->peers)[N - 1].node = 0;
  deregister_all(&world);
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* Twice the same range is one window; a part of it is none. */
START_TEST(registered_twice)
{
  struct world world;
  ncclWindow_t first[N];
  open_comms(&world);
  allocate(&world);
  ok(register_all(&world, 0, 8192));
  memcpy(first, world.windows, sizeof first);
  ok(register_all(&world, 0, 8192));
  int with_two = memories();
  expect_mapped(&world, 0, 8192, 1);
  deregister_all(&world);
  ck_assert_int_eq(memories(), with_two);
  expect_mapped(&world, 0, 8192, 1);
  ok(register_all(&world, 4096, 8192)); /* noted, and no more */
  ck_assert(!is_mapped(world.comms[0], world.buffers[0] + 4096, 8192));
  expect_mapped(&world, 4096, 4096, 1);
  deregister_all(&world);
  memcpy(world.windows, first, sizeof first);
  deregister_all(&world);
  expect_unmapped(&world);
  for (int r = 0; r < N; r++)
    refused(ncclCommWindowDeregister(world.comms[r], first[r]), ncclInvalidUsage, "not any more");
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

START_TEST(two_communicators)
{
  struct world one, other;
  open_comms(&one);
  open_comms(&other);
  allocate(&one);
  memcpy(other.buffers, one.buffers, sizeof one.buffers);
  ok(register_all(&one, 0, BYTES));
  ok(register_all(&other, 0, BYTES));
  deregister_all(&one);
  expect_unmapped(&one);
  expect_mapped(&other, 0, BYTES, 1);
  refused(ncclCommWindowDeregister(one.comms[0], other.windows[0]), ncclInvalidUsage, "not registered");
  destroy_all(&one);
  expect_mapped(&other, 0, BYTES, 1);
  deregister_all(&other);
  free_all(&one);
  destroy_all(&other);
  expect_nothing_left();
}
END_TEST

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

/* Registered on all ranks, and mapped on none: its handle is as good as another. */
static void expect_noted(struct world *world, int before)
{
  for (int r = 0; r < N; r++) ck_assert_ptr_nonnull(world->windows[r]);
  ck_assert_int_eq(memories(), before);
  expect_unmapped(world);
  deregister_all(world);
}

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

static struct tt_device failing;
static const struct tt_device *working;
static _Atomic int imports_left;

static ncclResult_t import_fails(struct tt_device_context *context, const struct tt_device_export *in,
                                 struct tt_device_memory *memory)
{
  return --imports_left < 0 ? ncclUnhandledCudaError : working->import_memory(context, in, memory);
}

static ncclResult_t export_fails(struct tt_device_context *context, const void *ptr, int local,
                                 struct tt_device_export *out)
{
  (void)context, (void)ptr, (void)local, (void)out;
  return ncclUnhandledCudaError;
}

/* One rank cannot import, after so many that it can; or cannot export, though it should. */
START_TEST(device_fails)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  int before = memories();
  working = world.comms[2]->env->device;
  for (int good = -1; good < N; good++) {
    failing = *working;
    imports_left = good;
    if (good < 0)
      failing.export_buffer = export_fails;
    else
      failing.import_memory = import_fails;
    world.comms[2]->env->device = &failing;
    ok(register_all(&world, 0, BYTES));
    world.comms[2]->env->device = working;
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

START_TEST(non_blocking)
{
  struct world world;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  ncclResult_t state = ncclInProgress;
  config.blocking = 0;
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    ncclCommInitRankConfig(&world.comms[r], N, id, r, &config);
  }
  ncclGroupEnd();
  for (int r = 0; r < N; r++)
    for (state = ncclInProgress; state == ncclInProgress; usleep(500))
      ok(ncclCommGetAsyncError(world.comms[r], &state));
  allocate(&world);
  ck_assert_int_eq(register_all(&world, 0, BYTES), ncclInProgress);
  for (int r = 0; r < N; r++)
    for (state = ncclInProgress; state == ncclInProgress; usleep(500))
      ok(ncclCommGetAsyncError(world.comms[r], &state));
  ok(state);
  expect_mapped(&world, 0, BYTES, 1);
  deregister_all(&world);
  for (int r = 0; r < N; r++) ok(ncclCommAbort(world.comms[r]));
  free_all(&world);
  expect_nothing_left();
}
END_TEST

START_TEST(memory)
{
  void *a, *b;
  fake_set_device(5);
  ok(ncclMemAlloc(&a, 100000));
  ok(ncclMemAlloc(&b, 1));
  ck_assert(is_all(a, 100000, 0));
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.users, 2);
  struct tt_device_buffer buffer = {.size = sizeof buffer};
  char why[64];
  ok(tutti_device(NULL, why, sizeof why)->find_buffer(NULL, (char *)a + 99999, &buffer));
  ck_assert_int_eq(buffer.device, 5);
  ck_assert_ptr_eq(buffer.base, a);
  refused(ncclMemFree((char *)a + 8), ncclInvalidArgument, "did not come from");
  ok(ncclMemFree(a));
  refused(ncclMemFree(a), ncclInvalidArgument, "freed before");
  ok(ncclMemFree(b));
  fake_count(&counts);
  ck_assert_int_eq(counts.memories, 0);
}
END_TEST

/* ---- Two processes ---- */

static void whole(int wire, void *data, size_t bytes, bool put)
{
  ssize_t n = put ? send(wire, data, bytes, 0) : recv(wire, data, bytes, MSG_WAITALL);
  ck_assert_int_eq(n, (ssize_t)bytes);
}

static int descriptors(void)
{
  int count = 0;
  char path[64];
  for (int fd = 0; fd < 1024; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    count += access(path, F_OK) == 0;
  }
  return count;
}

/* Each writes into the other's buffer; the owner frees its own while the other has it mapped. */
static void rank_of_two(int rank, int wire)
{
  ncclUniqueId id;
  ncclComm_t comm;
  ncclWindow_t window;
  void *buffer, *at[2];
  struct tt_user_place place;
  unsigned char mark = (unsigned char)(50 + rank), seen;
  if (rank == 0) ok(ncclGetUniqueId(&id));
  whole(wire, &id, sizeof id, rank == 0);
  fake_set_device(rank);
  ok(ncclCommInitRank(&comm, 2, id, rank));
  ok(ncclMemAlloc(&buffer, BYTES));
  int before = memories(), before_descriptors = descriptors();
  ok(ncclCommWindowRegister(comm, buffer, BYTES, &window, NCCL_WIN_COLL_SYMMETRIC));
  ck_assert_int_eq(memories(), before + 1);
  ok(find(comm, buffer, BYTES, &place, at));
  ck_assert_ptr_nonnull(place.window);
  memset(at[1 - rank], mark, BYTES);
  whole(wire, &mark, 1, true);
  whole(wire, &seen, 1, false);
  ck_assert_int_eq(seen, 101 - mark);
  ck_assert(is_all(buffer, BYTES, seen));
  ok(ncclCommWindowDeregister(comm, window));
  for (int i = 0; i < 5000 && descriptors() > before_descriptors; i++) usleep(1000); /* a thread still closes some */
  ck_assert_int_le(descriptors(), before_descriptors);
  ok(ncclMemFree(buffer));
  whole(wire, &mark, 1, true);
  whole(wire, &seen, 1, false);
  ok(ncclCommDestroy(comm));
  expect_nothing_left();
}

START_TEST(two_processes)
{
  int pair[2], status;
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pair[0]);
    rank_of_two(1, pair[1]);
    exit(0);
  }
  close(pair[1]);
  rank_of_two(0, pair[0]);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  close(pair[0]);
}
END_TEST

int main(void)
{
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", "/dev/null", 1);
  setenv("NCCL_DEBUG_SUBSYS", "REG", 1);
  setenv("TUTTI_DEVICE", FAKE_DEVICE, 1);
  tt_param_reset();
  Suite *suite = suite_create("windows");
  TCase *tests = tcase_create("windows");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, addresses);
  tcase_add_test(tests, many_windows);
  tcase_add_test(tests, operations);
  tcase_add_test(tests, several_hosts);
  tcase_add_test(tests, registered_twice);
  tcase_add_test(tests, two_communicators);
  tcase_add_test(tests, different_sizes);
  tcase_add_test(tests, no_export);
  tcase_add_test(tests, device_fails);
  tcase_add_test(tests, no_allocation);
  tcase_add_test(tests, freed_and_allocated_again);
  tcase_add_test(tests, registered_over_freed);
  tcase_add_test(tests, held);
  tcase_add_test(tests, in_a_graph);
  tcase_add_test(tests, not_wanted);
  tcase_add_test(tests, aborted);
  tcase_add_test(tests, non_blocking);
  tcase_add_test(tests, memory);
  tcase_add_test(tests, two_processes);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
