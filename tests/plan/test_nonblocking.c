/* Non-blocking communicators on a device with streams: each call begins, and is no longer in progress when its works
 * are enqueued, whatever the streams do meanwhile; also while a stream is captured. */
#include <stdlib.h>
#include <unistd.h>
#include "collectives.h"
#include "tests/fakes/device/fake.h"

enum { N = 3, LONG_MS = 60000 };

static void begun(ncclResult_t result)
{
  ck_assert_msg(result == ncclInProgress || result == ncclSuccess, "result %d: %s", result, ncclGetLastError(NULL));
}

static ncclResult_t outcome(ncclComm_t comm)
{
  ncclResult_t state = ncclInProgress;
  for (int waited = 0; state == ncclInProgress; waited++) {
    ok(ncclCommGetAsyncError(comm, &state));
    ck_assert_int_lt(waited, LONG_MS * 5);
    usleep(200);
  }
  return state;
}

static void settle(ncclComm_t *comms)
{
  for (int r = 0; r < N; r++) ck_assert_msg(outcome(comms[r]) == ncclSuccess, "%s", ncclGetLastError(comms[r]));
}

static void make(ncclComm_t *comms, void **streams)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  config.blocking = 0;
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    streams[r] = fake_stream_create(r);
    begun(ncclCommInitRankConfig(&comms[r], N, id, r, &config));
  }
  ck_assert_int_eq(ncclGroupEnd(), ncclInProgress);
  settle(comms);
}

static void call(struct operation *operations, ncclComm_t *comms, void **streams)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) begun(operation_call(&operations[r], comms[r], streams[r]));
  ck_assert_int_eq(ncclGroupEnd(), ncclInProgress);
  settle(comms);
}

static void wait_streams(void **streams)
{
  for (int r = 0; r < N; r++) ck_assert_msg(fake_stream_wait(streams[r], LONG_MS), "rank %d is not done", r);
}

static void open_operations(struct operation *operations, enum kind kind)
{
  for (int r = 0; r < N; r++) {
    operations[r] = (struct operation){.kind = kind, .n = N, .rank = r, .root = kind % N, .count = 3000, .seed = 5};
    operation_open(&operations[r]);
  }
}

static void close_operations(struct operation *operations)
{
  for (int r = 0; r < N; r++) {
    operation_check(&operations[r]);
    operation_close(&operations[r]);
  }
}

static void end(ncclComm_t *comms, void **streams)
{
  for (int r = 0; r < N; r++) {
    begun(ncclCommFinalize(comms[r]));
    ck_assert_int_eq(outcome(comms[r]), ncclSuccess);
    ok(ncclCommDestroy(comms[r]));
    fake_stream_destroy(streams[r]);
  }
}

/* The streams are held: what is enqueued does not begin, and nobody waits for it. */
START_TEST(every_call)
{
  ncclComm_t comms[N], children[N];
  void *streams[N];
  struct operation operations[KINDS + 1][N];
  make(comms, streams);
  for (int r = 0; r < N; r++) fake_stream_hold(streams[r], true);
  for (int kind = 0; kind < KINDS; kind++) {
    open_operations(operations[kind], (enum kind)kind);
    call(operations[kind], comms, streams);
  }
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) begun(ncclCommSplit(comms[r], 0, r, &children[r], NULL));
  ck_assert_int_eq(ncclGroupEnd(), ncclInProgress);
  settle(comms);
  settle(children);
  open_operations(operations[KINDS], ALL_REDUCE);
  call(operations[KINDS], children, streams);
  for (int r = 0; r < N; r++) {
    ck_assert(!fake_stream_wait(streams[r], 0));
    fake_stream_hold(streams[r], false);
  }
  wait_streams(streams);
  for (int kind = 0; kind <= KINDS; kind++) close_operations(operations[kind]);
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(children[r]));
  end(comms, streams);
}
END_TEST

/* Finalizing is in progress as long as a stream has something to do. */
START_TEST(finalize_waits)
{
  ncclComm_t comms[N];
  void *streams[N];
  struct operation operations[N];
  ncclResult_t state;
  make(comms, streams);
  for (int r = 0; r < N; r++) fake_stream_hold(streams[r], true);
  open_operations(operations, ALL_REDUCE);
  call(operations, comms, streams);
  for (int r = 0; r < N; r++) ck_assert_int_eq(ncclCommFinalize(comms[r]), ncclInProgress);
  usleep(50000);
  for (int r = 0; r < N; r++) {
    ok(ncclCommGetAsyncError(comms[r], &state));
    ck_assert_int_eq(state, ncclInProgress);
    fake_stream_hold(streams[r], false);
  }
  settle(comms);
  close_operations(operations);
  for (int r = 0; r < N; r++) {
    ok(ncclCommDestroy(comms[r]));
    fake_stream_destroy(streams[r]);
  }
}
END_TEST

/* A capture is ended when what is in it is no longer in progress. */
START_TEST(captured)
{
  ncclComm_t comms[N];
  void *streams[N];
  struct operation operations[N];
  struct fake_graph *graphs[N];
  make(comms, streams);
  open_operations(operations, ALL_REDUCE);
  for (int r = 0; r < N; r++) fake_capture_begin(streams[r]);
  call(operations, comms, streams);
  for (int r = 0; r < N; r++) {
    graphs[r] = fake_capture_end(streams[r]);
    ck_assert(fake_stream_wait(streams[r], 0));
    ck_assert_uint_eq(operations[r].out[0], 0x33333333u);
  }
  for (int r = 0; r < N; r++) fake_graph_replay(graphs[r], streams[r]);
  wait_streams(streams);
  close_operations(operations);
  for (int r = 0; r < N; r++) fake_graph_destroy(graphs[r]);
  end(comms, streams);
}
END_TEST

/* A rank whose peers never come is aborted. _i: before or after its call is enqueued. */
START_TEST(aborted)
{
  ncclComm_t comms[N];
  void *streams[N];
  struct operation operations[N];
  make(comms, streams);
  open_operations(operations, ALL_REDUCE);
  begun(operation_call(&operations[0], comms[0], streams[0]));
  if (_i) ck_assert_int_eq(outcome(comms[0]), ncclSuccess);
  for (int r = 0; r < N; r++) ok(ncclCommAbort(comms[r]));
  ck_assert(fake_stream_wait(streams[0], LONG_MS));
  for (int r = 0; r < N; r++) {
    operation_close(&operations[r]);
    fake_stream_destroy(streams[r]);
  }
}
END_TEST

/* The mistakes that are seen at once are told at once. */
START_TEST(bad_stream)
{
  ncclComm_t comms[N];
  void *streams[N];
  struct operation operations[N];
  make(comms, streams);
  open_operations(operations, ALL_REDUCE);
  ck_assert_int_eq(operation_call(&operations[0], comms[0], streams[1]), ncclInvalidArgument);
  call(operations, comms, streams);
  wait_streams(streams);
  close_operations(operations);
  end(comms, streams);
}
END_TEST

void add_nonblocking(Suite *suite)
{
  TCase *tests = tcase_create("nonblocking");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, every_call);
  tcase_add_test(tests, finalize_waits);
  tcase_add_test(tests, captured);
  tcase_add_loop_test(tests, aborted, 0, 2);
  tcase_add_test(tests, bad_stream);
  suite_add_tcase(suite, tests);
}
