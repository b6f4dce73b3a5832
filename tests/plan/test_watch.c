/* What is due while nothing moves: when ranks that are gone are looked for, when this rank says what it is at, and when
 * the log is told. */
#include <check.h>
#include <stdlib.h>
#include "plan/watch.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

START_TEST(times)
{
  static const int reports[] = {10, 20, 40, 80};
  struct tt_watch_clock clock = {0};
  uint64_t start = 12345 * SECOND;
  int looked_after = -1, stalls = 0, nreports = 0;
  for (int ms = 0; ms <= 100000; ms++) {
    struct tt_watch_due due = tt_watch_idle(&clock, start + (uint64_t)ms * MS);
    if (due.look && looked_after < 0) looked_after = ms;
    stalls += due.stalled;
    ck_assert_int_eq(due.idle_seconds, due.stalled ? ms / 1000 : 0);
    if (due.report_seconds == 0) continue;
    ck_assert(due.stalled);
    ck_assert_int_lt(nreports, 4);
    ck_assert_int_eq(due.report_seconds, reports[nreports++]);
  }
  ck_assert_int_gt(looked_after, 1);
  ck_assert_int_lt(looked_after, 100);
  ck_assert_int_ge(stalls, 95);
  ck_assert_int_le(stalls, 100);
  ck_assert_int_eq(nreports, 4);
}
END_TEST

START_TEST(begins_again)
{
  struct tt_watch_clock clock = {0};
  tt_watch_idle(&clock, SECOND);
  ck_assert(tt_watch_idle(&clock, 30 * SECOND).report_seconds > 0);
  tt_watch_moved(&clock);
  struct tt_watch_due due = tt_watch_idle(&clock, 31 * SECOND);
  ck_assert(!due.look && !due.stalled && due.report_seconds == 0);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("watch");
  TCase *tests = tcase_create("watch");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, times);
  tcase_add_test(tests, begins_again);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
