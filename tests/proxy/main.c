/* Tests of core/proxy. */
#include <check.h>
#include <stdlib.h>

void add_flow(Suite *suite);
void add_errors(Suite *suite);
void add_pool(Suite *suite);
void add_reduce(Suite *suite);
void add_remote(Suite *suite);
void add_running(Suite *suite);
void add_copy(Suite *suite);
void add_lines(Suite *suite);
void add_direct(Suite *suite);

int main(void)
{
  Suite *suite = suite_create("proxy");
  add_flow(suite);
  add_errors(suite);
  add_pool(suite);
  add_reduce(suite);
  add_remote(suite);
  add_running(suite);
  add_copy(suite);
  add_lines(suite);
  add_direct(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
