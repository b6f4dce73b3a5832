/* Runs the suites of the join. */
#include <check.h>
#include <stdlib.h>
#include "join_suites.h"

int main(void)
{
  SRunner *runner = srunner_create(suite_join());
  srunner_add_suite(runner, suite_join_counts());
  srunner_add_suite(runner, suite_join_describe());
  srunner_add_suite(runner, suite_join_exchange());
  srunner_add_suite(runner, suite_join_log());
  srunner_add_suite(runner, suite_join_programs());
  srunner_add_suite(runner, suite_join_searched());
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
