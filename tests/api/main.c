/* Tests of the API layer inside one process. */
#include <stdlib.h>
#include "suites.h"

int main(void)
{
  SRunner *runner = srunner_create(config_suite());
  srunner_add_suite(runner, calls_suite());
  srunner_add_suite(runner, groups_suite());
  srunner_add_suite(runner, blocks_suite());
  srunner_add_suite(runner, handles_suite());
  srunner_add_suite(runner, children_suite());
  srunner_add_suite(runner, sharing_suite());
  srunner_add_suite(runner, redop_suite());
  srunner_add_suite(runner, limits_suite());
  srunner_add_suite(runner, streams_suite());
  srunner_add_suite(runner, streams_ends_suite());
  srunner_add_suite(runner, nonblocking_suite());
  srunner_add_suite(runner, buffers_suite());
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
