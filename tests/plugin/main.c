/* Tests of core/plugin: layouts, shims, loader, choice. */
#include <stdlib.h>
#include "helper.h"

int main(void)
{
  Suite *suite = suite_create("plugin");
  add_abi_tests(suite);
  add_shim_tests(suite);
  add_loader_tests(suite);
  add_select_tests(suite);
  add_thread_tests(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
