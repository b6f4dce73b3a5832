/* Runs the suites of the base layer. */
#include <stdlib.h>

#include "support.h"

int main(void)
{
  SRunner *runner = srunner_create(NULL);
#define ADD_SUITE(name) srunner_add_suite(runner, name##_suite());
  SUITES(ADD_SUITE)
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
