/* What travels once a connection is made (plugins/common/meeting_wire.h has what does before): headers of messages and
 * notes. All in the host's byte order; the magic number, in the handle, reveals a peer of the other order. */
#ifndef TT_NET_SOCKET_WIRE_H
#define TT_NET_SOCKET_WIRE_H

#include <stdint.h>

/* "TTUTSCK" and the version of this protocol. */
#define TT_NETSOCKET_MAGIC 0x5454555453434b01ull

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
