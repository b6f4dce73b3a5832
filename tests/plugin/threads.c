/* Ranks that are threads of one process open, use and close networks at once; for the thread sanitizer. */
#include <pthread.h>
#include <stdlib.h>
#include "base/log.h"
#include "helper.h"

enum { THREADS = 4, ROUNDS = 25 };

static void *rank(void *argument)
{
  const char *name = argument;
  static char comm[] = "comm";
  for (int i = 0; i < ROUNDS; i++) {
    ncclNetProperties_v12_t props;
    void *request;
    int ndev, done;
    struct tt_net *net = open_named(name);
    ck_assert_int_eq(tt_net_devices(net, &ndev), ncclSuccess);
    ck_assert_int_eq(ndev, 2);
    ck_assert_int_eq(tt_net_get_properties(net, i % 2, &props), ncclSuccess);
    ck_assert_int_eq(tt_net_isend(net, comm, NULL, 1, 0, NULL, NULL, &request), ncclSuccess);
    ck_assert_int_eq(tt_net_test(net, request, &done, NULL), ncclSuccess);
    close_net(net);
  }
  return NULL;
}

START_TEST(test_threads)
{
  static const char *const names[THREADS] = {"stub8", "stub8", "stub12", "stub12"};
  pthread_t threads[THREADS];
  start(STUB("stub8") "," STUB("stub12"));
  for (int t = 0; t < THREADS; t++) ck_assert_int_eq(pthread_create(&threads[t], NULL, rank, (void *)names[t]), 0);
  for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
  ck_assert_int_eq(count_calls("stub12", "finalize"), count_calls("stub12", "init"));
  ck_assert_int_ge(count_calls("stub12", "init"), 2 * ROUNDS);
  ck_assert_int_eq(count_calls("stub8", "isend"), 2 * ROUNDS);
  ck_assert_int_ge(count_calls("stub8", "unloaded"), 1);
  ck_assert_int_eq(tt_net_reset(), ncclSuccess); /* nothing is left open */
}
END_TEST

void add_thread_tests(Suite *suite)
{
  TCase *tcase = tcase_create("threads");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, test_threads);
  suite_add_tcase(suite, tcase);
}
