/* How the two sides of a net plugin's connection meet: over TCP sockets, one or several, from connect's side to
 * listen's. The handle carries an address and a random key; who does not prove that it knows the key is dropped and
 * counted, and disturbs nobody. Every step is non-blocking: what cannot be done now is tried again at the next call.
 *
 * Threads: a listener is used by one thread at a time, as is an attempt to connect; different ones by any. */
#ifndef TT_PLUGINS_MEETING_H
#define TT_PLUGINS_MEETING_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"
#include "base/hash.h"
#include "base/socket.h"

#define TT_MEETING_SOCKETS 65

/* Which plugin meets. */
struct tt_meeting_kind {
  const char *name;  /* "net socket": begins its errors */
  const char *label; /* "NET/Socket": begins its lines of INFO */
  uint64_t magic;    /* of its handles and of what travels: names the version of its protocol */
};

/* Written by listen at the start of the caller's handle; what follows it in the handle is the plugin's. `pending` is 0
 * on the wire; the connecting side keeps the number of its attempt there between calls, since the storage is the same
 * in each. In the host's byte order: the magic number reveals a peer of the other order. */
struct tt_meeting_handle {
  uint64_t magic;
  struct tt_key key; /* random for each listener: proves that a client was given the handle */
  uint32_t sockets;  /* that the listener would like */
  union tt_address address;
  uint64_t pending;
};

struct tt_meeting;

/* Listens on a copy of `address`, with a port of its own if that is 0. */
ncclResult_t tt_meeting_listen(const struct tt_meeting_kind *kind, const union tt_address *address, int sockets,
                               struct tt_meeting_handle *handle, struct tt_meeting **out);
/* One step. *count > 0: fds[0..*count-1] are a connection, the first one the main socket, and the caller's. */
ncclResult_t tt_meeting_accept(struct tt_meeting *meeting, int fds[TT_MEETING_SOCKETS], int *count);
void tt_meeting_close(struct tt_meeting *meeting);

/* One step of connecting with as many sockets as both sides want at most. *count as for accept. After an error or
 * success the attempt is over. `user`: whose attempt it is (attempts.h). */
ncclResult_t tt_meeting_connect(const struct tt_meeting_kind *kind, uint64_t user, struct tt_meeting_handle *handle,
                                int sockets, int fds[TT_MEETING_SOCKETS], int *count);
/* Ends the user's attempts that were never completed. */
void tt_meeting_forget(uint64_t user);

/* Without delay, and noticing a peer's host that vanished within TUTTI_PEER_TIMEOUT and half of it. */
void tt_meeting_tune(int fd);
/* True for errors of one connection attempt, after which another may succeed. */
bool tt_meeting_transient(int error);

#endif
