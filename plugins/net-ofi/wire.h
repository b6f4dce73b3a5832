/* What travels: the handle of a listener, the greeting of a new connection and the notes of an old one over its socket,
 * and the packets over the fabric. All in the host's byte order; magic numbers reveal a peer of the other order. */
#ifndef TT_NET_OFI_WIRE_H
#define TT_NET_OFI_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include "plugins/common/meeting.h"
#include "tutti/net.h"

/* "TTUTOFI" and the version of this protocol. */
#define TT_OFI_MAGIC 0x545455544f464904ull

#define TT_OFI_RAILS NCCL_NET_MAX_DEVS_PER_NIC_V12 /* NICs that work as one */
#define TT_OFI_NAME_BYTES 256                      /* of an endpoint's address */
#define TT_OFI_PROVIDER_BYTES 64

/* `pending` as in struct tt_meeting_handle: of the attempt once the sockets are there. */
struct tt_ofi_handle {
  struct tt_meeting_handle meeting;
  uint64_t pending;
};
_Static_assert(sizeof(struct tt_ofi_handle) <= NCCL_NET_HANDLE_MAXSIZE, "the handle has 128 bytes");

/* First bytes of both sides on the socket. */
struct tt_ofi_greeting {
  uint64_t magic;
  uint64_t host;      /* hash: providers that do not leave the host are refused across two */
  uint64_t piece_max; /* bytes of one write at most */
  uint64_t stripe;    /* bytes of a rail's part at least, if it has any */
  uint32_t rails;
  uint32_t eager;     /* bytes of payload in a packet at most */
  uint32_t immediate; /* bytes of a write's immediate data at most */
  char provider[TT_OFI_PROVIDER_BYTES];
  struct {
    uint32_t bytes;
    char address[TT_OFI_NAME_BYTES];
  } rail[TT_OFI_RAILS];
};

/* Notes on the socket later on. The end of the stream without a BYE means that the peer is lost. */
enum tt_ofi_note_kind {
  TT_OFI_ACK = 0x0f1a0001,  /* receiver to sender: `value` eager messages of the tag have met their receives */
  TT_OFI_BYE = 0x0f1a0002,  /* sender to receiver: closed in good order after `value` messages */
  TT_OFI_HEARD = 0x0f1a0003 /* receiver to sender: the BYE is heard, and there are `value` packets with places in all */
};
struct tt_ofi_note {
  uint32_t kind;
  int32_t tag;
  uint64_t value;
};

/* Packets. Sender to receiver: HELLO, EAGER with payload behind the header, RTS. Receiver to sender: HELLO, CTS, of
 * which a packet may hold several, one behind the other. Messages of a tag are numbered, as are the buffers for them,
 * on both sides alike: a message belongs to the buffer of its number, so nothing depends on the order in which packets
 * come. A CTS may come before its message.
 *
 * The data of a large message comes as writes with immediate data: the place that the CTS named. A CTS may promise one
 * for the tag's next buffer too, unasked; so does that one's then, until one without a place ends it. A message that
 * was promised a place waits for it, and has no RTS if its writes can say what that would (TT_OFI_WHOLE): of any
 * size below 4 GiB where both sides' immediate data has 64 bits, of which the upper half is the message's bytes; else
 * of one that fills its place. */
enum tt_ofi_packet_kind { TT_OFI_HELLO = 0x0f1b0001, TT_OFI_EAGER, TT_OFI_RTS, TT_OFI_CTS };
struct tt_ofi_header {
  uint32_t kind;
  int32_t tag;
  uint64_t bytes;  /* of the message; of a CTS: that have room */
  uint64_t number; /* of the tag's messages, from 0 */
};
struct tt_ofi_clear {
  struct tt_ofi_header header;
  uint32_t place;   /* immediate data of the writes: 31 bits; 0: this buffer's and later ones' are told if asked for */
  uint32_t promise; /* 1: the next buffer's is told unasked */
  struct {
    uint64_t address, key; /* where the message's first byte goes */
  } rail[TT_OFI_RAILS];    /* those that the connection has travel */
};
#define TT_OFI_WHOLE 0x80000000u /* in the immediate data, beside the place: there is no RTS */

static inline size_t tt_ofi_clear_bytes(int rails)
{
  return offsetof(struct tt_ofi_clear, rail) + (size_t)rails * sizeof((struct tt_ofi_clear *)0)->rail[0];
}

#endif
