/* Tests of core/device. */
#include <check.h>
#include <stdlib.h>

void add_choose(Suite *suite);
void add_describe(Suite *suite);
void add_slab(Suite *suite);

int main(void)
{
  Suite *suite = suite_create("device");
  add_choose(suite);
  add_describe(suite);
  add_slab(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
