/* What ends works on streams, in one process: the communicator's error says it, the streams go on, and calls that end a
 * communicator return. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "collectives.h"
#include "tests/fakes/device/fake.h"

#define LONG_MS 60000

static ncclResult_t wait_for_error(ncclComm_t comm)
{
  ncclResult_t result = ncclSuccess;
  for (int waited = 0; waited < LONG_MS && result == ncclSuccess; waited++) {
    usleep(1000);
    ok(ncclCommGetAsyncError(comm, &result));
  }
  return result;
}

static void expect_words(ncclComm_t comm, const char *words)
{
  ck_assert_msg(strstr(ncclGetLastError(comm), words) != NULL, "\"%s\" does not say \"%s\"", ncclGetLastError(comm),
                words);
}

static void wait_device(int device)
{
  fake_set_device(device);
  ck_assert(fake_stream_wait(NULL, LONG_MS));
}

static float in[3][100000], out[3][100000];

/* One rank's call alone; connections are made by a call of both. */
static void open_pair(ncclComm_t *comms, int n)
{
  ok(ncclCommInitAll(comms, n, NULL));
  ok(ncclGroupStart());
  for (int r = 0; r < n; r++) ok(ncclAllReduce(in[r], out[r], 100, ncclFloat, ncclSum, comms[r], NULL));
  ok(ncclGroupEnd());
  for (int r = 0; r < n; r++) wait_device(r);
}

/* A peer that never comes: the abort ends the works, and the other rank learns of it. _i: 1: connections lie in the
 * host's memory. */
START_TEST(abort_alone)
{
  ncclComm_t comms[2];
  setenv("NCCL_P2P_DISABLE", _i ? "1" : "0", 1);
  tt_param_reset();
  open_pair(comms, 2);
  ok(ncclAllReduce(in[0], out[0], 100, ncclFloat, ncclSum, comms[0], NULL));
  ok(ncclCommAbort(comms[0]));
  wait_device(0);
  ck_assert_int_eq(wait_for_error(comms[1]), ncclRemoteError);
  expect_words(comms[1], "rank 0 failed");
  expect_words(comms[1], "aborted");
  ck_assert_int_eq(ncclAllReduce(in[1], out[1], 100, ncclFloat, ncclSum, comms[1], NULL), ncclRemoteError);
  ok(ncclCommDestroy(comms[1]));
}
END_TEST

static void *finalize(void *comm)
{
  ck_assert_int_ne(ncclCommFinalize(comm), ncclSuccess);
  return NULL;
}

/* A thread that waits in ncclCommFinalize for a peer that never comes leaves when another aborts. */
START_TEST(abort_ends_finalize)
{
  ncclComm_t comms[2];
  pthread_t thread;
  open_pair(comms, 2);
  ok(ncclAllReduce(in[0], out[0], 100, ncclFloat, ncclSum, comms[0], NULL));
  ck_assert_int_eq(pthread_create(&thread, NULL, finalize, comms[0]), 0);
  usleep(100000);
  ok(ncclCommAbort(comms[0]));
  pthread_join(thread, NULL);
  wait_device(0);
  ok(ncclCommAbort(comms[1]));
}
END_TEST

/* Nothing runs: an abort is then no failure of anybody. */
START_TEST(abort_idle)
{
  ncclComm_t comms[2];
  ncclResult_t result;
  open_pair(comms, 2);
  ok(ncclCommAbort(comms[0]));
  usleep(200000);
  ok(ncclCommGetAsyncError(comms[1], &result));
  ck_assert_int_eq(result, ncclSuccess);
  ok(ncclCommAbort(comms[1]));
}
END_TEST

/* _i: the second rank's count, 90 takes the same way, so the data meets, 90000 may take another; and likewise in the
 * host's memory. */
START_TEST(counts_differ)
{
  static const size_t seconds[] = {90, 90000};
  const size_t second = seconds[_i % 2];
  ncclComm_t comms[2];
  setenv("NCCL_P2P_DISABLE", _i / 2 ? "1" : "0", 1);
  tt_param_reset();
  open_pair(comms, 2);
  for (int r = 0; r < 2; r++)
    ok(ncclAllReduce(in[r], out[r], r == 0 ? 100 : second, ncclFloat, ncclSum, comms[r], NULL));
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(wait_for_error(comms[r]), ncclInvalidUsage);
    expect_words(comms[r], second == 90 ? "90 " : "90000 ");
    expect_words(comms[r], "100 ");
    wait_device(r);
  }
  ck_assert_int_eq(ncclCommFinalize(comms[0]), ncclInvalidUsage);
  for (int r = 0; r < 2; r++) ok(ncclCommDestroy(comms[r]));
}
END_TEST

static bool says(ncclComm_t comm, const char *words)
{
  return strstr(ncclGetLastError(comm), words) != NULL;
}

/* A failed work's stream is done: whoever has waited for it sees the error, and the sentence, whenever it was last
 * looked for. */
START_TEST(seen_at_once)
{
  ncclComm_t comms[2];
  ncclResult_t result;
  open_pair(comms, 2);
  for (int r = 0; r < 2; r++) ok(ncclAllReduce(in[r], out[r], r == 0 ? 100 : 90, ncclFloat, ncclSum, comms[r], NULL));
  for (int r = 0; r < 2; r++) {
    wait_device(r);
    ok(ncclCommGetAsyncError(comms[r], &result));
    ck_assert_int_ne(result, ncclSuccess);
    expect_words(comms[r], "count");
    expect_words(comms[r], "90 ");
    expect_words(comms[r], "100 ");
  }
  for (int r = 0; r < 2; r++) ok(ncclCommAbort(comms[r]));
}
END_TEST

/* The same without a look in between: the end of the communicator reports it. */
START_TEST(seen_at_the_end)
{
  ncclComm_t comms[2];
  open_pair(comms, 2);
  for (int r = 0; r < 2; r++) ok(ncclAllReduce(in[r], out[r], r == 0 ? 100 : 90, ncclFloat, ncclSum, comms[r], NULL));
  for (int r = 0; r < 2; r++) wait_device(r);
  for (int r = 0; r < 2; r++) ck_assert_int_eq(ncclCommFinalize(comms[r]), ncclInvalidUsage);
  for (int r = 0; r < 2; r++) ok(ncclCommDestroy(comms[r]));
}
END_TEST

/* Devices find that ranks disagree and know no more: ranks tell each other. _i: the second rank's count. */
START_TEST(only_a_hash)
{
  static const size_t second[] = {90, 90000};
  ncclComm_t comms[3];
  fake_hide_signatures(true);
  open_pair(comms, 3);
  for (int r = 0; r < 3; r++)
    ok(ncclAllReduce(in[r], out[r], r == 1 ? second[_i] : 100, ncclFloat, ncclSum, comms[r], NULL));
  for (int r = 0; r < 3; r++) {
    ck_assert_int_eq(wait_for_error(comms[r]), ncclInvalidUsage);
    expect_words(comms[r], "count");
    expect_words(comms[r], _i == 0 ? "90 " : "90000 ");
    expect_words(comms[r], "100 ");
    expect_words(comms[r], "rank 1");
    wait_device(r);
  }
  for (int r = 0; r < 3; r++) ok(ncclCommAbort(comms[r]));
}
END_TEST

/* What graphs repeat is not counted, so nobody can know more: the device's sentence remains. */
START_TEST(only_a_hash_in_graphs)
{
  ncclComm_t comms[2];
  struct fake_graph *graphs[2];
  int plain = 0;
  fake_hide_signatures(true);
  open_pair(comms, 2);
  for (int other = 0; other < 2; other++) /* both ranks make the same calls, but rank 1 repeats the second */
    for (int r = 0; r < 2; r++) {
      fake_set_device(r);
      fake_capture_begin(NULL);
      ok(ncclAllReduce(in[r], out[r], other ? 90 : 100, ncclFloat, ncclSum, comms[r], NULL));
      struct fake_graph *graph = fake_capture_end(NULL);
      if (other == r)
        graphs[r] = graph;
      else
        fake_graph_destroy(graph);
    }
  for (int r = 0; r < 2; r++) {
    fake_set_device(r);
    fake_graph_replay(graphs[r], NULL);
  }
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(wait_for_error(comms[r]), ncclInvalidUsage);
    expect_words(comms[r], "do not execute the same");
    plain += !says(comms[r], "failed:");
    wait_device(r);
  }
  ck_assert_int_ge(plain, 1); /* the other may have heard of it from this one */
  for (int r = 0; r < 2; r++) {
    ok(ncclCommAbort(comms[r]));
    fake_graph_destroy(graphs[r]);
  }
}
END_TEST

/* The protocol follows the count, and each has connections of its own: no message of one rank is ever looked at by the
 * other, so both stall, and find out when they tell each other. */
START_TEST(nothing_meets)
{
  enum { LARGE = 1 << 21 };
  ncclComm_t comms[2];
  float *large = calloc(LARGE, sizeof *large);
  ck_assert_ptr_nonnull(large);
  open_pair(comms, 2);
  uint64_t before = now_ms();
  ok(ncclAllReduce(in[0], out[0], 100, ncclFloat, ncclSum, comms[0], NULL));
  ok(ncclAllReduce(large, large, LARGE, ncclFloat, ncclSum, comms[1], NULL));
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(wait_for_error(comms[r]), ncclInvalidUsage);
    expect_words(comms[r], "ranks disagree on collective 1 of the communicator, on its count");
    expect_words(comms[r], "AllReduce of 100 ");
    expect_words(comms[r], "AllReduce of 2097152 ");
    expect_words(comms[r], "/LL");
    expect_words(comms[r], "/SIMPLE");
    wait_device(r);
  }
  ck_assert_uint_ge(now_ms() - before, 900); /* else a message was looked at, and this tests something else */
  for (int r = 0; r < 2; r++) ok(ncclCommAbort(comms[r]));
  free(large);
}
END_TEST

/* The third of ten enqueued collectives differs in its kind; the others are alike. */
START_TEST(an_earlier_one_differs)
{
  ncclComm_t comms[2];
  open_pair(comms, 2);
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < 10; k++) {
      if (k == 3 && r == 1)
        ok(ncclAllReduce(in[r], out[r], 90000, ncclFloat, ncclSum, comms[r], NULL));
      else
        ok(ncclAllReduce(in[r], out[r], 200, ncclFloat, ncclSum, comms[r], NULL));
    }
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(wait_for_error(comms[r]), ncclInvalidUsage);
    expect_words(comms[r], "90000 ");
    wait_device(r);
    ok(ncclCommDestroy(comms[r]));
  }
}
END_TEST

/* A rank that leaves although the others wait for it: in a collective, and in a receive. */
START_TEST(one_leaves)
{
  ncclComm_t comms[3];
  open_pair(comms, 3);
  if (_i == 0)
    ok(ncclAllReduce(in[0], out[0], 100, ncclFloat, ncclSum, comms[0], NULL));
  else
    ok(ncclRecv(out[0], 100, ncclFloat, 2, comms[0], NULL));
  ok(ncclCommDestroy(comms[2]));
  ncclResult_t result = wait_for_error(comms[0]);
  ck_assert_int_eq(result, _i == 0 ? ncclInvalidUsage : ncclRemoteError);
  expect_words(comms[0], "rank 2");
  wait_device(0);
  ok(ncclCommAbort(comms[0]));
  ok(ncclCommAbort(comms[1]));
}
END_TEST

void add_failures(Suite *suite)
{
  TCase *tests = tcase_create("failures");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, abort_alone, 0, 2);
  tcase_add_test(tests, abort_idle);
  tcase_add_test(tests, abort_ends_finalize);
  tcase_add_loop_test(tests, counts_differ, 0, 4);
  tcase_add_test(tests, seen_at_once);
  tcase_add_test(tests, seen_at_the_end);
  tcase_add_loop_test(tests, only_a_hash, 0, 2);
  tcase_add_test(tests, only_a_hash_in_graphs);
  if (!over_network) tcase_add_test(tests, nothing_meets); /* it needs two protocols */
  tcase_add_test(tests, an_earlier_one_differs);
  tcase_add_loop_test(tests, one_leaves, 0, 2);
  suite_add_tcase(suite, tests);
}
