/* The tuner plugin through its ABI. Each test runs in a process of its own, since the plugin reads the environment. */
#include "loader.h"

#include <stdlib.h>

int main(void)
{
  Suite *suite = suite_create("tuner");
  unsetenv("NCCL_TUNER_CONFIG_FILE");
  unsetenv("TUTTI_TUNER_ADAPT");
  setenv("NCCL_CONF_FILE", "/dev/null", 1); /* nobody's own settings */
  add_choice(suite);
  add_files(suite);
  add_reports(suite);
  add_core(suite);
  add_adapt(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
