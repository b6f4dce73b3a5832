/* TCP sockets, addresses and the choice of interfaces. All calls are non-blocking underneath and end at a deadline, or
 * when *abort becomes non-zero. Also linked, hidden, into plugins. */
#ifndef TT_BASE_SOCKET_H
#define TT_BASE_SOCKET_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "base/timer.h"

union tt_address {
  struct sockaddr sa;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
};
#define TT_ADDRESS_TEXT 96
/* "192.0.2.1<40001>", "[2001:db8::1]<40001>"; returns text. */
const char *tt_address_print(const union tt_address *address, char text[TT_ADDRESS_TEXT]);
/* Reads "host:port", "[v6]:port" or "name:port", under NCCL_SOCKET_FAMILY; port 0 stands for any. Names may take as
 * long as the resolver does. ncclInvalidUsage naming the text. */
ncclResult_t tt_address_parse(const char *text, union tt_address *address);
socklen_t tt_address_bytes(const union tt_address *address);
bool tt_address_is_loopback(const union tt_address *address);

/* Interfaces. The filter grammar of NCCL_SOCKET_IFNAME: [^][=]name[,name...]; names are prefixes unless `=` makes them
 * exact; ^ excludes, in addition to the default exclusions (lo, docker*). An entry may carry :port, which other users
 * of the grammar (NCCL_IB_HCA) need. */
#define TT_IFNAME_BYTES 16
struct tt_interface {
  char name[TT_IFNAME_BYTES];
  union tt_address address;
};
/* Pure filter, for tests: does `name` pass `filter` (NULL: everything)? */
bool tt_ifname_match(const char *filter, const char *name);
/* All usable interfaces in order of preference under NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY: global addresses before
 * link-local ones, loopback last and only if nothing else is there or it is asked for. Allocates *list (free()).
 * ncclInvalidUsage, naming the variable, its value and the interfaces there are, if none passes. */
ncclResult_t tt_socket_interfaces(struct tt_interface **list, int *count);

/* Listens on `address`; where its port is 0, on any free one, of TUTTI_PORT_RANGE if that is set, and `address` gets
 * it. Close-on-exec, non-blocking and without delay, as are all. */
ncclResult_t tt_socket_listen(union tt_address *address, int *fd);
/* Accepts one; *fd = -1 if none came before the deadline. Also for Unix sockets. */
ncclResult_t tt_socket_accept(int listen_fd, int *fd, tt_deadline deadline, const _Atomic uint32_t *abort);
/* Connects, retrying what is transient (refused, unreachable, timed out), each cause logged once. ncclRemoteError
 * naming the address, the last cause and how to change the limits. */
ncclResult_t tt_socket_connect(const union tt_address *address, int *fd, tt_deadline deadline,
                               const _Atomic uint32_t *abort);
/* Moves exactly `bytes`. ncclRemoteError when the peer closed or the deadline passed, ncclSystemError, or
 * ncclInternalError, without a warning, after an abort. */
ncclResult_t tt_socket_send(int fd, const void *data, size_t bytes, tt_deadline deadline,
                            const _Atomic uint32_t *abort);
ncclResult_t tt_socket_recv(int fd, void *data, size_t bytes, tt_deadline deadline, const _Atomic uint32_t *abort);
/* Non-blocking piece: moves what can be moved now and adds it to *done; *closed is set at the end of the
 * stream, orderly or not. */
ncclResult_t tt_socket_progress(int fd, bool send, void *data, size_t bytes, size_t *done, bool *closed);
/* Has the system try an idle connection, so that a host that vanished becomes an error of the socket (ETIMEDOUT) within
 * one and a half of TUTTI_PEER_TIMEOUT. */
void tt_socket_watch_peer(int fd);
/* True for errors of one attempt to connect after which another may succeed: the peer is about to listen, a route
 * flaps, local ports are short. */
bool tt_socket_transient(int error);
/* Whether a socket that was to connect to `peer` is connected to itself: TCP does that where nobody listens and the
 * kernel picks the port that is being tried on this very host. Closed, it leaves nothing behind that would keep others
 * from listening there. */
bool tt_socket_met_itself(int fd, const union tt_address *peer);
void tt_socket_close(int *fd); /* closes and sets -1; -1 is allowed */

#endif
