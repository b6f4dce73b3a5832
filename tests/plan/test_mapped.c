/* Collectives whose buffers lie in windows: ranks read and write them in place, in processes of their own or in one.
 * What they do with other buffers, and where a program cannot be used, is what it was. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/param.h"
#include "collectives.h"
#include "tests/fakes/device/fake.h"

enum { MOST = 4, LONG_MS = 60000, BUFFER = 17 << 20 };

struct world {
  int n;
  ncclComm_t comms[MOST];
  unsigned char *buffers[MOST]; /* inputs in the lower half, outputs in the upper */
  ncclWindow_t windows[MOST];
};

static void open_world(struct world *world, int n, const char *algorithm)
{
  world->n = n;
  if (algorithm)
    setenv("NCCL_ALGO", algorithm, 1);
  else
    unsetenv("NCCL_ALGO");
  unsetenv("NCCL_MIN_NCHANNELS");
  tt_param_reset();
  ok(ncclCommInitAll(world->comms, n, NULL));
  for (int r = 0; r < n; r++) {
    void *ptr;
    fake_set_device(r);
    ok(ncclMemAlloc(&ptr, BUFFER));
    world->buffers[r] = ptr;
  }
  ok(ncclGroupStart());
  for (int r = 0; r < n; r++)
    ok(ncclCommWindowRegister(world->comms[r], world->buffers[r], BUFFER, &world->windows[r], NCCL_WIN_COLL_SYMMETRIC));
  ok(ncclGroupEnd());
}

static void close_world(struct world *world)
{
  for (int r = 0; r < world->n; r++) {
    ok(ncclCommWindowDeregister(world->comms[r], world->windows[r]));
    ok(ncclMemFree(world->buffers[r]));
    ok(ncclCommDestroy(world->comms[r]));
  }
}

/* Whether ranks used each other's buffers. */
static bool run(struct world *world, enum kind kind, size_t count, bool in_windows)
{
  struct operation operations[MOST];
  int before = fake_mapped_works();
  for (int r = 0; r < world->n; r++) {
    operations[r] =
        (struct operation){.kind = kind, .n = world->n, .rank = r, .root = world->n - 1, .count = count, .seed = 7};
    if (in_windows) {
      ck_assert_uint_le(operation_room(&operations[r]) * 4, BUFFER / 2);
      operations[r].in = (uint32_t *)(void *)world->buffers[r];
      operations[r].out = (uint32_t *)(void *)(world->buffers[r] + BUFFER / 2);
      operation_fill(&operations[r], 7);
    } else {
      operation_open(&operations[r]);
    }
  }
  for (uint32_t time = 0; time < 3; time++) { /* the second and third with works that were kept */
    for (int r = 0; time > 0 && r < world->n; r++) operation_fill(&operations[r], 7 + time);
    ok(ncclGroupStart());
    for (int r = 0; r < world->n; r++) ok(operation_call(&operations[r], world->comms[r], NULL));
    ok(ncclGroupEnd());
    for (int r = 0; r < world->n; r++) {
      fake_set_device(r);
      ck_assert(fake_stream_wait(NULL, LONG_MS));
    }
    for (int r = 0; r < world->n; r++) operation_check(&operations[r]);
  }
  for (int r = 0; !in_windows && r < world->n; r++) operation_close(&operations[r]);
  int used = fake_mapped_works() - before;
  ck_assert(used == 0 || used == 3 * world->n);
  return used > 0;
}

static const enum kind mapped_kinds[] = {ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST};

/* _i: ranks - 2. By name, at all sizes. That one group has all ranks tells them nothing. */
START_TEST(by_name)
{
  static const enum kind rooted_kinds[] = {REDUCE, SCATTER, GATHER};
  static const size_t counts[] = {1, 33, 1000, 20000};
  struct world world;
  setenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE", "0", 1);
  open_world(&world, _i + 2, "Mapped");
  unsetenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE");
  for (int k = 0; k < 5; k++)
    for (int c = 0; c < 4; c++) {
      ck_assert(run(&world, mapped_kinds[k], counts[c], true));
      ck_assert(!run(&world, mapped_kinds[k], counts[c], false));
    }
  /* By windows alone the root would know alone where a buffer of its lies. */
  for (int k = 0; k < 3; k++) ck_assert(!run(&world, rooted_kinds[k], 1000, true));
  close_world(&world);
}
END_TEST

/* The cost model takes it for large ones, and the user can forbid it. */
START_TEST(by_cost)
{
  struct world world;
  open_world(&world, 2, NULL);
  ck_assert(!run(&world, ALL_REDUCE, 1, true));
  ck_assert(run(&world, ALL_GATHER, 1 << 20, true));
  ck_assert(!run(&world, ALL_GATHER, 1 << 20, false));
  close_world(&world);
  open_world(&world, 2, "^Mapped");
  ck_assert(!run(&world, ALL_GATHER, 1 << 20, true));
  close_world(&world);
  setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
  open_world(&world, 2, NULL);
  unsetenv("NCCL_P2P_DIRECT_DISABLE");
  ck_assert(!run(&world, ALL_GATHER, 1 << 20, true));
  close_world(&world);
}
END_TEST

/* Works of `kind` that copy engines did, of those that ranks did in windows. */
static int by_engines(struct world *world, enum kind kind)
{
  int before = fake_engine_works();
  ck_assert(run(world, kind, 1000, true));
  return fake_engine_works() - before;
}

/* _i: 0 nobody asks for copy engines, and the data is small; 1 TUTTI_COPY_ENGINES does, 2 NCCL_CTA_POLICY; 3 both, but
 * with the first one's answer. */
START_TEST(engines)
{
  struct world world;
  const int all = 3 * 3; /* ranks, and times */
  bool wanted = _i == 1 || _i == 2;
  if (_i == 1) setenv("TUTTI_COPY_ENGINES", "1", 1);
  if (_i >= 2) setenv("NCCL_CTA_POLICY", "2", 1);
  if (_i == 3) setenv("TUTTI_COPY_ENGINES", "0", 1);
  open_world(&world, 3, "Mapped");
  ck_assert_int_eq(by_engines(&world, ALL_GATHER), wanted ? all : 0);
  ck_assert_int_eq(by_engines(&world, ALL_TO_ALL), wanted ? all : 0);
  ck_assert_int_eq(by_engines(&world, GATHER), wanted ? all : 0);
  ck_assert_int_eq(by_engines(&world, BROADCAST), 0); /* these read a peer's memory, and the ranks are of one process */
  ck_assert_int_eq(by_engines(&world, SCATTER), 0);
  ck_assert_int_eq(by_engines(&world, ALL_REDUCE), 0);
  ck_assert_int_eq(by_engines(&world, REDUCE_SCATTER), 0);
  ck_assert_int_eq(by_engines(&world, REDUCE), 0);
  close_world(&world);
  unsetenv("TUTTI_COPY_ENGINES");
  unsetenv("NCCL_CTA_POLICY");
}
END_TEST

/* In place, where there is a program for it. */
START_TEST(in_place)
{
  enum { N = 3, COUNT = 5000 };
  struct world world;
  open_world(&world, N, "Mapped");
  int before = fake_mapped_works();
  for (int r = 0; r < N; r++)
    for (int i = 0; i < COUNT; i++) ((uint32_t *)(void *)world.buffers[r])[i] = (uint32_t)(r * 1000 + i);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclAllReduce(world.buffers[r], world.buffers[r], COUNT, ncclUint32, ncclSum, world.comms[r], NULL));
  ok(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    ck_assert(fake_stream_wait(NULL, LONG_MS));
    for (int i = 0; i < COUNT; i++)
      ck_assert_uint_eq(((uint32_t *)(void *)world.buffers[r])[i], (uint32_t)(3000 + 3 * i));
  }
  ck_assert_int_eq(fake_mapped_works() - before, N);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclAlltoAll(world.buffers[r], world.buffers[r], 10, ncclUint32, world.comms[r], NULL));
  ok(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    ck_assert(fake_stream_wait(NULL, LONG_MS));
  }
  ck_assert_int_eq(fake_mapped_works() - before, N);
  close_world(&world);
}
END_TEST

/* An all-to-all whose outputs lie in windows, and which rank 0 alone has in place: the others' inputs lie elsewhere. */
START_TEST(in_place_on_one)
{
  enum { N = 3, COUNT = 5000 };
  struct world world;
  uint32_t *inputs[N], *outputs[N];
  open_world(&world, N, "Mapped");
  for (int r = 0; r < N; r++) {
    outputs[r] = (uint32_t *)(void *)world.buffers[r];
    inputs[r] = r == 0 ? outputs[r] : malloc(N * COUNT * sizeof(uint32_t));
    ck_assert_ptr_nonnull(inputs[r]);
    for (int i = 0; i < N * COUNT; i++) inputs[r][i] = (uint32_t)(r * 1000000 + i);
  }
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(ncclAlltoAll(inputs[r], outputs[r], COUNT, ncclUint32, world.comms[r], NULL));
  ok(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    ncclResult_t state;
    fake_set_device(r);
    bool waited = fake_stream_wait(NULL, LONG_MS);
    ok(ncclCommGetAsyncError(world.comms[r], &state));
    ck_assert_msg(waited && state == ncclSuccess, "rank %d: state %d: %s", r, state, ncclGetLastError(world.comms[r]));
  }
  for (int r = 0; r < N; r++)
    for (int i = 0; i < N * COUNT; i++)
      ck_assert_uint_eq(outputs[r][i], (uint32_t)(i / COUNT * 1000000 + r * COUNT + i % COUNT));
  for (int r = 1; r < N; r++) free(inputs[r]);
  close_world(&world);
}
END_TEST

/* More ranks than a program of the device can name: what has no other program goes as messages, in windows, too, but
 * not where it would overwrite what is still to be sent. */
START_TEST(few_peers)
{
  struct world world;
  fake_limit_peers(MOST - 2);
  open_world(&world, MOST, NULL);
  ck_assert(!run(&world, ALL_TO_ALL, 1000, true));
  ok(ncclGroupStart());
  ck_assert_int_eq(ncclAlltoAll(world.buffers[0], world.buffers[0], 10, ncclUint32, world.comms[0], NULL),
                   ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "sendbuff and recvbuff overlap"));
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidUsage);
  close_world(&world);
}
END_TEST

static int memories(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  return counts.memories;
}

/* A graph repeats operations on windows that were deregistered meanwhile: what it uses of them stays mapped until its
 * end. */
START_TEST(in_a_graph)
{
  enum { N = 3, COUNT = 5000 };
  struct world world;
  void *streams[N];
  struct fake_graph *graphs[N];
  setenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE", "0", 1); /* buffers of one group would need no window */
  open_world(&world, N, "Mapped");
  unsetenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE");
  for (int r = 0; r < N; r++) streams[r] = fake_stream_create(r);
  for (int r = 0; r < N; r++) fake_capture_begin(streams[r]);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclAllReduce(world.buffers[r], world.buffers[r] + BUFFER / 2, COUNT, ncclUint32, ncclSum, world.comms[r],
                     streams[r]));
  ok(ncclGroupEnd());
  for (int r = 0; r < N; r++) graphs[r] = fake_capture_end(streams[r]);
  int mapped = memories();
  for (int r = 0; r < N; r++) ok(ncclCommWindowDeregister(world.comms[r], world.windows[r]));
  ck_assert_int_eq(memories(), mapped);
  for (uint32_t time = 1; time < 4; time++) {
    for (int r = 0; r < N; r++)
      for (int i = 0; i < COUNT; i++) ((uint32_t *)(void *)world.buffers[r])[i] = time * (uint32_t)(r * 1000 + i);
    for (int r = 0; r < N; r++) fake_graph_replay(graphs[r], streams[r]);
    for (int r = 0; r < N; r++) ck_assert(fake_stream_wait(streams[r], LONG_MS));
    for (int r = 0; r < N; r++)
      for (int i = 0; i < COUNT; i++)
        if (((uint32_t *)(void *)(world.buffers[r] + BUFFER / 2))[i] != time * (uint32_t)(3000 + 3 * i))
          ck_abort_msg("rank %d, element %d", r, i);
  }
  for (int r = 0; r < N; r++) fake_graph_destroy(graphs[r]);
  ok(ncclGroupStart()); /* the next window's opening unmaps what nobody holds any more */
  for (int r = 0; r < N; r++)
    ok(ncclCommWindowRegister(world.comms[r], world.buffers[r], 4096, &world.windows[r], NCCL_WIN_COLL_SYMMETRIC));
  ok(ncclGroupEnd());
  ck_assert_int_eq(memories(), mapped);
  for (int r = 0; r < N; r++) fake_stream_destroy(streams[r]);
  close_world(&world);
  ck_assert_int_eq(memories(), 0);
}
END_TEST

/* A buffer of a window on one rank, and another on the other: both learn of it, where messages are of one kind. */
START_TEST(on_one_rank)
{
  struct world world;
  struct operation plain = {.kind = ALL_REDUCE, .n = 2, .rank = 1, .count = 1000};
  setenv("NCCL_PROTO", _i ? "^LL128" : "Simple", 1);
  open_world(&world, 2, "Mapped");
  unsetenv("NCCL_PROTO");
  operation_open(&plain);
  ok(ncclGroupStart());
  ok(ncclAllReduce(world.buffers[0], world.buffers[0], 1000, ncclUint32, ncclSum, world.comms[0], NULL));
  ok(operation_call(&plain, world.comms[1], NULL));
  ok(ncclGroupEnd());
  for (int r = 0; r < 2; r++) {
    ncclResult_t state = ncclSuccess;
    for (uint64_t end = now_ms() + 10000; state == ncclSuccess && now_ms() < end; usleep(1000))
      ok(ncclCommGetAsyncError(world.comms[r], &state));
    ck_assert_int_eq(state, ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(world.comms[r]), "MAPPED"));
  }
  for (int r = 0; r < 2; r++) ok(ncclCommAbort(world.comms[r]));
  for (int r = 0; r < 2; r++) ok(ncclMemFree(world.buffers[r]));
  operation_close(&plain);
}
END_TEST

void add_mapped(Suite *suite)
{
  TCase *tests = tcase_create("mapped");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, by_name, 0, MOST - 1);
  tcase_add_test(tests, by_cost);
  tcase_add_loop_test(tests, engines, 0, 4);
  tcase_add_test(tests, in_place);
  tcase_add_test(tests, in_place_on_one);
  tcase_add_test(tests, few_peers);
  tcase_add_test(tests, in_a_graph);
  tcase_add_loop_test(tests, on_one_rank, 0, 2);
  suite_add_tcase(suite, tests);
}
