/* Streams in one process: calls return at once, works run in order, graphs repeat them with new data, and nothing is
 * left behind. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "collectives.h"
#include "plan/host_internal.h"
#include "tests/common/effort.h"
#include "tests/fakes/device/fake.h"
#include "tutti.h"

#define MOST_RANKS 5
#define LONG_MS 60000

static void open_comms(ncclComm_t *comms, int n)
{
  ok(ncclCommInitAll(comms, n, NULL));
}

static void close_comms(ncclComm_t *comms, int n)
{
  for (int r = 0; r < n; r++) ok(ncclCommDestroy(comms[r]));
}

/* The default stream of each rank's device, or its own. */
static void wait_streams(void *const *streams, int n)
{
  for (int r = 0; r < n; r++) {
    fake_set_device(r);
    ck_assert_msg(fake_stream_wait(streams[r], LONG_MS), "rank %d is not done", r);
  }
}

static void call_all(struct operation *operations, int n, ncclComm_t *comms, void *const *streams)
{
  ok(ncclGroupStart());
  for (int r = 0; r < n; r++) ok(operation_call(&operations[r], comms[r], streams[r]));
  ok(ncclGroupEnd());
}

static const size_t counts[] = {1, 33, 1000, EFFORT(50000, 10000)};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* Each collective with each count and root, one group after the other without a wait. */
static void run_all(int n, ncclComm_t *comms, void *const *streams)
{
  for (int kind = 0; kind < KINDS; kind++) {
    if (kind == SEND_RECV && n == 1) continue;
    struct operation operations[COUNTS][MOST_RANKS];
    for (int c = 0; c < COUNTS; c++) {
      for (int r = 0; r < n; r++) {
        operations[c][r] = (struct operation){
            .kind = (enum kind)kind, .n = n, .rank = r, .root = c % n, .count = counts[c], .seed = (uint32_t)c};
        operation_open(&operations[c][r]);
      }
      call_all(operations[c], n, comms, streams);
    }
    wait_streams(streams, n);
    for (int c = 0; c < COUNTS; c++)
      for (int r = 0; r < n; r++) {
        operation_check(&operations[c][r]);
        operation_close(&operations[c][r]);
      }
  }
}

static void set(const char *name, const char *text)
{
  if (text)
    setenv(name, text, 1);
  else
    unsetenv(name);
}

/* _i: number of ranks - 1 + MOST_RANKS * setting. */
START_TEST(collectives)
{
  static const char *const settings[][4] = {
      {NULL, NULL, NULL},
      {NULL, NULL, NULL, "1"},
      {"Ring", "Simple", "3"},
      {"Ring;AllReduce:Tree", "LL", NULL},
      {"AllReduce:TwoShot,OneShot;AllGather:Direct;ReduceScatter:Direct", "Simple", NULL},
      {"Ring;AllGather:PAT;ReduceScatter:PAT", NULL, NULL}};
  int n = _i % MOST_RANKS + 1, setting = _i / MOST_RANKS;
  ncclComm_t comms[MOST_RANKS];
  void *streams[MOST_RANKS] = {NULL};
  set("NCCL_ALGO", settings[setting][0]);
  set("NCCL_PROTO", settings[setting][1]);
  set("NCCL_MIN_NCHANNELS", settings[setting][2]);
  set("NCCL_P2P_DISABLE", over_network ? "1" : settings[setting][3]);
  tt_param_reset();
  open_comms(comms, n);
  run_all(n, comms, streams);
  for (int r = 0; r < n; r++) streams[r] = fake_stream_create(r);
  run_all(n, comms, streams);
  close_comms(comms, n);
  for (int r = 0; r < n; r++) fake_stream_destroy(streams[r]);
}
END_TEST

/* What passes over a network is counted, and not how long it takes, since it may wait for its stream. */
START_TEST(not_timed)
{
  enum { N = 2 };
  ncclComm_t comms[N];
  void *none[N] = {NULL};
  tuttiNetStats_t stats = {.size = sizeof stats};
  open_comms(comms, N);
  run_all(N, comms, none);
  ok(tuttiCommNetStats(comms[0], &stats));
  ck_assert((stats.send.messages > 0) == over_network);
  ck_assert_uint_eq(stats.busyNs, 0);
  close_comms(comms, N);
}
END_TEST

/* Calls that differ in nothing but their buffers: in one group, and again and again. */
START_TEST(alike)
{
  enum { N = 3, TIMES = 4 };
  ncclComm_t comms[N];
  void *none[N] = {NULL};
  struct operation operations[2][N];
  open_comms(comms, N);
  for (int c = 0; c < 2; c++)
    for (int r = 0; r < N; r++) {
      operations[c][r] = (struct operation){.kind = ALL_REDUCE, .n = N, .rank = r, .count = 5000};
      operation_open(&operations[c][r]);
    }
  for (uint32_t time = 0; time < TIMES; time++) {
    for (int c = 0; c < 2; c++)
      for (int r = 0; r < N; r++) operation_fill(&operations[c][r], 2 * time + (uint32_t)c);
    ok(ncclGroupStart());
    call_all(operations[0], N, comms, none);
    call_all(operations[1], N, comms, none);
    ok(ncclGroupEnd());
    wait_streams(none, N);
    for (int c = 0; c < 2; c++)
      for (int r = 0; r < N; r++) operation_check(&operations[c][r]);
  }
  for (int c = 0; c < 2; c++)
    for (int r = 0; r < N; r++) operation_close(&operations[c][r]);
  close_comms(comms, N);
}
END_TEST

/* One thread makes all communicators in a group, choosing a device before each; the work is done by others. */
START_TEST(chosen_devices)
{
  enum { N = 3 };
  static const int devices[N] = {6, 0, 3};
  ncclComm_t comms[N];
  ncclUniqueId id;
  struct operation operations[N];
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    fake_set_device(devices[r]);
    ok(ncclCommInitRank(&comms[r], N, id, r));
  }
  ok(ncclGroupEnd());
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    int device;
    ok(ncclCommCuDevice(comms[r], &device));
    ck_assert_int_eq(device, devices[r]);
    operations[r] = (struct operation){.kind = ALL_REDUCE, .n = N, .rank = r, .count = 100, .seed = 7};
    operation_open(&operations[r]);
    ok(operation_call(&operations[r], comms[r], NULL));
  }
  ok(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    fake_set_device(devices[r]);
    ck_assert(fake_stream_wait(NULL, LONG_MS));
    operation_check(&operations[r]);
    operation_close(&operations[r]);
  }
  close_comms(comms, N);
}
END_TEST

/* A group's works of a communicator are one launch; the call returns while the streams do not even begin. */
START_TEST(returns_when_enqueued)
{
  enum { N = 3 };
  ncclComm_t comms[N];
  void *streams[N];
  struct operation first[N], second[N];
  struct fake_counts launched;
  open_comms(comms, N);
  for (int r = 0; r < N; r++) {
    streams[r] = fake_stream_create(r);
    fake_stream_hold(streams[r], true);
    first[r] = (struct operation){.kind = ALL_REDUCE, .n = N, .rank = r, .count = 5000, .seed = 1};
    second[r] = (struct operation){.kind = SEND_RECV, .n = N, .rank = r, .count = 700, .seed = 2};
    operation_open(&first[r]);
    operation_open(&second[r]);
  }
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    ok(operation_call(&first[r], comms[r], streams[r]));
    ok(operation_call(&second[r], comms[r], streams[r]));
  }
  ok(ncclGroupEnd());
  fake_count(&launched);
  ck_assert_int_eq(launched.launches, N);
  for (int r = 0; r < N; r++) {
    ck_assert(!fake_stream_wait(streams[r], 0));
    ck_assert_uint_eq(first[r].out[0], 0x33333333u);
    fake_stream_hold(streams[r], false);
  }
  wait_streams(streams, N);
  for (int r = 0; r < N; r++) {
    operation_check(&first[r]);
    operation_check(&second[r]);
    operation_close(&first[r]);
    operation_close(&second[r]);
  }
  close_comms(comms, N);
  for (int r = 0; r < N; r++) fake_stream_destroy(streams[r]);
}
END_TEST

/* Operations of a communicator on two streams run in the order of the calls. The larger ones need more scratch memory
 * while the smaller ones have not begun. */
START_TEST(two_streams)
{
  enum { N = 3, OPERATIONS = 6 };
  static const enum kind kinds[] = {REDUCE_SCATTER, ALL_REDUCE, ALL_GATHER};
  ncclComm_t comms[N];
  void *streams[2][N];
  struct operation operations[OPERATIONS][N];
  set("NCCL_ALGO", "Ring;ReduceScatter:PAT;AllGather:PAT"); /* which use scratch memory */
  tt_param_reset();
  open_comms(comms, N);
  for (int s = 0; s < 2; s++)
    for (int r = 0; r < N; r++) {
      streams[s][r] = fake_stream_create(r);
      fake_stream_hold(streams[s][r], true);
    }
  for (int k = 0; k < OPERATIONS; k++) {
    for (int r = 0; r < N; r++) {
      operations[k][r] = (struct operation){
          .kind = kinds[k % 3], .n = N, .rank = r, .count = (size_t)10 << (3 * k), .seed = (uint32_t)k};
      operation_open(&operations[k][r]);
    }
    call_all(operations[k], N, comms, streams[k % 2]);
  }
  for (int s = 1; s >= 0; s--)
    for (int r = 0; r < N; r++) fake_stream_hold(streams[s][r], false);
  for (int s = 0; s < 2; s++) wait_streams(streams[s], N);
  for (int k = 0; k < OPERATIONS; k++)
    for (int r = 0; r < N; r++) {
      operation_check(&operations[k][r]);
      operation_close(&operations[k][r]);
    }
  close_comms(comms, N);
  for (int s = 0; s < 2; s++)
    for (int r = 0; r < N; r++) fake_stream_destroy(streams[s][r]);
}
END_TEST

/* The host device's streams are none of this device's, which would follow the pointer. */
START_TEST(host_streams)
{
  ncclComm_t comm;
  cudaStream_t stream;
  int32_t data = 0;
  open_comms(&comm, 1);
  ok(tuttiStreamCreate(&stream));
  for (int destroyed = 0; destroyed < 2; destroyed++) {
    ck_assert_int_eq(ncclAllReduce(&data, &data, 1, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument);
    ck_assert_msg(strstr(tt_log_thread_error(), "of tuttiStreamCreate") != NULL, "%s", tt_log_thread_error());
    if (destroyed == 0) ok(tuttiStreamDestroy(stream));
  }
  close_comms(&comm, 1);
}
END_TEST

/* Threads that call for ranks of one process do not meet at the lock of host streams, which this test holds. */
START_TEST(no_common_lock)
{
  enum { N = 2 };
  ncclComm_t comms[N];
  void *streams[N];
  struct operation operations[2][N];
  open_comms(comms, N);
  for (int r = 0; r < N; r++) streams[r] = fake_stream_create(r);
  pthread_mutex_lock(&tt_host_lock);
  for (int k = 0; k < 2; k++) {
    for (int r = 0; r < N; r++) {
      operations[k][r] =
          (struct operation){.kind = k == 0 ? ALL_REDUCE : SEND_RECV, .n = N, .rank = r, .count = 10, .seed = 1};
      operation_open(&operations[k][r]);
    }
    call_all(operations[k], N, comms, streams);
  }
  pthread_mutex_unlock(&tt_host_lock);
  wait_streams(streams, N);
  for (int k = 0; k < 2; k++)
    for (int r = 0; r < N; r++) {
      operation_check(&operations[k][r]);
      operation_close(&operations[k][r]);
    }
  close_comms(comms, N);
  for (int r = 0; r < N; r++) fake_stream_destroy(streams[r]);
}
END_TEST

/* A group asks about its stream once, and about others each time; the next group asks again. */
START_TEST(asked_once)
{
  enum { CALLS = 4 };
  ncclComm_t comm;
  void *streams[2] = {fake_stream_create(0), fake_stream_create(0)};
  int32_t in[CALLS] = {1, 2, 3, 4}, out[CALLS] = {0};
  open_comms(&comm, 1);
  for (int group = 0; group < 3; group++) {
    int before = fake_stream_checks();
    ok(ncclGroupStart());
    for (int c = 0; c < CALLS; c++)
      ok(ncclAllReduce(&in[c], &out[c], 1, ncclInt32, ncclSum, comm, streams[group == 2 ? c % 2 : 0]));
    ok(ncclGroupEnd());
    ck_assert_int_eq(fake_stream_checks() - before, group == 2 ? 1 + CALLS / 2 : 1);
  }
  for (int s = 0; s < 2; s++) ck_assert(fake_stream_wait(streams[s], LONG_MS));
  ck_assert_mem_eq(out, in, sizeof in);
  close_comms(&comm, 1);
  for (int s = 0; s < 2; s++) fake_stream_destroy(streams[s]);
}
END_TEST

/* Messages that a rank sends to itself are kept like others, and are what they would be if each was planned anew: the
 * fake device compares. */
START_TEST(own_messages)
{
  enum { TIMES = 5, COUNT = 1000 };
  static int32_t in[TIMES][2][COUNT], out[TIMES][2][COUNT];
  ncclComm_t comm;
  void *stream = fake_stream_create(0);
  open_comms(&comm, 1);
  for (int t = 0; t < TIMES; t++) {
    for (int i = 0; i < 2 * COUNT; i++) in[t][i / COUNT][i % COUNT] = 10000 * t + i;
    ok(ncclGroupStart());
    for (int m = 0; m < 2; m++) { /* of different lengths at times, so that some are new */
      size_t count = (size_t)(m == 1 && t % 2 ? COUNT / 2 : COUNT);
      ok(ncclSend(in[t][m], count, ncclInt32, 0, comm, stream));
      ok(ncclRecv(out[t][m], count, ncclInt32, 0, comm, stream));
    }
    ok(ncclGroupEnd());
  }
  ck_assert(fake_stream_wait(stream, LONG_MS));
  for (int t = 0; t < TIMES; t++) {
    ck_assert_mem_eq(out[t][0], in[t][0], sizeof in[t][0]);
    ck_assert_mem_eq(out[t][1], in[t][1], sizeof in[t][1] / (t % 2 ? 2 : 1));
    ck_assert_int_eq(out[t][1][COUNT - 1], t % 2 ? 0 : in[t][1][COUNT - 1]);
  }
  close_comms(&comm, 1);
  fake_stream_destroy(stream);
}
END_TEST

/* Every collective in one graph, repeated with other data, and other operations in between. */
START_TEST(graphs)
{
  enum { N = 4, AGAIN = 4 };
  ncclComm_t comms[N];
  void *streams[N];
  struct operation operations[2 * KINDS][N], eager[N];
  struct fake_graph *graphs[N];
  open_comms(comms, N);
  for (int r = 0; r < N; r++) {
    streams[r] = fake_stream_create(r);
    fake_capture_begin(streams[r]);
    eager[r] = (struct operation){.kind = ALL_REDUCE, .n = N, .rank = r, .count = 3000};
    operation_open(&eager[r]);
  }
  for (int k = 0; k < 2 * KINDS; k++) {
    for (int r = 0; r < N; r++) {
      operations[k][r] = (struct operation){
          .kind = (enum kind)(k / 2), .n = N, .rank = r, .root = k % N, .count = k % 2 ? 9000 : 50, .seed = 0};
      operation_open(&operations[k][r]);
    }
    call_all(operations[k], N, comms, streams);
  }
  for (int r = 0; r < N; r++) graphs[r] = fake_capture_end(streams[r]);
  for (int again = 0; again < AGAIN; again++) {
    for (int r = 0; r < N; r++) {
      for (int k = 0; k < 2 * KINDS; k++) operation_fill(&operations[k][r], (uint32_t)(100 * again + k));
      operation_fill(&eager[r], (uint32_t)again);
      fake_graph_replay(graphs[r], streams[r]);
    }
    call_all(eager, N, comms, streams);
    wait_streams(streams, N);
    for (int r = 0; r < N; r++) {
      for (int k = 0; k < 2 * KINDS; k++) operation_check(&operations[k][r]);
      operation_check(&eager[r]);
    }
  }
  close_comms(comms, N);
  for (int r = 0; r < N; r++) {
    for (int k = 0; k < 2 * KINDS; k++) operation_close(&operations[k][r]);
    operation_close(&eager[r]);
    fake_graph_replay(graphs[r], streams[r]); /* of a communicator that is gone: nothing happens */
    ck_assert(fake_stream_wait(streams[r], LONG_MS));
    fake_graph_destroy(graphs[r]);
    fake_stream_destroy(streams[r]);
  }
}
END_TEST

/* One rank repeats a graph where the other calls: each slot's signature must be the same. */
START_TEST(graph_meets_calls)
{
  ncclComm_t comms[2];
  void *streams[2];
  struct operation operations[2];
  struct fake_graph *graph;
  open_comms(comms, 2);
  for (int r = 0; r < 2; r++) {
    streams[r] = fake_stream_create(r);
    operations[r] = (struct operation){.kind = (enum kind)_i, .n = 2, .rank = r, .count = 300};
    operation_open(&operations[r]);
  }
  call_all(operations, 2, comms, streams);
  fake_capture_begin(streams[0]);
  ok(operation_call(&operations[0], comms[0], streams[0]));
  graph = fake_capture_end(streams[0]);
  for (uint32_t again = 0; again < 4; again++) {
    wait_streams(streams, 2);
    for (int r = 0; r < 2; r++) operation_fill(&operations[r], again);
    fake_graph_replay(graph, streams[0]);
    ok(operation_call(&operations[1], comms[1], streams[1]));
    wait_streams(streams, 2);
    for (int r = 0; r < 2; r++) operation_check(&operations[r]);
  }
  close_comms(comms, 2);
  fake_graph_destroy(graph);
  for (int r = 0; r < 2; r++) {
    operation_close(&operations[r]);
    fake_stream_destroy(streams[r]);
  }
}
END_TEST

static void *release_later(void *arg)
{
  void **streams = arg;
  usleep(200000);
  for (int r = 0; r < 2; r++) fake_stream_hold(streams[r], false);
  return NULL;
}

/* _i: by ncclCommDestroy alone, or after ncclCommFinalize. */
START_TEST(the_end_waits)
{
  ncclComm_t comms[2];
  void *streams[2];
  struct operation operations[2];
  pthread_t thread;
  open_comms(comms, 2);
  for (int r = 0; r < 2; r++) {
    streams[r] = fake_stream_create(r);
    fake_stream_hold(streams[r], true);
    operations[r] = (struct operation){.kind = ALL_REDUCE, .n = 2, .rank = r, .count = 20000, .seed = 3};
    operation_open(&operations[r]);
  }
  call_all(operations, 2, comms, streams);
  ck_assert_int_eq(pthread_create(&thread, NULL, release_later, streams), 0);
  for (int r = 0; r < 2; r++) {
    if (_i == 1) ok(ncclCommFinalize(comms[r]));
    if (_i == 1) operation_check(&operations[r]);
    ok(ncclCommDestroy(comms[r]));
    operation_check(&operations[r]);
  }
  pthread_join(thread, NULL);
  for (int r = 0; r < 2; r++) {
    operation_close(&operations[r]);
    fake_stream_destroy(streams[r]);
  }
}
END_TEST

START_TEST(nothing_is_left)
{
  enum { N = 4 };
  ncclComm_t comms[N];
  void *streams[N] = {NULL};
  struct fake_counts counts;
  int threads = 0, descriptors = 0;
  for (int again = 0; again < 3; again++) {
    open_comms(comms, N);
    run_all(N, comms, streams);
    close_comms(comms, N);
    fake_count(&counts);
    ck_assert_int_eq(counts.contexts + counts.memories + counts.twins + counts.streams + counts.launches + counts.hosts,
                     0);
    for (int waited = 0; again > 0 && waited < LONG_MS && held_threads() > threads; waited++) usleep(1000);
    if (again > 0) ck_assert_int_le(held_threads(), threads); /* the first time the root's thread may be counted */
    if (again > 0) ck_assert_int_le(held_descriptors(), descriptors);
    threads = held_threads();
    descriptors = held_descriptors();
  }
}
END_TEST

void add_streams(Suite *suite)
{
  TCase *tests = tcase_create("streams");
  tcase_set_timeout(tests, 0);
  if (over_network)
    tcase_add_loop_test(tests, collectives, 2, 3);
  else
    tcase_add_loop_test(tests, collectives, 0, 6 * MOST_RANKS);
  tcase_add_test(tests, not_timed);
  tcase_add_test(tests, alike);
  tcase_add_test(tests, chosen_devices);
  tcase_add_test(tests, returns_when_enqueued);
  tcase_add_test(tests, two_streams);
  tcase_add_test(tests, host_streams);
  tcase_add_test(tests, no_common_lock);
  tcase_add_test(tests, asked_once);
  tcase_add_test(tests, own_messages);
  tcase_add_test(tests, graphs);
  tcase_add_loop_test(tests, graph_meets_calls, 0, over_network ? 2 : KINDS);
  tcase_add_loop_test(tests, the_end_waits, 0, 2);
  tcase_add_test(tests, nothing_is_left);
  suite_add_tcase(suite, tests);
}
