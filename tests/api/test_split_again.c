/* Children that could not be made since a rank refused the call, failed alone, or left: the others know at once, and
 * the next attempt is as good as the first. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "api/create.h"
#include "base/check.h"
#include "base/param.h"
#include "nccl.h"

enum { N = 4 };

static ncclComm_t comms[N], children[N];

static _Atomic int fails_to_meet = -1; /* the rank of a child that has no memory for it */

ncclResult_t __real_tt_comm_alloc(const struct tt_create *create, struct ncclComm **comm);
ncclResult_t __wrap_tt_comm_alloc(const struct tt_create *create, struct ncclComm **comm);
ncclResult_t __wrap_tt_comm_alloc(const struct tt_create *create, struct ncclComm **comm)
{
  if (create->rank == atomic_load(&fails_to_meet)) return TT_FAIL(ncclSystemError, "no memory for this test");
  return __real_tt_comm_alloc(create, comm);
}

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, tt_log_thread_error());
}

/* What a rank does in its thread, and how that ended. */
struct rank {
  int rank;
  void (*does)(struct rank *me);
  pthread_t thread;
  ncclResult_t result;
  char text[1500];
};

static void *run(void *arg)
{
  struct rank *me = arg;
  me->does(me);
  snprintf(me->text, sizeof me->text, "%s", tt_log_thread_error());
  return NULL;
}

static void all_do(struct rank *ranks, int n, void (*does)(struct rank *me))
{
  for (int r = 0; r < n; r++) {
    ranks[r] = (struct rank){.rank = r, .does = does};
    ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, run, &ranks[r]), 0);
  }
  for (int r = 0; r < n; r++) pthread_join(ranks[r].thread, NULL);
}

/* One that hears that it is in vain by the parent or by the child's root, whichever says so first. */
static void expect_failure(const struct rank *rank)
{
  ck_assert_int_ne(rank->result, ncclSuccess);
  ck_assert_ptr_null(children[rank->rank]);
}

static void expect(const struct rank *rank, ncclResult_t result, const char *words)
{
  ck_assert_msg(rank->result == result && strstr(rank->text, words) != NULL,
                "rank %d: result %d, not %d, or does not say \"%s\": %s", rank->rank, rank->result, result, words,
                rank->text);
  ck_assert_ptr_null(children[rank->rank]);
}

/* All ranks in one child, the last of them first. */
static void split_turned(struct rank *me)
{
  me->result = ncclCommSplit(comms[me->rank], 5, -me->rank, &children[me->rank], NULL);
}

static void expect_turned(void)
{
  struct rank ranks[N];
  int64_t data[N];
  all_do(ranks, N, split_turned);
  for (int r = 0; r < N; r++)
    ck_assert_msg(ranks[r].result == ncclSuccess, "rank %d: result %d: %s", r, ranks[r].result, ranks[r].text);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    int rank, count;
    ok(ncclCommUserRank(children[r], &rank));
    ok(ncclCommCount(children[r], &count));
    ck_assert_int_eq(rank, N - 1 - r);
    ck_assert_int_eq(count, N);
    data[r] = 1ll << r;
    ok(ncclAllReduce(&data[r], &data[r], 1, ncclInt64, ncclSum, children[r], NULL));
  }
  ok(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    ck_assert_int_eq(data[r], (1 << N) - 1);
    ok(ncclCommDestroy(children[r]));
  }
}

static void destroy_all(void)
{
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(comms[r]));
}

static void split_refused(struct rank *me)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = me->rank == 1 ? 2 : 0;
  me->result = ncclCommSplit(comms[me->rank], me->rank, me->rank, &children[me->rank], &config);
}

START_TEST(refused_by_one)
{
  ok(ncclCommInitAll(comms, N, NULL));
  for (int time = 0; time < 3; time++) {
    struct rank ranks[N];
    all_do(ranks, N, split_refused);
    expect(&ranks[1], ncclInvalidArgument, "splitShare");
    for (int r = 0; r < N; r++)
      if (r != 1) expect(&ranks[r], ncclRemoteError, "rank 1 did: ");
    expect_turned();
  }
  destroy_all();
}
END_TEST

/* The last rank comes when the others have given up. */
START_TEST(late)
{
  struct rank ranks[N], last = {.rank = N - 1, .does = split_refused};
  ok(ncclCommInitAll(comms, N, NULL));
  all_do(ranks, N - 1, split_refused);
  expect(&ranks[0], ncclRemoteError, "rank 1 did: ");
  expect(&ranks[2], ncclRemoteError, "rank 1 did: ");
  run(&last);
  expect(&last, ncclRemoteError, "rank 1 did: ");
  expect_turned();
  destroy_all();
}
END_TEST

/* The last rank's call is over before the others begin it. */
START_TEST(dropped_with_its_group)
{
  struct rank ranks[N];
  float data = 0;
  ok(ncclCommInitAll(comms, N, NULL));
  ok(ncclGroupStart());
  ok(ncclCommSplit(comms[N - 1], 0, 0, &children[N - 1], NULL));
  ck_assert_int_eq(ncclBroadcast(&data, &data, 1, ncclFloat, N, comms[N - 1], NULL), ncclInvalidArgument);
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidArgument);
  all_do(ranks, N - 1, split_turned);
  for (int r = 0; r < N - 1; r++) expect(&ranks[r], ncclRemoteError, "its group failed");
  expect_turned();
  destroy_all();
}
END_TEST

static void split_or_abort(struct rank *me)
{
  if (me->rank == N - 1)
    me->result = ncclCommAbort(comms[me->rank]);
  else
    split_turned(me);
}

/* Not all wait for that rank itself. */
START_TEST(aborted_by_one)
{
  struct rank ranks[N];
  ok(ncclCommInitAll(comms, N, NULL));
  all_do(ranks, N, split_or_abort);
  ok(ranks[N - 1].result);
  for (int r = 0; r < N - 1; r++) {
    expect(&ranks[r], ncclRemoteError, "rank 3");
    ok(ncclCommAbort(comms[r]));
  }
}
END_TEST

static void split_uneven(struct rank *me)
{
  me->result = ncclCommSplit(comms[me->rank], me->rank == 0, 0, &children[me->rank], NULL);
}

/* A rank that has no memory when it is to meet the others of its child. Another child, which needs none of them, is
 * made. */
START_TEST(one_cannot_meet)
{
  struct rank ranks[N];
  ok(ncclCommInitAll(comms, N, NULL));
  atomic_store(&fails_to_meet, 1); /* rank 2 of the parent */
  all_do(ranks, N, split_uneven);
  atomic_store(&fails_to_meet, -1);
  ok(ranks[0].result);
  ok(ncclCommDestroy(children[0]));
  expect(&ranks[2], ncclSystemError, "no memory for this test");
  expect_failure(&ranks[1]);
  expect_failure(&ranks[3]);
  ck_assert_msg(strstr(ranks[1].text, "rank 2 did: ") != NULL || strstr(ranks[3].text, "rank 2 did: ") != NULL,
                "rank 1: %s; rank 3: %s", ranks[1].text, ranks[3].text);
  expect_turned();
  destroy_all();
}
END_TEST

static void shrink_and_leave(struct rank *me)
{
  int last = N - 1;
  me->result = ncclCommShrink(comms[me->rank], &last, 1, &children[me->rank], NULL, NCCL_SHRINK_DEFAULT);
  if (me->rank == 1) ncclCommAbort(comms[me->rank]);
}

/* A rank of a shrink that cannot go on, and leaves when it knows that. */
START_TEST(shrink_without_one)
{
  struct rank ranks[N - 1];
  ok(ncclCommInitAll(comms, N, NULL));
  atomic_store(&fails_to_meet, 1);
  all_do(ranks, N - 1, shrink_and_leave);
  atomic_store(&fails_to_meet, -1);
  expect(&ranks[1], ncclSystemError, "no memory for this test");
  expect_failure(&ranks[0]);
  expect_failure(&ranks[2]);
  for (int r = 0; r < N; r++)
    if (r != 1) ok(ncclCommAbort(comms[r]));
}
END_TEST

static ncclResult_t settle(ncclComm_t comm)
{
  ncclResult_t state;
  do ok(ncclCommGetAsyncError(comm, &state));
  while (state == ncclInProgress);
  return state;
}

static void split_in_background(int rank)
{
  ncclResult_t result = ncclCommSplit(comms[rank], 0, 0, &children[rank], NULL);
  ck_assert_msg(result == ncclInProgress, "result %d: %s", result, tt_log_thread_error());
}

/* A call that comes while another one is in progress is no call: the next one is the second on all ranks. */
START_TEST(not_counted_in_progress)
{
  ncclUniqueId id;
  ncclComm_t none;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < 2; r++) ok(ncclCommInitRankConfig(&comms[r], 2, id, r, &config));
  ck_assert_int_eq(ncclGroupEnd(), ncclInProgress);
  for (int r = 0; r < 2; r++) ok(settle(comms[r]));
  for (int time = 0; time < 2; time++) {
    split_in_background(0);
    ck_assert_int_eq(ncclCommSplit(comms[0], 0, 0, &none, NULL), ncclInvalidArgument);
    split_in_background(1);
    for (int r = 0; r < 2; r++) ok(settle(comms[r]));
    for (int r = 0; r < 2; r++) ok(ncclCommDestroy(children[r]));
  }
  for (int r = 0; r < 2; r++) ok(ncclCommDestroy(comms[r]));
}
END_TEST

int main(void)
{
  setenv("TUTTI_DEVICE", "host", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_BOOTSTRAP_TIMEOUT", "3600", 1); /* far more than the tests may take */
  tt_param_reset();
  Suite *suite = suite_create("split again");
  TCase *tests = tcase_create("split again");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, refused_by_one);
  tcase_add_test(tests, late);
  tcase_add_test(tests, dropped_with_its_group);
  tcase_add_test(tests, aborted_by_one);
  tcase_add_test(tests, one_cannot_meet);
  tcase_add_test(tests, shrink_without_one);
  tcase_add_test(tests, not_counted_in_progress);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
