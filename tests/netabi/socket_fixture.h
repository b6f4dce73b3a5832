/* A started net-socket plugin with a listener, for tests of that plugin alone. Both ends live in the test's process. */
#ifndef SOCKET_FIXTURE_H
#define SOCKET_FIXTURE_H

#include "tests/common/net_plugin.h"
#include "tutti/counters.h"

extern void *listener; /* may be closed and set to NULL by a test */
extern char handle[NCCL_NET_HANDLE_MAXSIZE];

/* Connects the process with itself through `listener`. */
void connect_self(void **send, void **recv);
/* What the plugin has counted for a comm. */
struct tt_counters read_counters(const void *comm);
/* Runs the cases with the fixture; argv[1] is the plugin. The result of main. */
int run_socket_suite(int argc, char **argv, TCase *tcase);

#endif
