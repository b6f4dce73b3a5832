/* Host streams: calls return when they are enqueued, operations run in order, and streams of a group are joined. */
#include "suites.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include "stream_pair.h"

/* ---- Handles ---- */

static void is_refused(ncclResult_t result)
{
  ck_assert_int_eq(result, ncclInvalidArgument);
  said("is no stream of the host device");
}

START_TEST(foreign_streams)
{
  static struct pair pair;
  cudaStream_t gone;
  char bytes[64];
  open_pair(&pair);
  ok(tuttiStreamCreate(&gone));
  ok(tuttiStreamDestroy(gone));
  cudaStream_t wrong[] = {gone, (cudaStream_t)0x1234, (cudaStream_t)bytes, (cudaStream_t)pair.comms[0]};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    is_refused(tuttiStreamSynchronize(wrong[i]));
    is_refused(tuttiStreamQuery(wrong[i]));
    is_refused(tuttiStreamDestroy(wrong[i]));
    is_refused(reduce(&pair, 0, wrong[i]));
    is_refused(ncclSend(pair.in[0], 1, ncclFloat, 1, pair.comms[0], wrong[i]));
  }
  ck_assert_int_eq(tuttiStreamCreate(NULL), ncclInvalidArgument);
  ok(tuttiStreamSynchronize(NULL));
  ok(tuttiStreamQuery(NULL));
  ok(tuttiStreamDestroy(NULL));
  close_pair(&pair);
}
END_TEST

/* A stream that is destroyed while a group names it: nothing of the group runs. */
START_TEST(destroyed_in_a_group)
{
  static struct pair pair;
  cudaStream_t gone;
  open_pair(&pair);
  ok(tuttiStreamCreate(&gone));
  ok(ncclGroupStart());
  ok(reduce(&pair, 0, pair.streams[0]));
  ok(reduce(&pair, 1, gone));
  ok(tuttiStreamDestroy(gone));
  is_refused(ncclGroupEnd());
  ok(tuttiStreamSynchronize(pair.streams[0]));
  ck_assert(pair.out[0][0] == -1);
  for (int r = 0; r < RANKS; r++) ok(reduce(&pair, r, pair.streams[r]));
  wait_both(&pair);
  is_reduced(&pair);
  close_pair(&pair);
}
END_TEST

/* ---- Order ---- */

START_TEST(returns_when_enqueued)
{
  static struct pair pair;
  open_pair(&pair);
  ok(reduce(&pair, 0, pair.streams[0]));
  ck_assert_int_eq(tuttiStreamQuery(pair.streams[0]), ncclInProgress);
  ok(tuttiStreamQuery(pair.streams[1]));
  usleep(20000);
  ck_assert_int_eq(tuttiStreamQuery(pair.streams[0]), ncclInProgress);
  ok(reduce(&pair, 1, pair.streams[1]));
  wait_both(&pair);
  ok(tuttiStreamQuery(pair.streams[0]));
  is_reduced(&pair);
  close_pair(&pair);
}
END_TEST

/* Each operation reads what the one before has written, and is on the next of `_i` streams, so any other order than
 * that of the calls shows. Send and receive have their turn too. */
START_TEST(call_order)
{
  enum { STEPS = 60, STREAMS = 3 };
  static struct pair pair;
  static float data[RANKS][STEPS + 1][COUNT];
  cudaStream_t streams[RANKS][STREAMS];
  open_pair(&pair);
  for (int r = 0; r < RANKS; r++) {
    for (int s = 0; s < STREAMS; s++) ok(tuttiStreamCreate(&streams[r][s]));
    for (int i = 0; i < COUNT; i++) data[r][0][i] = (float)(i + r);
    memset(data[r][1], 0, sizeof data[r] - sizeof data[r][0]);
  }
  for (int k = 0; k < STEPS; k++)
    for (int r = 0; r < RANKS; r++) {
      cudaStream_t stream = streams[r][k % _i];
      if (k % 2 == 0) { /* the other rank's of before */
        ok(ncclGroupStart());
        ok(ncclSend(data[r][k], COUNT, ncclFloat, 1 - r, pair.comms[r], stream));
        ok(ncclRecv(data[r][k + 1], COUNT, ncclFloat, 1 - r, pair.comms[r], stream));
        ok(ncclGroupEnd());
      } else {
        ok(ncclAllReduce(data[r][k], data[r][k + 1], COUNT, ncclFloat, k % 4 == 1 ? ncclMax : ncclAvg, pair.comms[r],
                         stream));
      }
    }
  for (int r = 0; r < RANKS; r++)
    for (int s = 0; s < STREAMS; s++) ok(tuttiStreamSynchronize(streams[r][s]));
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < COUNT; i++) ck_assert(data[r][STEPS][i] == (float)(i + 1));
  for (int r = 0; r < RANKS; r++)
    for (int s = 0; s < STREAMS; s++) ok(tuttiStreamDestroy(streams[r][s]));
  close_pair(&pair);
}
END_TEST

/* What waits on one stream holds up no other. */
START_TEST(streams_run_side_by_side)
{
  static struct pair waits, goes;
  open_pair(&waits);
  open_pair(&goes);
  ok(reduce(&waits, 0, waits.streams[0]));
  for (int r = 0; r < RANKS; r++) ok(reduce(&goes, r, goes.streams[r]));
  wait_both(&goes);
  is_reduced(&goes);
  ck_assert_int_eq(tuttiStreamQuery(waits.streams[0]), ncclInProgress);
  ok(reduce(&waits, 1, waits.streams[1]));
  wait_both(&waits);
  close_pair(&waits);
  close_pair(&goes);
}
END_TEST

/* Two ranks on one stream: the second could not come if the first were run alone. */
START_TEST(communicators_of_a_group)
{
  static struct pair pair;
  open_pair(&pair);
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) ok(reduce(&pair, r, pair.streams[0]));
  ok(ncclGroupEnd());
  ok(tuttiStreamSynchronize(pair.streams[0]));
  is_reduced(&pair);
  close_pair(&pair);
}
END_TEST

/* A group on each rank's own stream: each rank is an operation of its own, and one that waits holds up no other. */
START_TEST(streams_of_a_group_are_independent)
{
  static struct pair waits, goes;
  open_pair(&waits);
  open_pair(&goes);
  ok(reduce(&waits, 0, waits.streams[0]));
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) ok(reduce(&goes, r, goes.streams[r]));
  ok(ncclAllReduce(goes.in[0], goes.in[0], 0, ncclFloat, ncclSum, waits.comms[1], waits.streams[0]));
  ok(ncclGroupEnd());
  wait_both(&goes);
  is_reduced(&goes);
  ok(reduce(&waits, 1, waits.streams[1]));
  wait_both(&waits);
  close_pair(&waits);
  close_pair(&goes);
}
END_TEST

/* A communicator's calls on two streams in one group: the operation waits for both, and both wait for it. */
START_TEST(joined)
{
  static struct pair first, joint, after;
  float more[RANKS][COUNT];
  open_pair(&first);
  open_pair(&joint);
  open_pair(&after);
  cudaStream_t a = joint.streams[0], b = joint.streams[1];
  ok(reduce(&first, 0, a)); /* waits for its other rank */
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    ok(reduce(&joint, r, a));
    ok(ncclAllReduce(joint.in[r], more[r], COUNT, ncclFloat, ncclMax, joint.comms[r], b));
  }
  ok(ncclGroupEnd());
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) ok(reduce(&after, r, b));
  ok(ncclGroupEnd());
  usleep(50000);
  ck_assert_int_eq(tuttiStreamQuery(b), ncclInProgress);
  ck_assert(joint.out[0][0] == -1);
  ck_assert(after.out[0][0] == -1);
  ok(reduce(&first, 1, first.streams[1]));
  ok(tuttiStreamSynchronize(b));
  is_reduced(&joint);
  is_reduced(&after);
  ok(tuttiStreamSynchronize(a));
  ok(tuttiStreamSynchronize(first.streams[1]));
  is_reduced(&first);
  close_pair(&first);
  close_pair(&joint);
  close_pair(&after);
}
END_TEST

static void *reduce_both_now(void *arg)
{
  struct pair *pair = arg;
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    for (int i = 0; i < COUNT; i++) pair->in[r][i] = 0; /* on streams before: they must have read theirs */
    ok(ncclBroadcast(pair->out[r], pair->out[r], COUNT, ncclFloat, 0, pair->comms[r], NULL));
  }
  ok(ncclGroupEnd());
  return NULL;
}

/* A call on NULL comes after what its communicator has on streams. */
START_TEST(null_waits_for_streams)
{
  static struct pair pair;
  pthread_t thread;
  open_pair(&pair);
  for (int k = 0; k < 20; k++)
    for (int r = 0; r < RANKS; r++) ok(reduce(&pair, r, pair.streams[(k + r) % 2]));
  wait_both(&pair);
  memset(pair.out, 0, sizeof pair.out);
  ok(ncclAllReduce(pair.in[0], pair.out[0], COUNT, ncclFloat, ncclSum, pair.comms[0], pair.streams[0]));
  usleep(10000);
  ck_assert_int_eq(tuttiStreamQuery(pair.streams[0]), ncclInProgress);
  ok(reduce(&pair, 1, pair.streams[1]));
  wait_both(&pair);
  ck_assert_int_eq(pthread_create(&thread, NULL, reduce_both_now, &pair), 0);
  pthread_join(thread, NULL);
  is_reduced(&pair); /* rank 0's everywhere */
  /* Without a wait in between. */
  memset(pair.out, 0, sizeof pair.out);
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < COUNT; i++) pair.in[r][i] = (float)(r + 1 + i % 7);
  for (int r = 0; r < RANKS; r++) ok(reduce(&pair, r, pair.streams[r]));
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) ok(ncclBroadcast(pair.out[r], pair.out[r], COUNT, ncclFloat, 0, pair.comms[r], NULL));
  ok(ncclGroupEnd());
  is_reduced(&pair);
  for (int r = 0; r < RANKS; r++) ok(tuttiStreamQuery(pair.streams[r]));
  close_pair(&pair);
}
END_TEST

/* What shares a communicator with a call on NULL is there when the group ends. */
START_TEST(null_and_a_stream_in_a_group)
{
  static struct pair pair;
  float more[RANKS][COUNT];
  open_pair(&pair);
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    ok(reduce(&pair, r, pair.streams[r]));
    ok(ncclAllReduce(pair.in[r], more[r], COUNT, ncclFloat, ncclMax, pair.comms[r], NULL));
  }
  ok(ncclGroupEnd());
  is_reduced(&pair);
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < COUNT; i++) ck_assert(more[r][i] == (float)(2 + i % 7));
  close_pair(&pair);
}
END_TEST

Suite *streams_suite(void)
{
  Suite *suite = suite_create("streams");
  TCase *tests = tcase_create("streams");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, foreign_streams);
  tcase_add_test(tests, destroyed_in_a_group);
  tcase_add_test(tests, returns_when_enqueued);
  tcase_add_loop_test(tests, call_order, 1, 4);
  tcase_add_test(tests, streams_run_side_by_side);
  tcase_add_test(tests, communicators_of_a_group);
  tcase_add_test(tests, streams_of_a_group_are_independent);
  tcase_add_test(tests, joined);
  tcase_add_test(tests, null_waits_for_streams);
  tcase_add_test(tests, null_and_a_stream_in_a_group);
  suite_add_tcase(suite, tests);
  return suite;
}
