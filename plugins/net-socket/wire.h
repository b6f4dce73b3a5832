/* What travels: the handle of a listener (through the caller's bootstrap), the greeting of a connection, and the
 * headers of messages and notes. All in the host's byte order; the magic numbers reveal a peer of the other order. */
#ifndef TT_NET_SOCKET_WIRE_H
#define TT_NET_SOCKET_WIRE_H

#include <stdint.h>
#include "base/hash.h"
#include "base/socket.h"
#include "tutti/net.h"

/* "TTUTSCK" and the version of this protocol. */
#define TT_NETSOCKET_MAGIC 0x5454555453434b01ull

/* Written by listen into the caller's handle. `pending` is 0 on the wire; the connecting side keeps the number of its
 * attempt there between calls, since the storage is the same in each. */
struct tt_netsocket_handle {
  uint64_t magic;
  struct tt_key key; /* random for each listener: proves that a client was given the handle */
  uint32_t lanes;    /* data sockets that the listener would like */
  union tt_address address;
  uint64_t pending;
};
_Static_assert(sizeof(struct tt_netsocket_handle) <= NCCL_NET_HANDLE_MAXSIZE, "the handle has 128 bytes");

/* First bytes of the connecting side on each socket of a connection. Socket 0 is the main one, the others are lanes. */
struct tt_netsocket_hello {
  uint64_t magic;
  uint64_t connection; /* random: joins the sockets of one connection */
  uint32_t index;      /* of this socket */
  uint32_t count;      /* of sockets in the connection */
  uint64_t proof;      /* keyed hash of all before it */
};

/* The answer on the main socket once all sockets of the connection have arrived. */
struct tt_netsocket_welcome {
  uint64_t magic;
  uint64_t connection;
  uint64_t proof;
};

/* On the main socket, sender to receiver: a message; `bytes` of payload follow unless the message is striped over the
 * lanes (tt_netsocket_stripes). Receiver to sender: notes about a tag, without payload. */
enum tt_netsocket_kind {
  TT_NETSOCKET_MESSAGE = 0x7e55a6e1,
  TT_NETSOCKET_PAUSE = 0x7e55a6e2, /* send no more messages of this tag: nobody waits for them, others are needed */
  TT_NETSOCKET_RESUME = 0x7e55a6e3
};
struct tt_netsocket_header {
  uint32_t kind;
  int32_t tag;
  uint64_t bytes;
};

#endif
