/* Tests of reports inside one process. */
#include <stdlib.h>
#include "suites.h"

int main(void)
{
  SRunner *runner = srunner_create(progress_suite());
  srunner_add_suite(runner, writer_suite());
  srunner_add_suite(runner, calls_suite());
  srunner_add_suite(runner, moments_suite());
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
