/* Host streams: calls return when they are enqueued, operations run in order, streams of a group are joined, failures
 * reach both the communicator and the stream, and whatever ends a communicator ends what it has on streams. */
#include "suites.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "tutti.h"

enum { RANKS = 2, COUNT = 1000, GUARD_MS = 60000 };

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, ncclGetLastError(NULL));
}

static void said(const char *words)
{
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

/* A pair of ranks, their buffers, and a stream for each. */
struct pair {
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS];
  float in[RANKS][COUNT], out[RANKS][COUNT];
};

static void open_pair(struct pair *pair)
{
  ok(ncclCommInitAll(pair->comms, RANKS, NULL));
  for (int r = 0; r < RANKS; r++) {
    ok(tuttiStreamCreate(&pair->streams[r]));
    for (int i = 0; i < COUNT; i++) {
      pair->in[r][i] = (float)(r + 1 + i % 7);
      pair->out[r][i] = -1;
    }
  }
}

static void close_pair(struct pair *pair)
{
  for (int r = 0; r < RANKS; r++) ok(ncclCommDestroy(pair->comms[r]));
  for (int r = 0; r < RANKS; r++) ok(tuttiStreamDestroy(pair->streams[r]));
}

static ncclResult_t reduce(struct pair *pair, int r, cudaStream_t stream)
{
  return ncclAllReduce(pair->in[r], pair->out[r], COUNT, ncclFloat, ncclSum, pair->comms[r], stream);
}

static void is_reduced(const struct pair *pair)
{
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < COUNT; i++)
      ck_assert_msg(pair->out[r][i] == (float)(3 + 2 * (i % 7)), "rank %d, element %d is %g", r, i,
                    (double)pair->out[r][i]);
}

static void wait_both(struct pair *pair)
{
  for (int r = 0; r < RANKS; r++) ok(tuttiStreamSynchronize(pair->streams[r]));
}

static double cpu_seconds(void)
{
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

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

struct caller {
  struct pair *pair;
  cudaStream_t stream;
  ncclResult_t result;
  pthread_t thread;
  _Atomic int calls, done;
};

static void *reduce_both_now(void *arg)
{
  struct caller *caller = arg;
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    for (int i = 0; i < COUNT; i++) caller->pair->in[r][i] = 0; /* on streams before: they must have read theirs */
    ok(ncclBroadcast(caller->pair->out[r], caller->pair->out[r], COUNT, ncclFloat, 0, caller->pair->comms[r], NULL));
  }
  ok(ncclGroupEnd());
  atomic_store(&caller->done, 1);
  return NULL;
}

/* A call on NULL comes after what its communicator has on streams. */
START_TEST(null_waits_for_streams)
{
  static struct pair pair;
  struct caller caller = {.pair = &pair};
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
  ck_assert_int_eq(pthread_create(&caller.thread, NULL, reduce_both_now, &caller), 0);
  pthread_join(caller.thread, NULL);
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

/* ---- Failures ---- */

/* _i: whether the data meets, or the ranks have to tell each other. The streams go on, the communicators do not. */
START_TEST(disagreement)
{
  static struct pair pair, other;
  ncclResult_t result;
  open_pair(&pair);
  open_pair(&other);
  ok(reduce(&pair, 0, pair.streams[0]));
  if (_i == 0)
    ok(ncclAllReduce(pair.in[1], pair.out[1], COUNT / 2, ncclFloat, ncclSum, pair.comms[1], pair.streams[1]));
  else
    ok(ncclBroadcast(pair.in[1], pair.out[1], COUNT, ncclFloat, 0, pair.comms[1], pair.streams[1]));
  for (int r = 0; r < RANKS; r++) (void)reduce(&pair, r, pair.streams[r]); /* fails at once or later */
  for (int r = 0; r < RANKS; r++) {
    ck_assert_int_eq(tuttiStreamSynchronize(pair.streams[r]), ncclInvalidUsage);
    said("AllReduce of 1000");
    said(_i == 0 ? "AllReduce of 500" : "Broadcast of 1000");
    ok(tuttiStreamSynchronize(pair.streams[r])); /* was told */
    ok(ncclCommGetAsyncError(pair.comms[r], &result));
    ck_assert_int_eq(result, ncclInvalidUsage);
    ck_assert_int_eq(reduce(&pair, r, pair.streams[r]), ncclInvalidUsage);
  }
  for (int r = 0; r < RANKS; r++) ok(reduce(&other, r, pair.streams[r]));
  wait_both(&pair);
  is_reduced(&other);
  close_pair(&pair);
  close_pair(&other);
}
END_TEST

static ncclResult_t query_until_done(cudaStream_t stream)
{
  ncclResult_t result = tuttiStreamQuery(stream);
  for (int waited = 0; waited < GUARD_MS && result == ncclInProgress; waited++) {
    usleep(1000);
    result = tuttiStreamQuery(stream);
  }
  return result;
}

/* Looking at a failure does not forget it. */
START_TEST(failure_is_kept_until_told)
{
  static struct pair pair;
  open_pair(&pair);
  ok(reduce(&pair, 0, pair.streams[0]));
  ok(ncclCommAbort(pair.comms[0]));
  ck_assert_int_eq(query_until_done(pair.streams[0]), ncclInternalError);
  ck_assert_int_eq(tuttiStreamQuery(pair.streams[0]), ncclInternalError);
  ck_assert_int_eq(tuttiStreamDestroy(pair.streams[0]), ncclInternalError);
  said("aborted");
  ok(ncclCommAbort(pair.comms[1]));
  ok(tuttiStreamDestroy(pair.streams[1]));
}
END_TEST

/* The first operation waits for a rank that never comes; more of them queue behind it, on two streams. */
START_TEST(abort_ends_all)
{
  static struct pair pair;
  ncclResult_t result = ncclSuccess;
  open_pair(&pair);
  for (int k = 0; k < 10; k++) ok(reduce(&pair, 0, pair.streams[k % 2]));
  ok(ncclCommAbort(pair.comms[0]));
  for (int s = 0; s < 2; s++) {
    ck_assert_int_eq(tuttiStreamSynchronize(pair.streams[s]), ncclInternalError);
    said("aborted");
  }
  for (int waited = 0; waited < GUARD_MS && result == ncclSuccess; waited++) {
    usleep(1000);
    ok(ncclCommGetAsyncError(pair.comms[1], &result)); /* the other rank hears of it */
    /* One may still succeed: all that it needs of rank 0 may have come before the abort. */
    if (result == ncclSuccess && waited < 2) (void)reduce(&pair, 1, pair.streams[1]);
  }
  ck_assert_int_eq(result, ncclRemoteError);
  ok(ncclCommAbort(pair.comms[1]));
  for (int s = 0; s < 2; s++) (void)tuttiStreamDestroy(pair.streams[s]);
}
END_TEST

/* An operation that has not begun, behind one of another communicator that goes on waiting. */
START_TEST(abort_of_what_is_queued)
{
  static struct pair waits, ends;
  open_pair(&waits);
  open_pair(&ends);
  ok(reduce(&waits, 0, waits.streams[0]));
  ok(reduce(&ends, 0, waits.streams[0]));
  ok(ncclCommAbort(ends.comms[0]));
  ck_assert_int_eq(tuttiStreamQuery(waits.streams[0]), ncclInProgress);
  ok(reduce(&waits, 1, waits.streams[1]));
  ck_assert_int_eq(tuttiStreamSynchronize(waits.streams[0]), ncclInternalError);
  said("was not begun");
  ok(tuttiStreamSynchronize(waits.streams[1]));
  is_reduced(&waits);
  close_pair(&waits);
  ok(ncclCommAbort(ends.comms[1]));
  for (int r = 0; r < RANKS; r++) ok(tuttiStreamDestroy(ends.streams[r]));
}
END_TEST

static void *wait_for_error(void *arg)
{
  return (void *)(intptr_t)tuttiStreamSynchronize((cudaStream_t)arg);
}

static void *call_null(void *arg)
{
  struct pair *pair = arg;
  return (void *)(intptr_t)reduce(pair, 0, NULL);
}

static void *finalize(void *arg)
{
  struct pair *pair = arg;
  return (void *)(intptr_t)ncclCommFinalize(pair->comms[0]);
}

/* Threads that wait for the stream, for their turn with NULL (_i 0), and in ncclCommFinalize (_i 1). */
START_TEST(abort_ends_waits)
{
  static struct pair pair;
  pthread_t threads[2];
  void *result;
  open_pair(&pair);
  ok(reduce(&pair, 0, pair.streams[0]));
  ck_assert_int_eq(pthread_create(&threads[0], NULL, wait_for_error, pair.streams[0]), 0);
  ck_assert_int_eq(pthread_create(&threads[1], NULL, _i == 0 ? call_null : finalize, &pair), 0);
  usleep(50000);
  ok(ncclCommAbort(pair.comms[0]));
  for (int t = 0; t < 2; t++) {
    pthread_join(threads[t], &result);
    ck_assert_int_ne((intptr_t)result, ncclSuccess);
  }
  ok(ncclCommAbort(pair.comms[1]));
  for (int r = 0; r < RANKS; r++) ok(tuttiStreamDestroy(pair.streams[r]));
}
END_TEST

static void *call_both(void *arg)
{
  struct caller *caller = arg;
  struct pair *pair = caller->pair;
  ok(ncclGroupStart());
  ok(reduce(pair, 0, caller->stream));
  ok(reduce(pair, 0, NULL));
  atomic_store(&caller->calls, 1);
  caller->result = ncclGroupEnd();
  atomic_store(&caller->done, 1);
  return NULL;
}

/* A group with a call on NULL waits for one on a stream, which waits for another communicator's operation. */
START_TEST(abort_ends_a_group_that_waits)
{
  static struct pair waits, ends;
  struct caller caller = {.pair = &ends};
  open_pair(&waits);
  open_pair(&ends);
  caller.stream = waits.streams[0];
  ok(reduce(&waits, 0, waits.streams[0]));
  ck_assert_int_eq(pthread_create(&caller.thread, NULL, call_both, &caller), 0);
  while (!atomic_load(&caller.calls)) usleep(1000); /* what it calls with must be good until then */
  usleep(50000);
  ck_assert(!atomic_load(&caller.done));
  ok(ncclCommAbort(ends.comms[0]));
  pthread_join(caller.thread, NULL);
  ck_assert_int_eq(caller.result, ncclInternalError);
  ck_assert_int_eq(tuttiStreamQuery(waits.streams[0]), ncclInProgress);
  ok(reduce(&waits, 1, waits.streams[1]));
  ck_assert_int_eq(tuttiStreamSynchronize(waits.streams[0]), ncclInternalError); /* the aborted one's */
  ok(tuttiStreamSynchronize(waits.streams[1]));
  is_reduced(&waits);
  close_pair(&waits);
  ok(ncclCommAbort(ends.comms[1]));
  for (int r = 0; r < RANKS; r++) ok(tuttiStreamDestroy(ends.streams[r]));
}
END_TEST

/* Of two communicators in one operation one is aborted: the other's part is done. */
START_TEST(abort_of_one_of_two)
{
  static struct pair waits, ends, goes;
  open_pair(&waits);
  open_pair(&ends);
  open_pair(&goes);
  ok(reduce(&waits, 0, waits.streams[0]));
  ok(ncclGroupStart());
  ok(reduce(&ends, 0, waits.streams[0]));
  ok(reduce(&goes, 0, waits.streams[0]));
  ok(ncclGroupEnd());
  ok(ncclCommAbort(ends.comms[0]));
  ok(reduce(&waits, 1, waits.streams[1]));
  ok(reduce(&goes, 1, goes.streams[1]));
  ck_assert_int_eq(tuttiStreamSynchronize(waits.streams[0]), ncclInternalError);
  ok(tuttiStreamSynchronize(goes.streams[1]));
  is_reduced(&goes);
  close_pair(&waits);
  close_pair(&goes);
  ok(ncclCommAbort(ends.comms[1]));
  for (int r = 0; r < RANKS; r++) ok(tuttiStreamDestroy(ends.streams[r]));
}
END_TEST

START_TEST(revoke_ends_all)
{
  static struct pair pair;
  open_pair(&pair);
  for (int k = 0; k < 3; k++) ok(reduce(&pair, 0, pair.streams[0]));
  ok(ncclCommRevoke(pair.comms[0], 0));
  ck_assert_int_eq(tuttiStreamSynchronize(pair.streams[0]), ncclInvalidUsage);
  said("revoke");
  close_pair(&pair);
}
END_TEST

/* ---- Ends ---- */

static void *come_later(void *arg)
{
  usleep(100000);
  ok(reduce(arg, 1, ((struct pair *)arg)->streams[1]));
  return NULL;
}

/* _i: ncclCommFinalize, ncclCommDestroy, and the stream's end wait for what is enqueued. */
START_TEST(the_end_waits)
{
  static struct pair pair;
  pthread_t thread;
  open_pair(&pair);
  ok(reduce(&pair, 0, pair.streams[0]));
  ck_assert_int_eq(pthread_create(&thread, NULL, come_later, &pair), 0);
  if (_i == 0) ok(ncclCommFinalize(pair.comms[0]));
  if (_i == 1) ok(ncclCommDestroy(pair.comms[0]));
  if (_i == 2) ok(tuttiStreamDestroy(pair.streams[0]));
  for (int i = 0; i < COUNT; i++) ck_assert(pair.out[0][i] == (float)(3 + 2 * (i % 7)));
  pthread_join(thread, NULL);
  if (_i != 1) ok(ncclCommDestroy(pair.comms[0]));
  ok(ncclCommDestroy(pair.comms[1]));
  if (_i != 2) ok(tuttiStreamDestroy(pair.streams[0]));
  ok(tuttiStreamDestroy(pair.streams[1]));
}
END_TEST

/* A stream without work takes no processor time, nor does a thread that waits for one. */
START_TEST(idle_streams_sleep)
{
  enum { STREAMS = 8 };
  static struct pair pair;
  cudaStream_t streams[STREAMS];
  open_pair(&pair);
  for (int s = 0; s < STREAMS; s++) {
    ok(tuttiStreamCreate(&streams[s]));
    for (int r = 0; r < RANKS; r++) ok(reduce(&pair, r, r == 0 ? streams[s] : pair.streams[1]));
    ok(tuttiStreamSynchronize(streams[s]));
  }
  wait_both(&pair);
  double before = cpu_seconds();
  usleep(300000);
  ck_assert_msg(cpu_seconds() - before < 0.1, "%g s of processor time while idle", cpu_seconds() - before);
  for (int s = 0; s < STREAMS; s++) ok(tuttiStreamDestroy(streams[s]));
  close_pair(&pair);
}
END_TEST

/* A communicator's first operation, which makes its connections, and meanwhile children and an estimate of it. */
START_TEST(children_meanwhile)
{
  static struct pair pair;
  ncclComm_t children[RANKS];
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  float sum[RANKS] = {0};
  open_pair(&pair);
  for (int r = 0; r < RANKS; r++) ok(reduce(&pair, r, pair.streams[r]));
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) ok(ncclCommSplit(pair.comms[r], 0, RANKS - r, &children[r], NULL));
  ok(ncclGroupEnd());
  ok(ncclGroupStart());
  ok(reduce(&pair, 0, pair.streams[0]));
  ok(ncclGroupSimulateEnd(&info));
  ck_assert(info.estimatedTime > 0);
  ok(ncclGroupStart());
  for (int r = 0; r < RANKS; r++)
    ok(ncclAllReduce(pair.in[r], &sum[r], 1, ncclFloat, ncclSum, children[r], pair.streams[r]));
  ok(ncclGroupEnd());
  wait_both(&pair);
  is_reduced(&pair);
  for (int r = 0; r < RANKS; r++) {
    ck_assert(sum[r] == 3);
    ok(ncclCommDestroy(children[r]));
  }
  close_pair(&pair);
}
END_TEST

/* ---- Many threads ---- */

struct rank {
  int number;
  ncclComm_t comms[2];
  pthread_t thread;
  float in[64], out[2][64];
};

/* Two communicators on two streams, in an order of the thread's own for the streams. */
static void *drive_rank(void *arg)
{
  struct rank *rank = arg;
  cudaStream_t streams[2];
  for (int s = 0; s < 2; s++) ok(tuttiStreamCreate(&streams[s]));
  for (int i = 0; i < 64; i++) rank->in[i] = (float)(rank->number + i);
  for (int k = 0; k < 100; k++)
    for (int c = 0; c < 2; c++) {
      cudaStream_t stream = k % 10 == 9 ? NULL : streams[c];
      ok(ncclAllReduce(rank->in, rank->out[c], 64, ncclFloat, ncclSum, rank->comms[c], stream));
    }
  for (int s = 0; s < 2; s++) ok(tuttiStreamSynchronize(streams[s]));
  for (int c = 0; c < 2; c++) {
    for (int i = 0; i < 64; i++) ck_assert(rank->out[c][i] == (float)(6 + 4 * i));
    ok(ncclCommDestroy(rank->comms[c]));
  }
  for (int s = 0; s < 2; s++) ok(tuttiStreamDestroy(streams[s]));
  return NULL;
}

START_TEST(ranks_in_threads)
{
  enum { N = 4 };
  static struct rank ranks[N];
  ncclComm_t comms[2][N];
  for (int c = 0; c < 2; c++) ok(ncclCommInitAll(comms[c], N, NULL));
  for (int r = 0; r < N; r++) {
    ranks[r].number = r;
    for (int c = 0; c < 2; c++) ranks[r].comms[c] = comms[c][r];
    ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, drive_rank, &ranks[r]), 0);
  }
  for (int r = 0; r < N; r++) pthread_join(ranks[r].thread, NULL);
}
END_TEST

struct user {
  ncclComm_t comm;
  cudaStream_t stream;
  _Atomic int *calls;
  pthread_t thread;
};

static void *use_stream(void *arg)
{
  struct user *user = arg;
  float in[100] = {0}, out[100];
  while (ncclAllReduce(in, out, 100, ncclFloat, ncclSum, user->comm, user->stream) == ncclSuccess)
    if (atomic_fetch_add(user->calls, 1) % 8 == 7) (void)tuttiStreamSynchronize(user->stream);
  (void)tuttiStreamSynchronize(user->stream); /* the buffers are this thread's until then */
  return NULL;
}

/* Each rank's thread enqueues while another aborts its communicator, at a moment that differs each time. */
START_TEST(abort_at_any_moment)
{
  for (int round = 0; round < 15; round++) {
    static struct pair pair;
    struct user users[RANKS];
    _Atomic int calls = 0;
    open_pair(&pair);
    for (int r = 0; r < RANKS; r++) {
      users[r] = (struct user){.comm = pair.comms[r], .stream = pair.streams[r], .calls = &calls};
      ck_assert_int_eq(pthread_create(&users[r].thread, NULL, use_stream, &users[r]), 0);
    }
    while (atomic_load(&calls) < 3 * round) usleep(10);
    for (int r = 0; r < RANKS; r++) ok(ncclCommAbort(pair.comms[r]));
    for (int r = 0; r < RANKS; r++) pthread_join(users[r].thread, NULL);
    for (int r = 0; r < RANKS; r++) (void)tuttiStreamDestroy(pair.streams[r]);
  }
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
  tcase_add_loop_test(tests, disagreement, 0, 2);
  tcase_add_test(tests, failure_is_kept_until_told);
  tcase_add_test(tests, abort_ends_all);
  tcase_add_test(tests, abort_of_what_is_queued);
  tcase_add_loop_test(tests, abort_ends_waits, 0, 2);
  tcase_add_test(tests, abort_ends_a_group_that_waits);
  tcase_add_test(tests, abort_of_one_of_two);
  tcase_add_test(tests, revoke_ends_all);
  tcase_add_loop_test(tests, the_end_waits, 0, 3);
  tcase_add_test(tests, children_meanwhile);
  tcase_add_test(tests, idle_streams_sleep);
  tcase_add_test(tests, ranks_in_threads);
  tcase_add_test(tests, abort_at_any_moment);
  suite_add_tcase(suite, tests);
  return suite;
}
