/* Operations on streams, by the fake device. With an argument, the path of a net plugin, devices reach each other over
 * that network only. */
#include <stdlib.h>
#include "base/param.h"
#include "collectives.h"

bool over_network;

int main(int argc, char **argv)
{
  over_network = argc > 1;
  if (over_network) {
    setenv("NCCL_NET_PLUGIN", argv[1], 1);
    setenv("NCCL_P2P_DISABLE", "1", 1);
    setenv("NCCL_SHM_DISABLE", "1", 1);
  }
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("TUTTI_DEVICE", FAKE_DEVICE, 1);
  tt_param_reset();
  Suite *suite = suite_create("streams");
  add_streams(suite);
  add_graphs(suite);
  add_nonblocking(suite);
  add_failures(suite);
  add_as_messages(suite);
  if (!over_network) {
    add_joins(suite);
    add_processes(suite);
    add_gate(suite);
    add_scalars(suite);
    add_teams(suite);
    add_mapped(suite);
    add_plain(suite);
    add_captured(suite);
    add_again(suite);
    add_hints(suite);
  }
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
