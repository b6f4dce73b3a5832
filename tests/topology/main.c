/* Runs the suites. */
#include <check.h>
#include <stdlib.h>
#include "suites.h"

int main(void)
{
  SRunner *runner = srunner_create(suite_xml());
  srunner_add_suite(runner, suite_model());
  srunner_add_suite(runner, suite_paths());
  srunner_add_suite(runner, suite_reach());
  srunner_add_suite(runner, suite_random());
  srunner_add_suite(runner, suite_broken());
  srunner_add_suite(runner, suite_detect());
  srunner_add_suite(runner, suite_detect_file());
  srunner_add_suite(runner, suite_fuse());
  srunner_add_suite(runner, suite_clique());
  srunner_add_suite(runner, suite_merge());
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
