/* Failures of operations on host streams reach both the communicator and the stream, and whatever ends a communicator
 * ends what it has on streams. */
#include "suites.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "stream_pair.h"

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

struct caller {
  struct pair *pair;
  cudaStream_t stream;
  ncclResult_t result;
  pthread_t thread;
  _Atomic int calls, done;
};

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

static double cpu_seconds(void)
{
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

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

Suite *streams_ends_suite(void)
{
  Suite *suite = suite_create("ends of streams");
  TCase *tests = tcase_create("ends of streams");
  tcase_set_timeout(tests, 120);
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
