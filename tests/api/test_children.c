/* Split, Shrink and Revoke. */
#include "suites.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "nccl.h"
#include "tests/common/free_port.h"

enum { N = 6 };

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, tt_log_thread_error());
}

static void refused(ncclResult_t result, ncclResult_t wanted, const char *words)
{
  ck_assert_msg(result == wanted, "result %d, not %d: %s", result, wanted, tt_log_thread_error());
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

/* Sums 1 << place over the communicators that are not NULL, which are one whole. */
static void expect_members(ncclComm_t *comms, int n, int64_t sum)
{
  int64_t in[N], out[N] = {0};
  ok(ncclGroupStart());
  for (int r = 0; r < n; r++) {
    in[r] = 1ll << r;
    if (comms[r] != NULL) ok(ncclAllReduce(&in[r], &out[r], 1, ncclInt64, ncclSum, comms[r], NULL));
  }
  ok(ncclGroupEnd());
  for (int r = 0; r < n; r++)
    if (comms[r] != NULL) ck_assert_int_eq(out[r], sum);
}

static int rank_of(ncclComm_t comm)
{
  int rank = -1;
  ok(ncclCommUserRank(comm, &rank));
  return rank;
}

static int count_of(ncclComm_t comm)
{
  int count = -1;
  ok(ncclCommCount(comm, &count));
  return count;
}

static void destroy_all(ncclComm_t *comms, int n)
{
  for (int r = 0; r < n; r++) ok(ncclCommDestroy(comms[r]));
}

/* Keys turn the order round; equal keys keep the parent's; without color there is no child. Several splits in one group
 * are told apart by the order of the calls. */
START_TEST(splits)
{
  ncclComm_t parents[N], halves[N], turned[N], pairs[N];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  char name[] = "turned";
  config.commName = name;
  ok(ncclCommInitAll(parents, N, NULL));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    ok(ncclCommSplit(parents[r], r % 2 ? 7 : -3, 5, &halves[r], NULL));
    ok(ncclCommSplit(parents[r], r == 0 ? NCCL_SPLIT_NOCOLOR : 1, -r, &turned[r], &config));
  }
  memset(name, 'x', sizeof name); /* without an end: it was copied */
  ok(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    ck_assert_int_eq(count_of(halves[r]), N / 2);
    ck_assert_int_eq(rank_of(halves[r]), r / 2);
    if (r > 0) ck_assert_int_eq(rank_of(turned[r]), N - 1 - r);
  }
  ck_assert_ptr_null(turned[0]);
  expect_members(turned, N, (1 << N) - 2);
  ncclComm_t even[N] = {halves[0], NULL, halves[2], NULL, halves[4], NULL};
  expect_members(even, N, 1 + 4 + 16);
  expect_members(parents, N, (1 << N) - 1);
  destroy_all(parents, N); /* children live on */
  ok(ncclGroupStart());    /* a child of children */
  for (int r = 1; r < N; r += 2) ok(ncclCommSplit(halves[r], r == 3, 0, &pairs[r], NULL));
  ok(ncclGroupEnd());
  ck_assert_int_eq(count_of(pairs[1]), 2);
  ck_assert_int_eq(count_of(pairs[3]), 1);
  ncclComm_t two[N] = {NULL, pairs[1], NULL, NULL, NULL, pairs[5]};
  expect_members(two, N, 2 + 32);
  for (int r = 1; r < N; r += 2) ok(ncclCommDestroy(pairs[r]));
  destroy_all(halves, N);
  destroy_all(turned, N);
}
END_TEST

/* Two colors, and then a shrink: each child has its own ranks, while NCCL_COMM_ID names one root for all who ask for an
 * id. ncclCommInitAll asks nobody, so the address may be another host's. */
START_TEST(children_with_a_fixed_id)
{
  ncclUniqueId id;
  ncclComm_t parents[N], halves[N], rest[N] = {NULL}, all[2];
  int excluded[] = {0, 3};
  char address[64];
  snprintf(address, sizeof address, "127.0.0.1:%d", free_port());
  setenv("NCCL_COMM_ID", address, 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  tt_param_reset();
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(ncclCommInitRank(&parents[r], N, id, r));
  ok(ncclGroupEnd());
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(ncclCommSplit(parents[r], r % 2, 0, &halves[r], NULL));
  ok(ncclGroupEnd());
  ncclComm_t even[N] = {halves[0], NULL, halves[2], NULL, halves[4]},
             odd[N] = {NULL, halves[1], NULL, halves[3], NULL, halves[5]};
  expect_members(even, N, 1 + 4 + 16);
  expect_members(odd, N, 2 + 8 + 32);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    if (r % 3 != 0) ok(ncclCommShrink(parents[r], excluded, 2, &rest[r], NULL, 0));
  ok(ncclGroupEnd());
  expect_members(rest, N, 2 + 4 + 16 + 32);
  destroy_all(rest, N);
  destroy_all(halves, N);
  destroy_all(parents, N);
  setenv("NCCL_COMM_ID", "192.0.2.1:4000", 1);
  tt_param_reset();
  ok(ncclCommInitAll(all, 2, NULL));
  expect_members(all, 2, 1 + 2);
  destroy_all(all, 2);
}
END_TEST

/* What an open group has of a communicator is in the way of its end, and the group is as good as before. */
START_TEST(destroyed_in_the_group_of_a_split)
{
  ncclComm_t parents[2], children[2];
  ok(ncclCommInitAll(parents, 2, NULL));
  ok(ncclGroupStart());
  for (int r = 0; r < 2; r++) ok(ncclCommSplit(parents[r], 0, 0, &children[r], NULL));
  refused(ncclCommDestroy(parents[0]), ncclInvalidUsage, "open group");
  ok(ncclGroupEnd());
  expect_members(children, 2, 1 + 2);
  destroy_all(children, 2);
  destroy_all(parents, 2);
}
END_TEST

START_TEST(split_arguments)
{
  ncclComm_t comm, child;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ok(ncclCommInitAll(&comm, 1, NULL));
  refused(ncclCommSplit(comm, 0, 0, NULL, NULL), ncclInvalidArgument, "newcomm");
  refused(ncclCommSplit(NULL, 0, 0, &child, NULL), ncclInvalidArgument, "comm is NULL");
  config.splitShare = 2;
  refused(ncclCommSplit(comm, 0, 0, &child, &config), ncclInvalidArgument, "splitShare");
  ok(ncclCommSplit(comm, 0, 0, &child, NULL));
  ck_assert_int_eq(count_of(child), 1);
  ok(ncclCommDestroy(child));
  ok(ncclCommDestroy(comm));
}
END_TEST

/* A root of two serves two ranks, the other three. Not all ranks have the ids in the same order. */
START_TEST(two_roots)
{
  enum { RANKS_HERE = 5, ROOTS = 2 };
  ncclComm_t comms[N] = {NULL};
  ncclUniqueId ids[ROOTS], turned[ROOTS];
  for (int k = 0; k < ROOTS; k++) ok(ncclGetUniqueId(&ids[k]));
  refused(ncclCommInitRankScalable(comms, 1, 0, 2, ids, NULL), ncclInvalidArgument, "nId");
  refused(ncclCommInitRankScalable(comms, 5, 0, 0, ids, NULL), ncclInvalidArgument, "nId");
  refused(ncclCommInitRankScalable(comms, 5, 0, 2, NULL, NULL), ncclInvalidArgument, "commIds");
  refused(ncclCommInitRankScalable(comms, 5, 5, 2, ids, NULL), ncclInvalidArgument, "rank is 5");
  ok(ncclGroupStart());
  for (int k = 0; k < ROOTS; k++) turned[k] = ids[ROOTS - 1 - k];
  for (int r = 0; r < RANKS_HERE; r++)
    ok(ncclCommInitRankScalable(&comms[r], RANKS_HERE, r, ROOTS, r % 2 ? turned : ids, NULL));
  memset(ids, 0, sizeof ids); /* they were copied */
  ok(ncclGroupEnd());
  expect_members(comms, RANKS_HERE, 31);
  destroy_all(comms, RANKS_HERE);
}
END_TEST

START_TEST(shrinks)
{
  ncclComm_t parents[N], children[N] = {NULL};
  int excluded[] = {4, 1}, all[N - 1] = {1, 2, 3, 4, 5}, twice[] = {1, 1}, beyond[] = {N};
  ok(ncclCommInitAll(parents, N, NULL));
  refused(ncclCommShrink(parents[0], NULL, 1, &children[0], NULL, 0), ncclInvalidArgument, "excludeRanksList");
  refused(ncclCommShrink(parents[0], excluded, 0, &children[0], NULL, 0), ncclInvalidArgument, "excludeRanksCount");
  refused(ncclCommShrink(parents[1], excluded, 2, &children[1], NULL, 0), ncclInvalidArgument, "the caller");
  refused(ncclCommShrink(parents[0], twice, 2, &children[0], NULL, 0), ncclInvalidArgument, "twice");
  refused(ncclCommShrink(parents[0], beyond, 1, &children[0], NULL, 0), ncclInvalidArgument, "names rank 6");
  refused(ncclCommShrink(parents[0], excluded, 2, &children[0], NULL, 9), ncclInvalidArgument, "shrinkFlags");
  ok(ncclCommShrink(parents[0], all, N - 1, &children[0], NULL, NCCL_SHRINK_ABORT));
  ck_assert_int_eq(count_of(children[0]), 1);
  ok(ncclCommDestroy(children[0]));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    if (r != 1 && r != 4) ok(ncclCommShrink(parents[r], excluded, 2, &children[r], NULL, 0));
  ok(ncclGroupEnd());
  children[1] = children[4] = NULL;
  ck_assert_int_eq(rank_of(children[5]), 3);
  expect_members(children, N, 1 + 4 + 8 + 32);
  destroy_all(children, N);
  destroy_all(parents, N);
}
END_TEST

/* Ranks that leave out different ones are told, instead of waiting for each other. */
START_TEST(different_lists)
{
  ncclComm_t parents[4], children[4];
  int two[] = {2}, three[] = {3};
  ok(ncclCommInitAll(parents, 4, NULL));
  ok(ncclGroupStart());
  ok(ncclCommShrink(parents[0], three, 1, &children[0], NULL, 0));
  ok(ncclCommShrink(parents[1], two, 1, &children[1], NULL, 0));
  ok(ncclCommShrink(parents[2], three, 1, &children[2], NULL, 0));
  refused(ncclGroupEnd(), ncclInvalidUsage, "leaves out other ranks");
  for (int r = 0; r < 3; r++) ck_assert_ptr_null(children[r]);
  destroy_all(parents, 4);
}
END_TEST

/* What one attempt left behind is nothing to the next one. */
START_TEST(again_after_different_lists)
{
  ncclComm_t parents[5], children[5] = {NULL};
  int both[] = {3, 4}, three[] = {3};
  ok(ncclCommInitAll(parents, 5, NULL));
  for (int attempt = 0; attempt < 3; attempt++) {
    ok(ncclGroupStart());
    ok(ncclCommShrink(parents[0], both, 2, &children[0], NULL, 0));
    ok(ncclCommShrink(parents[1], three, 1, &children[1], NULL, 0));
    ok(ncclCommShrink(parents[2], both, 2, &children[2], NULL, 0));
    refused(ncclGroupEnd(), ncclInvalidUsage, "leaves out other ranks");
  }
  for (int attempt = 0; attempt < 2; attempt++) {
    ok(ncclGroupStart());
    for (int r = 0; r < 3; r++) ok(ncclCommShrink(parents[r], both, 2, &children[r], NULL, 0));
    ok(ncclGroupEnd());
    expect_members(children, 3, 1 + 2 + 4);
    destroy_all(children, 3);
  }
  destroy_all(parents, 5);
}
END_TEST

/* Nor are words that a rank did not wait for, since it makes no attempt, or another rank is first in its list. Rank 2
 * makes none at first, then rank 1 is first for it, and at last rank 0 makes none. */
START_TEST(again_after_untaken_answers)
{
  ncclComm_t parents[4], children[4] = {NULL};
  int both[] = {0, 3}, three[] = {3};
  setenv("NCCL_BOOTSTRAP_TIMEOUT", "5", 1); /* each attempt that fails waits so long */
  tt_param_reset();
  ok(ncclCommInitAll(parents, 4, NULL));
  for (int attempt = 0; attempt < 3; attempt++) {
    ok(ncclGroupStart());
    if (attempt != 2) ok(ncclCommShrink(parents[0], three, 1, &children[0], NULL, 0));
    ok(ncclCommShrink(parents[1], three, 1, &children[1], NULL, 0));
    if (attempt != 0)
      ok(ncclCommShrink(parents[2], attempt == 1 ? both : three, attempt == 1 ? 2 : 1, &children[2], NULL, 0));
    ck_assert_int_ne(ncclGroupEnd(), ncclSuccess);
    for (int r = 0; r < 3; r++) ck_assert_ptr_null(children[r]);
  }
  for (int attempt = 0; attempt < 2; attempt++) {
    ok(ncclGroupStart());
    for (int r = 0; r < 3; r++) ok(ncclCommShrink(parents[r], three, 1, &children[r], NULL, 0));
    ok(ncclGroupEnd());
    expect_members(children, 3, 1 + 2 + 4);
    destroy_all(children, 3);
  }
  destroy_all(parents, 4);
}
END_TEST

START_TEST(revoked)
{
  ncclComm_t parents[N], children[N];
  ncclResult_t error;
  float data[N] = {0};
  ok(ncclCommInitAll(parents, N, NULL));
  ok(ncclCommRevoke(NULL, 0));
  refused(ncclCommRevoke(parents[0], 1), ncclInvalidArgument, "revokeFlags");
  for (int r = 0; r < N; r++) {
    ok(ncclCommRevoke(parents[r], 0));
    refused(ncclCommRevoke(parents[r], 0), ncclInvalidArgument, "before");
    refused(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, parents[r], NULL), ncclInvalidUsage, "revoked");
    refused(ncclCommFinalize(parents[r]), ncclInvalidArgument, "revoked");
    ok(ncclCommGetAsyncError(parents[r], &error));
    ck_assert_int_ne(error, ncclSuccess);
  }
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(ncclCommSplit(parents[r], 0, 0, &children[r], NULL));
  ok(ncclGroupEnd());
  expect_members(children, N, (1 << N) - 1);
  destroy_all(children, N);
  destroy_all(parents, N);
}
END_TEST

/* ---- A killed rank ---- */

enum { RANKS = 4, KILLED = 2, BEFORE = 20 };

/* A rank in a process of its own. Exit status 0: it went on with the survivors. */
static int survive(int rank, int give, int take)
{
  ncclUniqueId id;
  ncclComm_t comm, child;
  ncclResult_t result = ncclSuccess;
  int excluded[] = {KILLED};
  if (rank == 0) {
    if (ncclGetUniqueId(&id) != ncclSuccess) return 10;
    for (int r = 1; r < RANKS; r++)
      if (write(give, &id, sizeof id) != sizeof id) return 11;
  } else if (read(take, &id, sizeof id) != sizeof id) {
    return 12;
  }
  if (ncclCommInitRank(&comm, RANKS, id, rank) != ncclSuccess) return 13;
  static float data[50000];
  for (int i = 0; result == ncclSuccess; i++) {
    if (rank == KILLED && i == BEFORE) raise(SIGKILL);
    result = ncclAllReduce(data, data, 50000, ncclFloat, ncclMax, comm, NULL);
  }
  if (strstr(ncclGetLastError(comm), "rank 2") == NULL) return 14;
  if (ncclCommShrink(comm, excluded, 1, &child, NULL, NCCL_SHRINK_ABORT) != ncclSuccess) return 15;
  int64_t in = 1 << rank, out = 0;
  if (ncclAllReduce(&in, &out, 1, ncclInt64, ncclSum, child, NULL) != ncclSuccess) return 16;
  if (out != (1 << RANKS) - 1 - (1 << KILLED)) return 17;
  if (ncclCommAbort(comm) != ncclSuccess || ncclCommDestroy(child) != ncclSuccess) return 18;
  return 0;
}

START_TEST(shrink_after_a_kill)
{
  int ends[2];
  pid_t pids[RANKS];
  ck_assert_int_eq(pipe(ends), 0);
  for (int r = 0; r < RANKS; r++) {
    pids[r] = fork();
    ck_assert_int_ge(pids[r], 0);
    if (pids[r] == 0) _exit(survive(r, ends[1], ends[0]));
  }
  for (int r = 0; r < RANKS; r++) {
    int status = 0;
    ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
    if (r == KILLED)
      ck_assert(WIFSIGNALED(status));
    else
      ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d ended with status %x", r, status);
  }
}
END_TEST

Suite *children_suite(void)
{
  Suite *suite = suite_create("children");
  TCase *tests = tcase_create("children");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, splits);
  tcase_add_test(tests, children_with_a_fixed_id);
  tcase_add_test(tests, destroyed_in_the_group_of_a_split);
  tcase_add_test(tests, split_arguments);
  tcase_add_test(tests, two_roots);
  tcase_add_test(tests, shrinks);
  tcase_add_test(tests, different_lists);
  tcase_add_test(tests, again_after_different_lists);
  tcase_add_test(tests, again_after_untaken_answers);
  tcase_add_test(tests, revoked);
  tcase_add_test(tests, shrink_after_a_kill);
  suite_add_tcase(suite, tests);
  return suite;
}
