/* Listening for other ranks on the interfaces that the user allows. */
#ifndef TT_BOOTSTRAP_LISTEN_H
#define TT_BOOTSTRAP_LISTEN_H

#include "bootstrap/wire.h"

struct tt_listener {
  int count;
  int fds[TT_ENDPOINT_ADDRESSES];
  struct tt_endpoint endpoint;  /* the addresses, with ports, in the same order */
  char ifname[TT_IFNAME_BYTES]; /* the first one's interface */
};

/* Listens on at most `max` addresses, with any ports: `preferred` first if it belongs to an allowed interface (NULL: no
 * preference), then one address of each interface, then more. nranks sizes the queue of connections. */
ncclResult_t tt_listener_open(const union tt_address *preferred, int max, int nranks, struct tt_listener *listener);
/* Listens on exactly this address; ncclInvalidUsage if that cannot be. */
ncclResult_t tt_listener_open_fixed(const union tt_address *address, int nranks, struct tt_listener *listener);
void tt_listener_close(struct tt_listener *listener);
/* Accepts without waiting; -1: none. *exhausted is set when descriptors ran out. */
int tt_listener_accept(int fd, bool *exhausted);

/* Clients that wait since there is no descriptor for them. */
struct tt_shortage {
  uint64_t since_ns; /* 0: nobody waits */
};
/* After each attempt to accept: whether somebody was there and could not be accepted, which it returns. Not so if one
 * was accepted: without a free descriptor accept() fails even if nobody waits. */
bool tt_shortage_note(struct tt_shortage *shortage, bool waits);
/* Whether it has lasted for so long that it will not end by itself. */
bool tt_shortage_lasts(const struct tt_shortage *shortage);

#endif
