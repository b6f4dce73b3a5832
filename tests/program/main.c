/* Runs all suites of the program layer. */
#include <stdlib.h>
#include "program_set.h"

int main(void)
{
  SRunner *runner = srunner_create(emit_suite());
  srunner_add_suite(runner, dump_suite());
  srunner_add_suite(runner, check_suite());
  srunner_add_suite(runner, validate_suite());
  srunner_add_suite(runner, sequence_suite());
  srunner_add_suite(runner, scratch_suite());
  srunner_add_suite(runner, shared_suite());
  srunner_add_suite(runner, large_suite());
  srunner_add_suite(runner, mutation_suite());
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
