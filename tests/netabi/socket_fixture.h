/* A started net-socket plugin with a listener, for tests of that plugin alone. Both ends live in the test's process. */
#ifndef SOCKET_FIXTURE_H
#define SOCKET_FIXTURE_H

#include <check.h>
#include <stdint.h>
#include "tutti/counters.h"
#include "tutti/net.h"

#define LONG_MS 60000 /* bounds a hang, says nothing of speed */

extern const ncclNet_v12_t *net;
extern void *context, *listener; /* the listener may be closed and set to NULL by a test */
extern char handle[NCCL_NET_HANDLE_MAXSIZE];
extern char last_warning[1024], last_drops[1024]; /* of the plugin's log */

uint64_t now_ms(void);
/* Connects the process with itself through `listener`. */
void connect_self(void **send, void **recv);
/* What the plugin has counted for a comm. */
struct tt_counters read_counters(const void *comm);
/* Runs the cases with the fixture; argv[1] is the plugin. The result of main. */
int run_socket_suite(int argc, char **argv, TCase *tcase);

#endif
