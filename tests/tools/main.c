/* Runs the unit tests of the tools. */
#include <stdlib.h>
#include "suites.h"

int main(void)
{
  SRunner *runner = srunner_create(suite_options());
  srunner_add_suite(runner, suite_operate());
  srunner_add_suite(runner, suite_sweep());
  srunner_add_suite(runner, suite_pattern());
  srunner_add_suite(runner, suite_mutations());
  srunner_add_suite(runner, suite_launcher());
  srunner_add_suite(runner, suite_join());
  srunner_add_suite(runner, suite_json());
  srunner_add_suite(runner, suite_run());
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
