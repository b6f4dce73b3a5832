/* Messages in place between ranks that one group has together: pairs, rings, chains, in graphs and not; and all that
 * has them copied on both sides. */
#include <stdlib.h>
#include <string.h>
#include "base/param.h"
#include "collectives.h"
#include "messages.h"
#include "tests/common/effort.h"
#include "tests/fakes/device/fake.h"

enum { MOST = 4, LONG_MS = 60000, BYTES = MESSAGE_BYTES + 4096 };

struct world {
  int n;
  ncclComm_t comms[MOST];
  struct messages messages[MOST];
  void *inputs[MOST], *outputs[MOST];
};

static void *allocate(int rank, bool exported)
{
  void *ptr = fake_user_alloc(rank, BYTES, exported, NULL);
  ck_assert_ptr_nonnull(ptr);
  return ptr;
}

static void open_world(struct world *world, int n)
{
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_MIN_NCHANNELS");
  tt_param_reset();
  memset(world, 0, sizeof *world);
  world->n = n;
  ok(ncclCommInitAll(world->comms, n, NULL));
  for (int r = 0; r < n; r++) {
    world->inputs[r] = allocate(r, true);
    world->outputs[r] = allocate(r, true);
  }
}

static void close_world(struct world *world)
{
  for (int r = 0; r < world->n; r++) {
    ok(ncclCommDestroy(world->comms[r]));
    ck_assert(fake_user_free(world->inputs[r]) && fake_user_free(world->outputs[r]));
  }
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.memories, 0);
}

static void place(struct world *world, const int *to, const int *from, size_t count)
{
  for (int r = 0; r < world->n; r++)
    world->messages[r] = (struct messages){.rank = r,
                                           .to = to[r],
                                           .from = from[r],
                                           .count = count,
                                           .in = (uint32_t *)(void *)((char *)world->inputs[r] + 64 * r),
                                           .out = (uint32_t *)(void *)((char *)world->outputs[r] + 4 * r)};
}

static void place_ring(struct world *world, size_t count)
{
  int to[MOST], from[MOST];
  for (int r = 0; r < world->n; r++) {
    to[r] = (r + 1) % world->n;
    from[r] = (r + world->n - 1) % world->n;
  }
  place(world, to, from, count);
}

static void call_all(const struct world *world)
{
  ok(ncclGroupStart());
  for (int r = 0; r < world->n; r++) ok(messages_call(&world->messages[r], world->comms[r], NULL));
  ok(ncclGroupEnd());
}

static void wait_all(const struct world *world)
{
  for (int r = 0; r < world->n; r++) {
    fake_set_device(r);
    ck_assert(fake_stream_wait(NULL, LONG_MS));
  }
}

/* How many ranks did it in place; the second time with works that were kept. */
static int run(const struct world *world)
{
  int before = fake_mapped_works(), used = 0;
  for (uint32_t time = 0; time < 2; time++) {
    for (int r = 0; r < world->n; r++) messages_fill(&world->messages[r], time);
    call_all(world);
    wait_all(world);
    for (int r = 0; r < world->n; r++) messages_check(&world->messages[r], time);
    if (time == 0) used = fake_mapped_works() - before;
  }
  ck_assert_int_eq(fake_mapped_works() - before, 2 * used);
  return used;
}

/* Pairs are rings of two. _i: ranks - 2, and whether copy engines are wanted. */
START_TEST(rings)
{
  struct world world;
  bool wanted = _i < MOST - 1;
  setenv("TUTTI_COPY_ENGINES", wanted ? "1" : "0", 1);
  open_world(&world, _i % (MOST - 1) + 2);
  unsetenv("TUTTI_COPY_ENGINES");
  int engines = fake_engine_works();
  place_ring(&world, MESSAGE_COUNT);
  ck_assert_int_eq(run(&world), world.n);
  ck_assert_int_eq(fake_engine_works() - engines, wanted ? 2 * world.n : 0);
  place_ring(&world, MESSAGE_COUNT / 2);
  ck_assert_int_eq(run(&world), 0);
  place_ring(&world, MESSAGE_COUNT + 7);
  ck_assert_int_eq(run(&world), world.n);
  close_world(&world);
}
END_TEST

/* Who takes part is in place, whoever that is. */
START_TEST(at_random)
{
  struct world world;
  uint64_t random = 11;
  open_world(&world, MOST);
  for (int i = 0; i < EFFORT(12, 5); i++) {
    int to[MOST], from[MOST], busy = 0;
    messages_draw(MOST, &random, to, from);
    for (int r = 0; r < MOST; r++) busy += to[r] >= 0 || from[r] >= 0;
    place(&world, to, from, MESSAGE_COUNT + (size_t)i);
    ck_assert_int_eq(run(&world), busy);
  }
  close_world(&world);
}
END_TEST

/* Memory of one rank's that others cannot use: its sender copies, and whoever that one receives from; the other pair
 * does not. What a rank receives into is all that matters. */
START_TEST(memory_of_no_use)
{
  static const int to[] = {1, 2, -1, -1}, from[] = {-1, 0, 1, -1};
  struct world world;
  open_world(&world, MOST);
  ck_assert(fake_user_free(world.outputs[2]) && fake_user_free(world.inputs[0]));
  world.outputs[2] = allocate(2, false);
  world.inputs[0] = allocate(0, false);
  place(&world, to, from, MESSAGE_COUNT);
  ck_assert_int_eq(run(&world), 0);
  place(&world, (const int[]){1, -1, 3, -1}, (const int[]){-1, 0, -1, 2}, MESSAGE_COUNT);
  ck_assert_int_eq(run(&world), 4);
  place(&world, (const int[]){1, 0, -1, 2}, (const int[]){1, 0, 3, -1}, MESSAGE_COUNT);
  ck_assert_int_eq(run(&world), 2);
  close_world(&world);
}
END_TEST

/* Groups of more than one work can do: two messages the same way, messages to several ranks, one that is small, a send
 * and a receive of different sizes, or into its own input. All of it is copied. */
START_TEST(too_many)
{
  struct world world;
  open_world(&world, 3);
  place_ring(&world, MESSAGE_COUNT);
  int before = fake_mapped_works();
  for (int r = 0; r < 3; r++) messages_fill(&world.messages[r], 5);
  size_t half = MESSAGE_COUNT / 2;
  for (int kind = 1; kind < 4; kind++) {
    ok(ncclGroupStart());
    for (int r = 0; r < 3; r++) {
      const struct messages *m = &world.messages[r];
      bool by_halves = kind != 3 && !(kind == 2 && r == 0);
      size_t sent = by_halves ? half : MESSAGE_COUNT;
      ok(ncclSend(m->in, sent, ncclUint32, m->to, world.comms[r], NULL));
      if (by_halves) ok(ncclSend(m->in + half, MESSAGE_COUNT - half, ncclUint32, m->to, world.comms[r], NULL));
      by_halves = kind != 3 && !(kind == 2 && m->from == 0);
      ok(ncclRecv(m->out, by_halves ? half : MESSAGE_COUNT, ncclUint32, m->from, world.comms[r], NULL));
      if (by_halves) ok(ncclRecv(m->out + half, MESSAGE_COUNT - half, ncclUint32, m->from, world.comms[r], NULL));
      if (kind != 3) continue;
      ok(ncclSend(m->in, 5, ncclUint32, m->from, world.comms[r], NULL));
      ok(ncclRecv(m->in + 8, 5, ncclUint32, m->to, world.comms[r], NULL));
    }
    ok(ncclGroupEnd());
    wait_all(&world);
    for (int r = 0; r < 3; r++) messages_fill(&world.messages[r], 5);
  }
  ck_assert_int_eq(fake_mapped_works(), before);
  place(&world, (const int[]){1, 0, -1}, (const int[]){1, 0, -1}, MESSAGE_COUNT);
  world.messages[0].out = world.messages[0].in + 64;
  call_all(&world);
  wait_all(&world);
  ck_assert_int_eq(fake_mapped_works(), before);
  close_world(&world);
}
END_TEST

/* Beside copies within a rank, and collectives before and after. */
START_TEST(beside_others)
{
  struct world world;
  open_world(&world, 3);
  place_ring(&world, MESSAGE_COUNT);
  int before = fake_mapped_works();
  static uint32_t sums[3][100], own[3][2][50];
  for (int r = 0; r < 3; r++) {
    messages_fill(&world.messages[r], 9);
    for (int i = 0; i < 50; i++) own[r][0][i] = (uint32_t)(r * 50 + i);
    for (int i = 0; i < 100; i++) sums[r][i] = (uint32_t)i;
  }
  ok(ncclGroupStart());
  for (int r = 2; r >= 0; r--) {
    ok(ncclRecv(own[r][1], 50, ncclUint32, r, world.comms[r], NULL));
    ok(messages_call(&world.messages[r], world.comms[r], NULL));
    ok(ncclSend(own[r][0], 50, ncclUint32, r, world.comms[r], NULL));
    ok(ncclAllReduce(sums[r], sums[r], 100, ncclUint32, ncclSum, world.comms[r], NULL));
  }
  ok(ncclGroupEnd());
  wait_all(&world);
  ck_assert_int_eq(fake_mapped_works() - before, 3);
  for (int r = 0; r < 3; r++) {
    messages_check(&world.messages[r], 9);
    ck_assert_mem_eq(own[r][1], own[r][0], sizeof own[r][0]);
    for (int i = 0; i < 100; i++) ck_assert_uint_eq(sums[r][i], (uint32_t)(3 * i));
  }
  close_world(&world);
}
END_TEST

/* _i: NCCL_GRAPH_REGISTER. */
START_TEST(captured)
{
  enum { N = 2, TIMES = 20 };
  struct world world;
  struct fake_graph *graphs[N];
  setenv("NCCL_GRAPH_REGISTER", _i ? "1" : "0", 1);
  open_world(&world, N);
  unsetenv("NCCL_GRAPH_REGISTER");
  place_ring(&world, MESSAGE_COUNT);
  ck_assert_int_eq(run(&world), N);
  int before = fake_mapped_works();
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    fake_capture_begin(NULL);
  }
  for (int t = 0; t < TIMES; t++) call_all(&world);
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    graphs[r] = fake_capture_end(NULL);
  }
  ck_assert_int_eq(fake_mapped_works() - before, _i ? N * TIMES : 0);
  for (uint32_t time = 0; time < 3; time++) {
    for (int r = 0; r < N; r++) messages_fill(&world.messages[r], time);
    for (int r = 0; r < N; r++) {
      fake_set_device(r);
      fake_graph_replay(graphs[r], NULL);
    }
    wait_all(&world);
    for (int r = 0; r < N; r++) messages_check(&world.messages[r], time);
  }
  for (int r = 0; r < N; r++) fake_graph_destroy(graphs[r]);
  close_world(&world);
}
END_TEST

/* Messages of earlier groups that were not all met: what both have in a group now is not one message. And what the user
 * does not want. */
START_TEST(of_other_groups)
{
  struct world world;
  open_world(&world, 2);
  static uint32_t one[2] = {1, 2}, two[2];
  place(&world, (const int[]){1, -1}, (const int[]){-1, 0}, MESSAGE_COUNT);
  for (int r = 0; r < 2; r++) messages_fill(&world.messages[r], 2);
  int before = fake_mapped_works();
  fake_stream_hold(NULL, true);
  ok(ncclSend(one, 2, ncclUint32, 1, world.comms[0], NULL)); /* what is received last */
  ok(ncclGroupStart());
  ok(ncclSend(world.messages[0].in, MESSAGE_COUNT, ncclUint32, 1, world.comms[0], NULL));
  ok(ncclRecv(two, 2, ncclUint32, 0, world.comms[1], NULL));
  ok(ncclGroupEnd());
  ok(ncclRecv(world.messages[1].out, MESSAGE_COUNT, ncclUint32, 0, world.comms[1], NULL));
  fake_set_device(0);
  fake_stream_hold(NULL, false);
  wait_all(&world);
  ck_assert_int_eq(fake_mapped_works(), before);
  ck_assert_mem_eq(two, one, sizeof one);
  messages_check(&world.messages[1], 2);
  close_world(&world);
  setenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE", "0", 1);
  open_world(&world, 2);
  unsetenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE");
  place_ring(&world, MESSAGE_COUNT);
  ck_assert_int_eq(run(&world), 0);
  close_world(&world);
}
END_TEST

/* Other sizes on the two sides are found out as ever. */
START_TEST(other_sizes)
{
  struct world world;
  open_world(&world, 2);
  int before = fake_mapped_works();
  ok(ncclGroupStart());
  ok(ncclSend(world.inputs[0], MESSAGE_COUNT, ncclUint32, 1, world.comms[0], NULL));
  ok(ncclRecv(world.outputs[1], MESSAGE_COUNT - 5, ncclUint32, 0, world.comms[1], NULL));
  ok(ncclGroupEnd());
  ck_assert_int_eq(fake_mapped_works(), before);
  ncclResult_t failed = ncclSuccess;
  for (uint64_t end = now_ms() + LONG_MS; failed == ncclSuccess && now_ms() < end;)
    ok(ncclCommGetAsyncError(world.comms[1], &failed));
  ck_assert_int_eq(failed, ncclInvalidUsage);
  const char *text = ncclGetLastError(world.comms[1]);
  ck_assert_msg(strstr(text, "of 5242860 x") != NULL && strstr(text, "of 5242880 x") != NULL, "%s", text);
  for (int r = 0; r < 2; r++) ok(ncclCommAbort(world.comms[r]));
  for (int r = 0; r < 2; r++) ck_assert(fake_user_free(world.inputs[r]) && fake_user_free(world.outputs[r]));
}
END_TEST

void add_pairs(Suite *suite)
{
  TCase *tests = tcase_create("messages of one group");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, rings, 0, 2 * (MOST - 1));
  tcase_add_test(tests, at_random);
  tcase_add_test(tests, memory_of_no_use);
  tcase_add_test(tests, too_many);
  tcase_add_test(tests, beside_others);
  tcase_add_loop_test(tests, captured, 0, 2);
  tcase_add_test(tests, of_other_groups);
  tcase_add_test(tests, other_sizes);
  suite_add_tcase(suite, tests);
}
