/* Factors of ncclRedOpCreatePreMulSum in the device's memory: they count as they are when the operation runs, eagerly
 * and in a graph that is replayed. */
#include <string.h>
#include "base/log.h"
#include "collectives.h"
#include "kernels/host/half.h"
#include "tests/fakes/device/fake.h"

enum { N = 3, COUNT = 1000, LONG_MS = 60000 };

struct scene {
  ncclComm_t comms[N];
  void *streams[N];
  int32_t data[N][COUNT], result[N][COUNT], factors[N];
  ncclRedOp_t ops[N];
};
static struct scene scene;

static void open_scene(void)
{
  ok(ncclCommInitAll(scene.comms, N, NULL));
  for (int r = 0; r < N; r++) {
    scene.streams[r] = fake_stream_create(r);
    for (int i = 0; i < COUNT; i++) scene.data[r][i] = i + r;
    ok(ncclRedOpCreatePreMulSum(&scene.ops[r], &scene.factors[r], ncclInt32, ncclScalarDevice, scene.comms[r]));
  }
}

static void close_scene(void)
{
  for (int r = 0; r < N; r++) {
    ok(ncclRedOpDestroy(scene.ops[r], scene.comms[r]));
    ok(ncclCommDestroy(scene.comms[r]));
    fake_stream_destroy(scene.streams[r]);
  }
}

static void call_all(void)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclAllReduce(scene.data[r], scene.result[r], COUNT, ncclInt32, scene.ops[r], scene.comms[r], scene.streams[r]));
  ok(ncclGroupEnd());
}

static void set_factors(int32_t first)
{
  for (int r = 0; r < N; r++) scene.factors[r] = first + 10 * r;
}

static void expect_sum(int32_t first)
{
  for (int r = 0; r < N; r++) ck_assert(fake_stream_wait(scene.streams[r], LONG_MS));
  for (int r = 0; r < N; r++)
    for (int i = 0; i < COUNT; i++) {
      int32_t sum = 0;
      for (int k = 0; k < N; k++) sum += (first + 10 * k) * (i + k);
      ck_assert_int_eq(scene.result[r][i], sum);
    }
  memset(scene.result, 0, sizeof scene.result);
}

static void hold_all(bool hold)
{
  for (int r = 0; r < N; r++) fake_stream_hold(scene.streams[r], hold);
}

START_TEST(read_when_it_runs)
{
  open_scene();
  for (int32_t first = 2; first < 8; first++) { /* works are kept from the first on */
    set_factors(first);
    call_all();
    expect_sum(first);
  }
  hold_all(true);
  set_factors(100);
  call_all();
  set_factors(-5);
  hold_all(false);
  expect_sum(-5);
  close_scene();
}
END_TEST

START_TEST(in_a_graph)
{
  struct fake_graph *graphs[N];
  open_scene();
  set_factors(1);
  for (int r = 0; r < N; r++) fake_capture_begin(scene.streams[r]);
  call_all();
  for (int r = 0; r < N; r++) graphs[r] = fake_capture_end(scene.streams[r]);
  for (int32_t first = 3; first < 6; first++) {
    set_factors(first);
    for (int r = 0; r < N; r++) fake_graph_replay(graphs[r], scene.streams[r]);
    expect_sum(first);
  }
  for (int r = 0; r < N; r++) fake_graph_destroy(graphs[r]);
  close_scene();
}
END_TEST

/* Two factors at different addresses, in calls that are alike otherwise; and one that is given at once. */
START_TEST(each_its_own)
{
  static int32_t others[N] = {7, 7, 7};
  ncclRedOp_t first[N], second[N], immediate[N];
  int32_t three = 3;
  open_scene();
  memcpy(first, scene.ops, sizeof first);
  for (int r = 0; r < N; r++) {
    ok(ncclRedOpCreatePreMulSum(&second[r], &others[r], ncclInt32, ncclScalarDevice, scene.comms[r]));
    ok(ncclRedOpCreatePreMulSum(&immediate[r], &three, ncclInt32, ncclScalarHostImmediate, scene.comms[r]));
    others[r] = 4 + 10 * r;
  }
  three = 0;
  set_factors(2);
  for (int time = 0; time < 3; time++) {
    memcpy(scene.ops, first, sizeof first);
    call_all();
    expect_sum(2);
    memcpy(scene.ops, second, sizeof second);
    call_all();
    expect_sum(4);
    memcpy(scene.ops, immediate, sizeof immediate);
    call_all();
    for (int r = 0; r < N; r++) ck_assert(fake_stream_wait(scene.streams[r], LONG_MS));
    ck_assert_int_eq(scene.result[0][5], 3 * (5 + 6 + 7));
  }
  for (int r = 0; r < N; r++) {
    ok(ncclRedOpDestroy(second[r], scene.comms[r]));
    ok(ncclRedOpDestroy(immediate[r], scene.comms[r]));
  }
  memcpy(scene.ops, first, sizeof first);
  close_scene();
}
END_TEST

/* One rank, and types that are combined as floats. */
START_TEST(types)
{
  static uint16_t half = 0x4200, data = 0x4000, result; /* 3 and 2 */
  static double factor = 0.5, value = 9, doubled;
  ncclComm_t comm;
  ncclRedOp_t op;
  ok(ncclCommInitAll(&comm, 1, NULL));
  void *stream = fake_stream_create(0);
  ok(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat16, ncclScalarDevice, comm));
  ok(ncclAllReduce(&data, &result, 1, ncclFloat16, op, comm, stream));
  ck_assert(fake_stream_wait(stream, LONG_MS));
  ck_assert(tt_half_to_float(result) == 6.0f);
  ok(ncclRedOpDestroy(op, comm));
  ok(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat64, ncclScalarDevice, comm));
  ok(ncclReduce(&value, &doubled, 1, ncclFloat64, op, 0, comm, stream));
  ck_assert(fake_stream_wait(stream, LONG_MS));
  ck_assert(doubled == 4.5);
  ok(ncclRedOpDestroy(op, comm));
  ok(ncclCommDestroy(comm));
  fake_stream_destroy(stream);
}
END_TEST

void add_scalars(Suite *suite)
{
  TCase *tests = tcase_create("scalars");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, read_when_it_runs);
  tcase_add_test(tests, in_a_graph);
  tcase_add_test(tests, each_its_own);
  tcase_add_test(tests, types);
  suite_add_tcase(suite, tests);
}
