/* A network of many wires with tags, as strict as the ABI allows: a message is on its way only when its receive is
 * posted, and leaves the sender's memory at a moment of its own; a group's buffers fill in any order. It checks what a
 * plugin may rely on: memory is registered for as long as it is in use, groups are no larger than allowed, and requests
 * are tested only until they are done. One thread. */
#ifndef TT_TESTS_PROXY_FAKE_WIRES_H
#define TT_TESTS_PROXY_FAKE_WIRES_H

#include <stdbool.h>
#include <stddef.h>
#include "plugin/net.h"

struct wires_mood {
  int max_recvs;
  int null_percent; /* requests refused for now */
  int slow_percent; /* chances to move that pass unused */
  unsigned seed;
};

struct wires_count {
  int open;                             /* ends of wires */
  int registered;                       /* regions now */
  long sends, recvs, grouped, messages; /* requests accepted; of receives: those of several, and their messages */
  int largest;                          /* group */
  int faults;                           /* rules broken by the caller; each is printed */
};

struct tt_net *wires_net(void);
void wires_reset(const struct wires_mood *mood);
/* Nothing is refused from now on. */
void wires_take_all(void);
/* A new wire; its ends are closed by tt_net_close_send and tt_net_close_recv. */
void wires_open(void **send_comm, void **recv_comm);
struct wires_count wires_counts(void);

#endif
