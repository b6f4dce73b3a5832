/* Tests of core/connect. */
#include <check.h>
#include <stdlib.h>

void add_message(Suite *suite);
void add_rounds(Suite *suite);
void add_failures(Suite *suite);
void add_net(Suite *suite);
void add_shared(Suite *suite);
void add_device(Suite *suite);
void add_routes(Suite *suite);
void add_relay(Suite *suite);
void add_relay_end(Suite *suite);
void add_relay_hostile(Suite *suite);

int main(void)
{
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  Suite *suite = suite_create("connect");
  add_message(suite);
  add_rounds(suite);
  add_failures(suite);
  add_net(suite);
  add_shared(suite);
  add_device(suite);
  add_routes(suite);
  add_relay(suite);
  add_relay_end(suite);
  add_relay_hostile(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
