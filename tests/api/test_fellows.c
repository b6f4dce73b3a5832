/* Ranks that one process makes in a group, one of which cannot begin: the others do not wait for it. */
#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "nccl.h"
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "bootstrap/bootstrap.h"

enum { N = 4, FAILS = 2 };

static bool no_memory;    /* for the bootstrap of FAILS */
static int threads_left;  /* for jobs; below 0: enough */
static _Atomic int joins; /* ranks that began to meet the others */

ncclResult_t __real_tt_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);
ncclResult_t __wrap_tt_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);
ncclResult_t __wrap_tt_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
  if (strcmp(name, "tutti-group") == 0 && threads_left >= 0 && threads_left-- == 0)
    return TT_FAIL(ncclSystemError, "no thread for this test");
  return __real_tt_thread_start(thread, name, run, arg);
}

ncclResult_t __real_tt_bootstrap_create_scalable(const ncclUniqueId *ids, int nids, int rank, int nranks,
                                                 const _Atomic uint32_t *abort, struct tt_bootstrap_probe *probe,
                                                 struct tt_bootstrap **out);
ncclResult_t __wrap_tt_bootstrap_create_scalable(const ncclUniqueId *ids, int nids, int rank, int nranks,
                                                 const _Atomic uint32_t *abort, struct tt_bootstrap_probe *probe,
                                                 struct tt_bootstrap **out);
ncclResult_t __wrap_tt_bootstrap_create_scalable(const ncclUniqueId *ids, int nids, int rank, int nranks,
                                                 const _Atomic uint32_t *abort, struct tt_bootstrap_probe *probe,
                                                 struct tt_bootstrap **out)
{
  atomic_fetch_add(&joins, 1);
  if (no_memory && rank == FAILS) return TT_FAIL(ncclSystemError, "no memory for this test");
  return __real_tt_bootstrap_create_scalable(ids, nids, rank, nranks, abort, probe, out);
}

static void check_text(const char *expected)
{
  ck_assert_str_eq(tt_log_thread_error(), expected);
}

static void check_none(const ncclComm_t *comms)
{
  for (int r = 0; r < N; r++) ck_assert_ptr_null(comms[r]);
}

static ncclResult_t init_group(ncclComm_t *comms, ncclConfig_t *config)
{
  ncclUniqueId id;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  for (int r = 0; r < N; r++) {
    ncclResult_t result = ncclCommInitRankConfig(&comms[r], N, id, r, config);
    ck_assert(result == ncclSuccess || result == ncclInProgress);
  }
  return ncclGroupEnd();
}

START_TEST(all_with_a_failure)
{
  ncclComm_t comms[N];
  no_memory = true;
  ck_assert_int_eq(ncclCommInitAll(comms, N, NULL), ncclSystemError);
  check_text("no memory for this test");
  check_none(comms);
}
END_TEST

START_TEST(group_with_a_failure)
{
  ncclComm_t comms[N];
  no_memory = true;
  ck_assert_int_eq(init_group(comms, NULL), ncclSystemError);
  check_text("no memory for this test");
  check_none(comms);
}
END_TEST

/* Each communicator has its reason. */
START_TEST(in_background)
{
  ncclComm_t comms[N];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  no_memory = true;
  ck_assert_int_eq(init_group(comms, &config), ncclInProgress);
  for (int r = 0; r < N; r++) {
    ncclResult_t state;
    do ck_assert_int_eq(ncclCommGetAsyncError(comms[r], &state), ncclSuccess);
    while (state == ncclInProgress);
    ck_assert_int_eq(state, ncclSystemError);
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(comms[r]), "no memory for this test"));
    ck_assert_int_eq(ncclCommAbort(comms[r]), ncclSuccess);
  }
}
END_TEST

/* Communicators of other ids are made. */
START_TEST(beside_others)
{
  ncclComm_t comms[N], pair[2];
  ncclUniqueId id, other;
  no_memory = true;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclGetUniqueId(&other), ncclSuccess);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  for (int r = 0; r < N; r++) ck_assert_int_eq(ncclCommInitRank(&comms[r], N, id, r), ncclSuccess);
  for (int r = 0; r < 2; r++) ck_assert_int_eq(ncclCommInitRank(&pair[r], 2, other, r), ncclSuccess);
  ck_assert_int_eq(ncclGroupEnd(), ncclSystemError);
  check_text("no memory for this test");
  check_none(comms);
  for (int r = 0; r < 2; r++) ck_assert_int_eq(ncclCommDestroy(pair[r]), ncclSuccess);
}
END_TEST

/* Nobody begins where not all can. */
START_TEST(without_a_thread)
{
  ncclComm_t comms[N];
  threads_left = _i;
  ck_assert_int_eq(ncclCommInitAll(comms, N, NULL), ncclSystemError);
  check_text("no thread for this test");
  check_none(comms);
  threads_left = _i;
  ck_assert_int_eq(init_group(comms, NULL), ncclSystemError);
  check_text("no thread for this test");
  check_none(comms);
  ck_assert_int_eq(atomic_load(&joins), 0);
}
END_TEST

/* So it is with children, whose ranks would wait on the parent. */
START_TEST(children_without_a_thread)
{
  ncclComm_t comms[N], children[N];
  ck_assert_int_eq(ncclCommInitAll(comms, N, NULL), ncclSuccess);
  for (int tries = 0; tries < 2; tries++) {
    threads_left = tries == 0 ? FAILS : -1;
    ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < N; r++) ck_assert_int_eq(ncclCommSplit(comms[r], 0, r, &children[r], NULL), ncclSuccess);
    ck_assert_int_eq(ncclGroupEnd(), tries == 0 ? ncclSystemError : ncclSuccess);
    if (tries == 0) check_text("no thread for this test");
    if (tries == 0) check_none(children);
  }
  for (int r = 0; r < N; r++) {
    ck_assert_int_eq(ncclCommDestroy(children[r]), ncclSuccess);
    ck_assert_int_eq(ncclCommDestroy(comms[r]), ncclSuccess);
  }
}
END_TEST

int main(void)
{
  setenv("TUTTI_DEVICE", "host", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_BOOTSTRAP_TIMEOUT", "3600", 1); /* far more than the tests may take */
  tt_param_reset();
  threads_left = -1;
  Suite *suite = suite_create("fellows");
  TCase *tests = tcase_create("fellows");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, all_with_a_failure);
  tcase_add_test(tests, group_with_a_failure);
  tcase_add_test(tests, in_background);
  tcase_add_test(tests, beside_others);
  tcase_add_loop_test(tests, without_a_thread, 0, N - 1);
  tcase_add_test(tests, children_without_a_thread);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
