/* Pieces that the socket files share, and the choice of interfaces as a pure function, for tests. */
#ifndef TT_BASE_SOCKET_INTERNAL_H
#define TT_BASE_SOCKET_INTERNAL_H

#include "base/socket.h"

/* An address that the machine has, or an interface without one (family AF_UNSPEC). */
struct tt_candidate {
  struct tt_interface interface;
  bool up;
  bool loopback;
  bool unready; /* an IPv6 address that the system still checks for duplicates, or found to be one: nobody can bind it */
};

/* Writes the usable candidates to `chosen` (room for n) in order of preference, and returns how many. `family` is 0,
 * AF_INET or AF_INET6. */
int tt_interface_choose(const struct tt_candidate *candidates, int n, const char *filter, int family,
                        struct tt_interface *chosen);
/* AF_INET or AF_INET6 from NCCL_SOCKET_FAMILY, 0 when unset; ncclInvalidUsage for anything else. */
ncclResult_t tt_socket_family(int *family);

/* The longest time before *abort is looked at again. */
#define TT_SOCKET_SLICE_MS 20
/* Waits for `events` on `fd`, at most until the deadline or, where `abort` is given, for a slice. */
void tt_socket_wait(int fd, short events, tt_deadline deadline, const _Atomic uint32_t *abort);
bool tt_socket_aborted(const _Atomic uint32_t *abort);
/* Says that the call ended because of *abort, which is no failure of its own. */
ncclResult_t tt_socket_abort_result(const char *what);
/* No delay, buffer sizes: for a connected or about to be connected TCP socket. Others are left alone. */
void tt_socket_tune(int fd);

#endif
