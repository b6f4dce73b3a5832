/* Tests of core/transport. */
#include <check.h>
#include <stdlib.h>

void add_formats(Suite *suite);
void add_relay(Suite *suite);
void add_memory(Suite *suite);
void add_peer(Suite *suite);
void add_choose(Suite *suite);
void add_copied(Suite *suite);
void add_device(Suite *suite);
void add_device_hostile(Suite *suite);
void add_host(Suite *suite);
void add_net_block(Suite *suite);
void add_indirect(Suite *suite);

int main(void)
{
  Suite *suite = suite_create("transport");
  add_formats(suite);
  add_relay(suite);
  add_memory(suite);
  add_peer(suite);
  add_choose(suite);
  add_copied(suite);
  add_device(suite);
  add_device_hostile(suite);
  add_host(suite);
  add_net_block(suite);
  add_indirect(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
