/* Buffers in no window, of ranks that one group has together: used in place where all devices can, else copied by all.
 * What is used is what lies there now, whatever lay there before; nothing is held afterwards. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/param.h"
#include "collectives.h"
#include "tests/common/free_port.h"
#include "tests/fakes/device/fake.h"

enum { MOST = 4, LONG_MS = 60000, BYTES = 1 << 20, COUNT = 3000 };

struct world {
  int n, root;
  ncclComm_t comms[MOST];
  struct operation operations[MOST];
  void *inputs[MOST], *outputs[MOST];
};

static void *allocate(int rank, bool exported, void *at)
{
  void *ptr = fake_user_alloc(rank, BYTES, exported, at);
  ck_assert_ptr_nonnull(ptr);
  return ptr;
}

/* Each rank has its buffers at another offset. */
static void place(struct world *world, enum kind kind, size_t count)
{
  for (int r = 0; r < world->n; r++) {
    struct operation *o = &world->operations[r];
    *o = (struct operation){.kind = kind, .n = world->n, .rank = r, .root = world->root, .count = count};
    ck_assert_uint_le(4 * operation_room(o), BYTES - 64 * MOST);
    o->in = (uint32_t *)(void *)((char *)world->inputs[r] + 64 * r);
    o->out = (uint32_t *)(void *)((char *)world->outputs[r] + 64 * (world->n - r) - 60);
  }
}

/* Not while there are communicators, whose threads look at parameters. */
static void set_algorithm(const char *algorithm)
{
  if (algorithm)
    setenv("NCCL_ALGO", algorithm, 1);
  else
    unsetenv("NCCL_ALGO");
  unsetenv("NCCL_MIN_NCHANNELS");
  tt_param_reset();
}

static void make_world(struct world *world, int n)
{
  world->n = n;
  world->root = n - 1;
  ok(ncclCommInitAll(world->comms, n, NULL));
  for (int r = 0; r < n; r++) {
    world->inputs[r] = allocate(r, true, NULL);
    world->outputs[r] = allocate(r, true, NULL);
  }
}

static void open_world(struct world *world, int n, const char *algorithm)
{
  set_algorithm(algorithm);
  make_world(world, n);
}

static void close_world(struct world *world)
{
  for (int r = 0; r < world->n; r++) {
    ok(ncclCommDestroy(world->comms[r]));
    ck_assert(fake_user_free(world->inputs[r]) && fake_user_free(world->outputs[r]));
  }
}

static void wait_all(const struct world *world)
{
  for (int r = 0; r < world->n; r++) {
    fake_set_device(r);
    ck_assert(fake_stream_wait(NULL, LONG_MS));
  }
}

/* Whether it was in place, on all ranks. */
static bool run(struct world *world, enum kind kind, size_t count)
{
  int before = fake_mapped_works();
  place(world, kind, count);
  for (uint32_t time = 0; time < 2; time++) { /* the second with works that were kept */
    for (int r = 0; r < world->n; r++) operation_fill(&world->operations[r], 7 + time);
    ok(ncclGroupStart());
    for (int r = 0; r < world->n; r++) ok(operation_call(&world->operations[r], world->comms[r], NULL));
    ok(ncclGroupEnd());
    wait_all(world);
    for (int r = 0; r < world->n; r++) operation_check(&world->operations[r]);
  }
  int used = fake_mapped_works() - before;
  ck_assert(used == 0 || used == 2 * world->n);
  return used > 0;
}

static int memories(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  return counts.memories;
}

/* _i: ranks - 2. */
START_TEST(in_place)
{
  struct world world;
  open_world(&world, _i + 2, "Mapped");
  ck_assert(run(&world, ALL_REDUCE, COUNT));
  int before = memories();
  for (int k = 0; k < SEND_RECV; k++) {
    world.root = k % world.n;
    ck_assert(run(&world, (enum kind)k, 1));
    ck_assert(run(&world, (enum kind)k, COUNT));
  }
  ck_assert_int_ge(before + 40, memories()); /* other connections, and no imports of each operation's */
  close_world(&world);
  ck_assert_int_eq(memories(), 0);
}
END_TEST

/* Two communicators of one id, in one group: each uses its own buffers. */
START_TEST(of_one_id)
{
  enum { N = 2 };
  struct world worlds[2];
  char address[64];
  snprintf(address, sizeof address, "127.0.0.1:%d", free_port());
  setenv("NCCL_COMM_ID", address, 1);
  set_algorithm("Mapped");
  for (int w = 0; w < 2; w++) {
    ncclUniqueId id;
    make_world(&worlds[w], N);
    for (int r = 0; r < N; r++) ok(ncclCommDestroy(worlds[w].comms[r]));
    ok(ncclGetUniqueId(&id));
    ok(ncclGroupStart());
    for (int r = 0; r < N; r++) {
      fake_set_device(r);
      ok(ncclCommInitRank(&worlds[w].comms[r], N, id, r));
    }
    ok(ncclGroupEnd());
    place(&worlds[w], ALL_REDUCE, COUNT);
    for (int r = 0; r < N; r++) operation_fill(&worlds[w].operations[r], 3 + (uint32_t)w);
  }
  ok(ncclGroupStart());
  for (int w = 0; w < 2; w++)
    for (int r = 0; r < N; r++) ok(operation_call(&worlds[w].operations[r], worlds[w].comms[r], NULL));
  ok(ncclGroupEnd());
  for (int w = 0; w < 2; w++) wait_all(&worlds[w]);
  for (int w = 0; w < 2; w++)
    for (int r = 0; r < N; r++) operation_check(&worlds[w].operations[r]);
  for (int w = 0; w < 2; w++) close_world(&worlds[w]);
  unsetenv("NCCL_COMM_ID");
}
END_TEST

START_TEST(by_cost)
{
  static const char *const switches[] = {"NCCL_P2P_DIRECT_DISABLE", "NCCL_SINGLE_PROC_MEM_REG_ENABLE"};
  struct world world;
  open_world(&world, 2, NULL);
  ck_assert(!run(&world, ALL_GATHER, 1));
  ck_assert(run(&world, ALL_GATHER, BYTES / 12));
  close_world(&world);
  for (int s = 0; s < 2; s++) {
    setenv(switches[s], s == 0 ? "1" : "0", 1);
    open_world(&world, 2, NULL);
    ck_assert(!run(&world, ALL_GATHER, BYTES / 12));
    close_world(&world);
    unsetenv(switches[s]);
  }
}
END_TEST

/* Other memory where rank 1's output was; at addresses of newer memory, if another thread has mapped something there
 * meanwhile. */
static void *replace_output(struct world *world, bool exported)
{
  for (int tries = 0; tries < 20; tries++) {
    ck_assert(fake_user_free(world->outputs[1]));
    if (fake_user_alloc(1, BYTES, exported, world->outputs[1]) != NULL) return world->outputs[1];
    world->outputs[1] = allocate(1, true, NULL);
    ck_assert(run(world, ALL_REDUCE, COUNT));
  }
  ck_abort_msg("other threads map memory wherever some is freed");
}

/* Memory that others cannot use on one rank, and then other memory at the same addresses. */
START_TEST(other_memory_there)
{
  struct world world;
  open_world(&world, 3, "Mapped");
  ck_assert(run(&world, ALL_REDUCE, COUNT));
  for (int time = 0; time < 4; time++) {
    ck_assert_ptr_nonnull(replace_output(&world, time % 2 != 0));
    ck_assert_int_eq(run(&world, ALL_REDUCE, COUNT), time % 2 != 0);
    ck_assert_int_eq(run(&world, REDUCE_SCATTER, COUNT), true); /* nobody else touches outputs */
  }
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.users, 6);
  close_world(&world);
}
END_TEST

/* Two allocations side by side, as expandable segments have them, the second of which the others can or cannot use. */
START_TEST(several_allocations)
{
  struct world world;
  open_world(&world, 2, "Mapped");
  void *first = world.outputs[0], *second = NULL;
  char *free_range = fake_user_alloc(0, 2 * BYTES, true, NULL);
  ck_assert(free_range != NULL && fake_user_free(free_range));
  world.outputs[0] = allocate(0, true, free_range);
  second = allocate(0, _i == 0, free_range + BYTES);
  place(&world, ALL_REDUCE, COUNT);
  world.operations[0].out = (uint32_t *)(void *)(free_range + BYTES - 2 * COUNT);
  for (int r = 0; r < 2; r++) operation_fill(&world.operations[r], 3);
  int before = fake_mapped_works();
  ok(ncclGroupStart());
  for (int r = 0; r < 2; r++) ok(operation_call(&world.operations[r], world.comms[r], NULL));
  ok(ncclGroupEnd());
  wait_all(&world);
  for (int r = 0; r < 2; r++) operation_check(&world.operations[r]);
  ck_assert_int_eq(fake_mapped_works() - before, _i == 0 ? 2 : 0);
  close_world(&world);
  ck_assert(fake_user_free(first) && fake_user_free(second));
}
END_TEST

/* Several operations in one group, of two communicators, and one that is in place on one rank only. */
START_TEST(in_groups)
{
  struct world one, two;
  open_world(&one, 3, "Mapped");
  open_world(&two, 2, "Mapped");
  int before = fake_mapped_works();
  place(&one, ALL_TO_ALL, 100);
  place(&two, ALL_REDUCE, COUNT);
  for (int r = 0; r < 3; r++) operation_fill(&one.operations[r], 1);
  for (int r = 0; r < 2; r++) operation_fill(&two.operations[r], 2);
  ok(ncclGroupStart());
  for (int r = 2; r >= 0; r--) {
    char *spare = (char *)one.inputs[r] + BYTES / 2, *to = (char *)one.outputs[r] + BYTES / 2;
    ok(operation_call(&one.operations[r], one.comms[r], NULL));
    if (r < 2) ok(operation_call(&two.operations[r], two.comms[r], NULL));
    ok(ncclAlltoAll(spare, r == 1 ? spare : to, 50, ncclUint32, one.comms[r], NULL));
    ok(ncclAllGather(spare, to, 50, ncclUint32, one.comms[r], NULL));
  }
  ok(ncclGroupEnd());
  wait_all(&one);
  for (int r = 0; r < 3; r++) operation_check(&one.operations[r]);
  for (int r = 0; r < 2; r++) operation_check(&two.operations[r]);
  ck_assert_int_eq(fake_mapped_works() - before, 3 + 2 + 3);
  close_world(&two);
  close_world(&one);
}
END_TEST

/* _i: NCCL_GRAPH_REGISTER. */
START_TEST(captured)
{
  struct world world;
  struct fake_graph *graphs[2];
  setenv("NCCL_GRAPH_REGISTER", _i ? "1" : "0", 1);
  open_world(&world, 2, "Mapped");
  ck_assert(run(&world, ALL_REDUCE, COUNT)); /* not captured */
  int before = fake_mapped_works();
  for (int r = 0; r < 2; r++) {
    fake_set_device(r);
    fake_capture_begin(NULL);
  }
  ok(ncclGroupStart());
  for (int r = 0; r < 2; r++) ok(operation_call(&world.operations[r], world.comms[r], NULL));
  ok(ncclGroupEnd());
  for (int r = 0; r < 2; r++) {
    fake_set_device(r);
    graphs[r] = fake_capture_end(NULL);
  }
  ck_assert_int_eq(fake_mapped_works() - before, _i ? 2 : 0);
  for (uint32_t time = 0; time < 3; time++) {
    for (int r = 0; r < 2; r++) operation_fill(&world.operations[r], 70 + time);
    for (int r = 0; r < 2; r++) {
      fake_set_device(r);
      fake_graph_replay(graphs[r], NULL);
    }
    wait_all(&world);
    for (int r = 0; r < 2; r++) operation_check(&world.operations[r]);
  }
  for (int r = 0; r < 2; r++) fake_graph_destroy(graphs[r]);
  close_world(&world);
  unsetenv("NCCL_GRAPH_REGISTER");
  ck_assert_int_eq(memories(), 0);
}
END_TEST

static void *call_one(void *arg)
{
  struct world *world = arg;
  fake_set_device(1);
  ok(operation_call(&world->operations[1], world->comms[1], NULL));
  ck_assert(fake_stream_wait(NULL, LONG_MS));
  return NULL;
}

/* A thread a rank: neither knows the other's buffers. */
START_TEST(threads)
{
  struct world world;
  pthread_t thread;
  open_world(&world, 2, "Mapped");
  place(&world, ALL_REDUCE, COUNT);
  for (int r = 0; r < 2; r++) operation_fill(&world.operations[r], 5);
  int before = fake_mapped_works();
  ck_assert_int_eq(pthread_create(&thread, NULL, call_one, &world), 0);
  fake_set_device(0);
  ok(operation_call(&world.operations[0], world.comms[0], NULL));
  ck_assert(fake_stream_wait(NULL, LONG_MS));
  pthread_join(thread, NULL);
  for (int r = 0; r < 2; r++) operation_check(&world.operations[r]);
  ck_assert_int_eq(fake_mapped_works(), before);
  close_world(&world);
}
END_TEST

void add_plain(Suite *suite)
{
  TCase *tests = tcase_create("plain buffers");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, in_place, 0, MOST - 1);
  tcase_add_test(tests, of_one_id);
  tcase_add_test(tests, by_cost);
  tcase_add_test(tests, other_memory_there);
  tcase_add_loop_test(tests, several_allocations, 0, 2);
  tcase_add_test(tests, in_groups);
  tcase_add_loop_test(tests, captured, 0, 2);
  tcase_add_test(tests, threads);
  suite_add_tcase(suite, tests);
}
