/* Sends and receives that go straight from one rank's buffer into another's, by the fake device. */
#include <stdlib.h>
#include "base/param.h"
#include "messages.h"

int main(void)
{
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("TUTTI_DEVICE", FAKE_DEVICE, 1);
  tt_param_reset();
  Suite *suite = suite_create("messages");
  add_pairs(suite);
  add_offers(suite);
  add_offers_order(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
