/* Runs the suites. */
#include "graph_suites.h"

#include <stdlib.h>

int main(void)
{
  SRunner *runner = srunner_create(suite_file());
  srunner_add_suite(runner, suite_search());
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
