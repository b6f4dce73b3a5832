/* What travels: the handle of a listener (through the caller's bootstrap), what the two sides of a connection tell each
 * other over a TCP socket, and what they write into each other's memory. All in the host's byte order; the magic number
 * reveals a peer of the other order.
 *
 * Data. The receiver keeps a ring of receives, and writes a clear-to-send entry for each buffer of each receive into
 * the sender's ring of the same shape. The sender writes a message straight into its buffer, in pieces over several
 * queue pairs where that pays, and announces each piece by the immediate data of its last write. */
#ifndef TT_IB_WIRE_H
#define TT_IB_WIRE_H

#include <stdint.h>
#include <infiniband/verbs.h>
#include "plugins/common/meeting.h"
#include "tutti/net.h"

/* "TTIBNET" and the version of this protocol. */
#define TT_IB_MAGIC 0x545449424e455403ull

#define TT_IB_SLOTS 32 /* receives in flight; at least NCCL_NET_MAX_REQUESTS */
#define TT_IB_RECVS 8  /* buffers of a receive */
#define TT_IB_RAILS NCCL_NET_MAX_DEVS_PER_NIC_V12
#define TT_IB_QPS 128   /* of a connection */
#define TT_IB_PIECES 32 /* of a message */

/* Written by listen into the caller's handle. `pending` is 0 on the wire; the connecting side keeps the number of its
 * attempt there between calls, since the storage is the same in each. */
struct tt_ib_handle {
  struct tt_meeting_handle meeting; /* first */
  uint32_t rails;                   /* ports behind the listener's device */
  uint32_t qps;                     /* queue pairs that it wants on each */
  uint64_t pending;
};
_Static_assert(sizeof(struct tt_ib_handle) <= NCCL_NET_HANDLE_MAXSIZE, "the handle has 128 bytes");

/* A port of one side. */
struct tt_ib_wire_rail {
  union ibv_gid gid;
  uint32_t rkey; /* of the side's shared memory, through this port */
  uint16_t lid;
  uint8_t link_layer, mtu;
  char name[40]; /* for the other side's errors */
};

/* All that a side tells the other once they have met: the sender first, then the receiver in answer. */
struct tt_ib_card {
  uint64_t connection; /* random, of the sender's choice */
  uint64_t memory;     /* address of the side's shared memory: the sender's ring of entries, the receiver's inbox */
  uint32_t rails, qps;
  uint32_t pieces; /* into which a message is cut */
  uint8_t traffic_class, service_level;
  uint8_t unused[2];
  char refusal[160]; /* not empty: the connection cannot be made, and why */
  struct tt_ib_wire_rail rail[TT_IB_RAILS];
  uint32_t qp[TT_IB_QPS]; /* queue pair i is on rail i mod rails, of either side */
};

/* After that, on the socket: the sender's GO, which says that its queue pairs are ready. Then, from either side,
 * FAILED; from the sender, DOWN: the queue pairs between two rails, of which `value` is one, have failed, and are
 * stopped, also in answer to STATE; from the receiver, STATE, in answer or of its own accord: they take nothing any
 * more, and this is what has arrived; and END before it closes, which says the same of all. */
enum tt_ib_note_kind {
  TT_IB_GO = 0x7e551b01,
  TT_IB_FAILED = 0x7e551b02,
  TT_IB_DOWN = 0x7e551b03,
  TT_IB_STATE = 0x7e551b04,
  TT_IB_END = 0x7e551b05
};
struct tt_ib_note {
  uint32_t kind;
  uint32_t value; /* FAILED: the result */
  union {
    char text[384];
    struct {
      uint32_t number;  /* of the last receive of the slot, as of the low bits of its sequence number; 0: none yet */
      uint32_t arrived; /* its pieces, as bits; all of them if it is done */
    } slot[TT_IB_SLOTS];
  };
};

/* A clear-to-send entry: one buffer of a receive. Entry b of receive s is at [s mod slots][b] of the sender's ring. The
 * sequence number comes last, since NICs write in the order of addresses. */
struct tt_ib_clear {
  uint64_t address;
  uint64_t bytes;
  uint32_t rkey[TT_IB_RAILS];
  uint32_t tag;
  uint32_t count;    /* of the buffers of the receive */
  uint64_t sequence; /* 1 + the number of the receive */
};
_Static_assert(sizeof(struct tt_ib_clear) == 64, "an entry is a cache line");
struct tt_ib_ring {
  struct tt_ib_clear entry[TT_IB_SLOTS][TT_IB_RECVS];
};

/* Sizes of the messages of a receive, where they do not fit the immediate data. */
struct tt_ib_record {
  uint64_t bytes[TT_IB_RECVS];
};

/* The receiver's memory. A sender that does not know what arrived reads `done`: 1 + the number of the last receive of
 * each slot that is done. */
struct tt_ib_inbox {
  struct tt_ib_record record[TT_IB_SLOTS];
  uint64_t done[TT_IB_SLOTS];
};

/* Immediate data: which piece of which receive this is. ONLY: there is no other piece. RECORD: sizes are in the record,
 * else it is this receive's single message, of so many bytes; only piece 0 has the two. */
#define TT_IB_IMM_RECORD 0x80000000u
#define TT_IB_IMM_ONLY 0x40000000u
#define TT_IB_IMM_SLOT_SHIFT 25
#define TT_IB_IMM_PIECE_SHIFT 20
#define TT_IB_IMM_BYTES 0xfffffu
_Static_assert(TT_IB_SLOTS <= 32 && TT_IB_PIECES <= 32, "five bits each");

#endif
