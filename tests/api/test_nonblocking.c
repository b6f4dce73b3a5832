/* Non-blocking communicators: what each call returns and when, failures, and ends at any moment. Threads and groups are
 * the ranks. */
#include "suites.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "nccl.h"
#include "tutti.h"

enum { N = 3 };

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, tt_log_thread_error());
}

static void begun(ncclResult_t result)
{
  ck_assert_msg(result == ncclInProgress, "result %d: %s", result, tt_log_thread_error());
}

static void refused(ncclResult_t result, ncclResult_t wanted, const char *words)
{
  ck_assert_msg(result == wanted, "result %d, not %d: %s", result, wanted, tt_log_thread_error());
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

/* What comes of what is in progress. */
static ncclResult_t outcome(ncclComm_t comm)
{
  ncclResult_t state;
  while (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress) usleep(200);
  return state;
}

static void done(ncclComm_t comm)
{
  ck_assert_msg(outcome(comm) == ncclSuccess, "%s", ncclGetLastError(comm));
}

static ncclConfig_t non_blocking(void)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

/* All ranks, by one thread. */
static void begin_all(ncclComm_t *comms, int n)
{
  ncclConfig_t config = non_blocking();
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < n; r++) {
    ok(ncclCommInitRankConfig(&comms[r], n, id, r, &config));
    ck_assert_ptr_nonnull(comms[r]);
  }
  begun(ncclGroupEnd());
}

static void make_all(ncclComm_t *comms, int n)
{
  begin_all(comms, n);
  for (int r = 0; r < n; r++) done(comms[r]);
}

/* Sums 1 << place over a whole communicator's ranks. */
static void expect_sum(ncclComm_t *comms, int n)
{
  int64_t in[N], out[N] = {0};
  ok(ncclGroupStart());
  for (int r = 0; r < n; r++) {
    in[r] = 1ll << r;
    ok(ncclAllReduce(&in[r], &out[r], 1, ncclInt64, ncclSum, comms[r], NULL));
  }
  begun(ncclGroupEnd());
  for (int r = 0; r < n; r++) done(comms[r]);
  for (int r = 0; r < n; r++) ck_assert_int_eq(out[r], (1 << n) - 1);
}

static void abort_all(ncclComm_t *comms, int n)
{
  for (int r = 0; r < n; r++) ok(ncclCommAbort(comms[r]));
}

/* Init, operations, split, finalize and destroy; a child without a config is as its parent. */
START_TEST(a_life)
{
  ncclComm_t comms[N], children[N];
  int count;
  make_all(comms, N);
  expect_sum(comms, N);
  expect_sum(comms, N);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(ncclCommSplit(comms[r], 0, -r, &children[r], NULL));
  begun(ncclGroupEnd());
  for (int r = 0; r < N; r++) done(comms[r]); /* the parent says how it went */
  expect_sum(children, N);
  ok(ncclCommCount(children[0], &count));
  ck_assert_int_eq(count, N);
  for (int r = 0; r < N; r++) {
    begun(ncclCommFinalize(comms[r]));
    done(comms[r]);
    refused(ncclCommFinalize(comms[r]), ncclInvalidArgument, "finalized before");
    ok(ncclCommDestroy(comms[r]));
    ok(ncclCommDestroy(children[r])); /* without finalizing it first */
  }
}
END_TEST

/* On a host stream, what is no longer in progress is enqueued; the stream says when it is done. */
START_TEST(on_a_stream)
{
  ncclComm_t comms[2];
  cudaStream_t streams[2];
  int64_t in[2] = {1, 2}, out[2] = {0};
  make_all(comms, 2);
  for (int r = 0; r < 2; r++) {
    ok(tuttiStreamCreate(&streams[r]));
    begun(ncclAllReduce(&in[r], &out[r], 1, ncclInt64, ncclSum, comms[r], streams[r]));
    done(comms[r]); /* though the other rank has yet to come */
  }
  begun(ncclCommFinalize(comms[0]));
  done(comms[0]);
  ck_assert_int_eq(out[0], 3);
  ok(tuttiStreamSynchronize(streams[1]));
  ck_assert_int_eq(out[1], 3);
  for (int r = 0; r < 2; r++) {
    ok(ncclCommDestroy(comms[r]));
    ok(tuttiStreamDestroy(streams[r]));
  }
}
END_TEST

static void calls_are_refused(ncclComm_t comm, const char *words)
{
  static char memory[8];
  int value, excluded = 1;
  void *handle = memory;
  ncclRedOp_t op;
  ncclWindow_t window;
  float data[2] = {0}, scale = 2;
  ncclComm_t child = comm;
  ncclConfig_t config = non_blocking();
#define REFUSED(call) refused(call, ncclInvalidArgument, words)
  REFUSED(ncclCommCount(comm, &value));
  REFUSED(ncclCommCuDevice(comm, &value));
  REFUSED(ncclCommUserRank(comm, &value));
  REFUSED(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, comm, NULL));
  REFUSED(ncclReduce(data, data, 1, ncclFloat, ncclSum, 0, comm, NULL));
  REFUSED(ncclBroadcast(data, data, 1, ncclFloat, 0, comm, NULL));
  REFUSED(ncclAllGather(data, data, 1, ncclFloat, comm, NULL));
  REFUSED(ncclReduceScatter(data, data, 1, ncclFloat, ncclSum, comm, NULL));
  REFUSED(ncclSend(data, 1, ncclFloat, 0, comm, NULL));
  REFUSED(ncclRecv(data, 1, ncclFloat, 0, comm, NULL));
  REFUSED(ncclCommSplit(comm, 0, 0, &child, &config));
  ck_assert_ptr_null(child);
  REFUSED(ncclCommShrink(comm, &excluded, 1, &child, &config, NCCL_SHRINK_ABORT));
  REFUSED(ncclCommRegister(comm, memory, sizeof memory, &handle));
  REFUSED(ncclCommDeregister(comm, memory));
  REFUSED(ncclCommWindowRegister(comm, memory, sizeof memory, &window, NCCL_WIN_DEFAULT));
  REFUSED(ncclCommWindowDeregister(comm, (ncclWindow_t)memory));
  REFUSED(ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat, ncclScalarHostImmediate, comm));
  REFUSED(ncclRedOpDestroy(ncclNumOps, comm));
  REFUSED(ncclCommFinalize(comm));
  REFUSED(ncclCommDestroy(comm));
#undef REFUSED
}

/* While a rank is missing no call waits for it: each says what the matter is, and abort ends it. */
START_TEST(one_is_missing)
{
  ncclConfig_t config = non_blocking();
  ncclComm_t comm;
  ncclUniqueId id;
  ncclResult_t state;
  ok(ncclGetUniqueId(&id));
  begun(ncclCommInitRankConfig(&comm, 2, id, 0, &config));
  for (int round = 0; round < 2; round++) {
    calls_are_refused(comm, "in progress");
    refused(ncclCommRevoke(comm, 0), ncclInvalidArgument, "not made");
    ok(ncclCommGetAsyncError(comm, &state));
    ck_assert_int_eq(state, ncclInProgress);
    size_t bytes = 0;
    ok(tuttiCommReport(comm, tuttiReportText, NULL, &bytes));
    usleep(50000); /* it waits for the other rank by then */
  }
  ok(ncclCommAbort(comm));
  refused(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument, "is not a communicator");
}
END_TEST

/* The same of an operation, and of a split. */
START_TEST(one_is_late)
{
  ncclComm_t comms[2], children[2] = {NULL, NULL};
  float in = 3, out = 0;
  make_all(comms, 2);
  begun(ncclAllReduce(&in, &out, 1, ncclFloat, ncclSum, comms[0], NULL));
  calls_are_refused(comms[0], "in progress");
  ok(ncclGroupStart());
  refused(ncclAllReduce(&in, &out, 1, ncclFloat, ncclSum, comms[0], NULL), ncclInvalidArgument, "in progress");
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidArgument);
  float other = 4, result = 0;
  begun(ncclAllReduce(&other, &result, 1, ncclFloat, ncclSum, comms[1], NULL));
  for (int r = 0; r < 2; r++) done(comms[r]);
  ck_assert(out == 7 && result == 7);
  begun(ncclCommSplit(comms[1], 0, 0, &children[1], NULL));
  calls_are_refused(comms[1], "in progress");
  ck_assert_ptr_null(children[1]);
  begun(ncclCommSplit(comms[0], 0, 0, &children[0], NULL));
  for (int r = 0; r < 2; r++) done(comms[r]);
  expect_sum(children, 2);
  abort_all(children, 2);
  begun(ncclAllReduce(&in, &out, 1, ncclFloat, ncclSum, comms[0], NULL));
  abort_all(comms, 2); /* while the first waits */
}
END_TEST

/* A mistake that only the ranks together can find, and an id that is used again. */
START_TEST(failed_init)
{
  ncclConfig_t config = non_blocking();
  ncclComm_t comms[2], third;
  ncclUniqueId id;
  ncclResult_t state;
  int value;
  ok(ncclGetUniqueId(&id));
  begun(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config));
  config.minCTAs = config.maxCTAs = 2;
  begun(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config));
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(outcome(comms[r]), ncclInvalidUsage);
    ck_assert_msg(strstr(ncclGetLastError(comms[r]), "differs between ranks") != NULL, "%s",
                  ncclGetLastError(comms[r]));
    refused(ncclCommCount(comms[r], &value), ncclInvalidUsage, "could not be made");
    refused(ncclCommFinalize(comms[r]), ncclInvalidUsage, "could not be made");
  }
  ok(ncclCommAbort(comms[0]));
  ok(ncclCommDestroy(comms[1]));
  begun(ncclCommInitRankConfig(&third, 2, id, 0, &config));
  ck_assert_int_eq(outcome(third), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(third), "used before"));
  ok(ncclCommAbort(third));
  config.splitShare = 2; /* what can be said at once is said at once */
  refused(ncclCommInitRankConfig(&third, 1, id, 0, &config), ncclInvalidArgument, "splitShare");
  ck_assert_ptr_null(third);
  refused(ncclCommGetAsyncError(third, &state), ncclInvalidArgument, "comm is NULL");
}
END_TEST

/* A split that fails is the parent's failure. */
START_TEST(failed_operations)
{
  ncclComm_t comms[2], children[2];
  ncclConfig_t config = non_blocking();
  float in[4] = {0}, out[4];
  make_all(comms, 2);
  begun(ncclAllReduce(in, out, 2, ncclFloat, ncclSum, comms[0], NULL));
  begun(ncclAllReduce(in, out, 4, ncclFloat, ncclSum, comms[1], NULL));
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(outcome(comms[r]), ncclInvalidUsage);
    ck_assert_msg(strstr(ncclGetLastError(comms[r]), "they differ in count") != NULL, "%s", ncclGetLastError(comms[r]));
    refused(ncclAllReduce(in, out, 2, ncclFloat, ncclSum, comms[r], NULL), ncclInvalidUsage, "failed earlier");
  }
  abort_all(comms, 2);
  make_all(comms, 2);
  begun(ncclCommSplit(comms[0], 0, 0, &children[0], NULL));
  config.minCTAs = config.maxCTAs = 2;
  begun(ncclCommSplit(comms[1], 0, 0, &children[1], &config));
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(outcome(comms[r]), ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(comms[r]), "differs between ranks"));
    ck_assert_ptr_null(children[r]);
  }
  abort_all(comms, 2);
}
END_TEST

/* A parent that was revoked can have children; its state says when they are there, and they say whether. */
START_TEST(shrinks_after_revoke)
{
  ncclComm_t comms[N], children[N] = {NULL};
  int last = N - 1;
  make_all(comms, N);
  for (int r = 0; r < N; r++) ok(ncclCommRevoke(comms[r], 0));
  ok(ncclGroupStart());
  for (int r = 0; r < last; r++) ok(ncclCommShrink(comms[r], &last, 1, &children[r], NULL, NCCL_SHRINK_ABORT));
  begun(ncclGroupEnd());
  for (int r = 0; r < last; r++) ck_assert_int_eq(outcome(comms[r]), ncclInvalidUsage); /* that of the revoking */
  expect_sum(children, last);
  abort_all(comms, N);
  abort_all(children, last);
}
END_TEST

START_TEST(kinds_do_not_mix)
{
  ncclConfig_t config = non_blocking();
  ncclComm_t blocking, other, made[2];
  float data[2] = {0};
  ncclUniqueId ids[2];
  ok(ncclCommInitAll(&blocking, 1, NULL));
  make_all(&other, 1);
  for (int order = 0; order < 2; order++) {
    ok(ncclGroupStart());
    ok(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, order ? blocking : other, NULL));
    refused(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, order ? other : blocking, NULL), ncclInvalidArgument,
            "blocking and non-blocking");
    ck_assert_int_eq(ncclGroupEnd(), ncclInvalidArgument);
  }
  for (int k = 0; k < 2; k++) ok(ncclGetUniqueId(&ids[k]));
  ok(ncclGroupStart());
  ok(ncclCommInitRankConfig(&made[0], 1, ids[0], 0, &config));
  refused(ncclCommInitRank(&made[1], 1, ids[1], 0), ncclInvalidArgument, "blocking and non-blocking");
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidArgument);
  for (int k = 0; k < 2; k++) ck_assert_ptr_null(made[k]);
  /* The parent decides how a split is called, the child's configuration how the child is. */
  ok(ncclCommSplit(blocking, 0, 0, &made[0], &config));
  begun(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, made[0], NULL));
  done(made[0]);
  abort_all(made, 1);
  ok(ncclCommDestroy(blocking)); /* both are as good as before */
  expect_sum(&other, 1);
  ok(ncclCommDestroy(other));
}
END_TEST

/* The variable makes the calls without a configuration non-blocking, too. */
START_TEST(by_variable)
{
  ncclComm_t comms[N];
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  begun(ncclCommInitAll(comms, N, NULL));
  for (int r = 0; r < N; r++) done(comms[r]);
  expect_sum(comms, N);
  abort_all(comms, N);
}
END_TEST

struct rank {
  ncclUniqueId id;
  int rank;
  ncclComm_t comm;
  pthread_t thread;
};

static void run_ranks(struct rank *ranks, int n, void *(*run)(void *))
{
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id));
  for (int r = 0; r < n; r++) {
    ranks[r].id = id;
    ranks[r].rank = r;
    ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, run, &ranks[r]), 0);
  }
}

static void *live(void *arg)
{
  struct rank *rank = arg;
  ncclConfig_t config = non_blocking();
  ncclComm_t child;
  int64_t in = 1 << rank->rank, out;
  begun(ncclCommInitRankConfig(&rank->comm, N, rank->id, rank->rank, &config));
  done(rank->comm);
  for (int i = 0; i < 3; i++) {
    begun(ncclAllReduce(&in, &out, 1, ncclInt64, ncclSum, rank->comm, NULL));
    done(rank->comm);
    ck_assert_int_eq(out, (1 << N) - 1);
  }
  begun(ncclCommSplit(rank->comm, rank->rank == 1 ? NCCL_SPLIT_NOCOLOR : 0, 0, &child, NULL));
  done(rank->comm);
  ck_assert((child == NULL) == (rank->rank == 1));
  if (child != NULL) begun(ncclAllReduce(&in, &out, 1, ncclInt64, ncclSum, child, NULL));
  begun(ncclCommFinalize(rank->comm));
  done(rank->comm);
  ok(ncclCommDestroy(rank->comm));
  if (child == NULL) return NULL;
  done(child);
  ck_assert_int_eq(out, 1 + (1 << 2));
  ok(ncclCommDestroy(child));
  return NULL;
}

START_TEST(threads)
{
  struct rank ranks[N] = {0};
  run_ranks(ranks, N, live);
  for (int r = 0; r < N; r++) pthread_join(ranks[r].thread, NULL);
}
END_TEST

/* Init that is aborted at any moment, by the thread that began it: the other rank's ends too, by its own abort. */
START_TEST(abort_during_init)
{
  for (int round = 0; round < 6; round++) {
    ncclComm_t comms[2];
    begin_all(comms, 2);
    usleep((useconds_t)(round * 2000));
    ok(ncclCommAbort(comms[round % 2]));
    ok(ncclCommAbort(comms[!(round % 2)]));
  }
}
END_TEST

static void *split(void *arg)
{
  ncclComm_t child;
  if (ncclCommSplit(arg, 0, 0, &child, NULL) == ncclSuccess) ncclCommAbort(child);
  return NULL;
}

/* Parents that are aborted while a child of theirs is made, at any moment: that ends at once, and with it the making.
 * What was made before is in its place when abort returns. */
START_TEST(abort_during_split)
{
  for (int round = 0; round < 8; round++) {
    ncclComm_t comms[2], children[2] = {NULL, NULL};
    pthread_t threads[2];
    bool blocking = round % 2;
    if (blocking)
      ok(ncclCommInitAll(comms, 2, NULL));
    else
      make_all(comms, 2);
    for (int r = 0; r < 2; r++) {
      if (blocking)
        ck_assert_int_eq(pthread_create(&threads[r], NULL, split, comms[r]), 0);
      else
        begun(ncclCommSplit(comms[r], 0, 0, &children[r], NULL));
    }
    usleep((useconds_t)(round * 800));
    ok(ncclCommAbort(comms[round / 2 % 2]));
    ok(ncclCommAbort(comms[!(round / 2 % 2)]));
    for (int r = 0; r < 2; r++) {
      if (blocking) pthread_join(threads[r], NULL);
      if (children[r] != NULL) ok(ncclCommAbort(children[r]));
    }
  }
}
END_TEST

/* What a thread's own open group has of a communicator goes with it; the rest stays. */
START_TEST(abort_in_open_group)
{
  ncclConfig_t config = non_blocking();
  ncclComm_t first, second, third, child = NULL, made;
  float in = 5, out = 0;
  ncclUniqueId id;
  ncclResult_t state;
  ok(ncclCommInitAll(&first, 1, NULL));
  ok(ncclCommInitAll(&second, 1, NULL));
  ok(ncclCommInitAll(&third, 1, NULL));
  ok(ncclGroupStart());
  ok(ncclAllReduce(&in, &in, 1, ncclFloat, ncclSum, first, NULL));
  ok(ncclAllReduce(&in, &out, 1, ncclFloat, ncclSum, second, NULL));
  ok(ncclAllReduce(&in, &in, 1, ncclFloat, ncclSum, third, NULL));
  ok(ncclCommAbort(third));
  ok(ncclCommAbort(first));
  refused(ncclCommGetAsyncError(first, &state), ncclInvalidArgument, "is not a communicator");
  ok(ncclGroupEnd());
  ck_assert(out == 5);
  ok(ncclGroupStart());
  ok(ncclCommSplit(second, 0, 0, &child, &config));
  ok(ncclCommAbort(second));
  ok(ncclGroupEnd());
  ck_assert_ptr_null(child);
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  ok(ncclCommInitRankConfig(&made, 2, id, 0, &config));
  ok(ncclCommGetAsyncError(made, &state));
  ck_assert_int_eq(state, ncclInProgress);
  ok(ncclCommAbort(made));
  ok(ncclGroupEnd());
}
END_TEST

static ncclComm_t _Atomic latest;
static _Atomic bool over;

static void *ask(void *unused)
{
  ncclResult_t state;
  int value;
  (void)unused;
  while (!atomic_load(&over)) {
    ncclResult_t result = ncclCommGetAsyncError(atomic_load(&latest), &state);
    ck_assert(result == ncclInvalidArgument || (result == ncclSuccess && (state == ncclSuccess || state == 7)));
    ncclCommUserRank(atomic_load(&latest), &value);
    usleep(20);
  }
  return NULL;
}

/* Watchdogs that ask for a communicator while it is made, used and ended. */
START_TEST(asked_at_any_moment)
{
  enum { WATCHDOGS = 3 };
  pthread_t threads[WATCHDOGS];
  for (int t = 0; t < WATCHDOGS; t++) ck_assert_int_eq(pthread_create(&threads[t], NULL, ask, NULL), 0);
  for (int round = 0; round < 20; round++) {
    ncclComm_t comm;
    make_all(&comm, 1);
    atomic_store(&latest, comm);
    usleep(100);
    ok(round % 2 ? ncclCommAbort(comm) : ncclCommDestroy(comm));
  }
  atomic_store(&over, true);
  for (int t = 0; t < WATCHDOGS; t++) pthread_join(threads[t], NULL);
}
END_TEST

Suite *nonblocking_suite(void)
{
  Suite *suite = suite_create("nonblocking");
  TCase *tests = tcase_create("nonblocking");
  tcase_set_timeout(tests, 100); /* less than the time after which a wait for a rank ends by itself */
  tcase_add_test(tests, a_life);
  tcase_add_test(tests, on_a_stream);
  tcase_add_test(tests, one_is_missing);
  tcase_add_test(tests, one_is_late);
  tcase_add_test(tests, failed_init);
  tcase_add_test(tests, failed_operations);
  tcase_add_test(tests, shrinks_after_revoke);
  tcase_add_test(tests, kinds_do_not_mix);
  tcase_add_test(tests, by_variable);
  tcase_add_test(tests, threads);
  tcase_add_test(tests, abort_during_init);
  tcase_add_test(tests, abort_during_split);
  tcase_add_test(tests, abort_in_open_group);
  tcase_add_test(tests, asked_at_any_moment);
  suite_add_tcase(suite, tests);
  return suite;
}
