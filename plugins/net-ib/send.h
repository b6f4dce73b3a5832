/* The sending side's comm. A receive of the peer is a group here: its clear-to-send entries, the messages that are
 * given to it, and the pieces in which these are written, each on a queue pair of its own. */
#ifndef TT_IB_SEND_H
#define TT_IB_SEND_H

#include "net_ib.h"

#define TT_IB_SEND_TAGS 256 /* in flight at once */
#define TT_IB_SEND_BLOCK NCCL_NET_MAX_REQUESTS

struct tt_ib_send_request {
  struct tt_ib_request base;
  struct tt_ib_send_comm *comm;
  struct tt_ib_send_request *next; /* free, or waiting */
  char *data;
  size_t bytes;
  uint32_t tag;
  const struct tt_ib_memory *memory;
  bool done, too_large;
};

/* A receive of the peer, and what is written for it. */
struct tt_ib_group {
  bool active;
  uint64_t number;
  int count, matched;
  struct tt_ib_clear entry[TT_IB_RECVS];
  struct tt_ib_send_request *request[TT_IB_RECVS];
  int pieces, left;              /* left: pieces that are not known to have arrived */
  uint32_t arrived;              /* the others, as bits */
  uint8_t carrier[TT_IB_PIECES]; /* the queue pair of each */
  bool record;
};

/* The pieces that wait for room on a queue pair, and how far the first is. */
struct tt_ib_lane {
  uint16_t *queue; /* slot << 8 | piece */
  uint32_t head, tail, size;
  int member;
  size_t offset; /* of the member's slice */
};

struct tt_ib_send_block {
  struct tt_ib_send_block *next;
  struct tt_ib_send_request request[TT_IB_SEND_BLOCK];
};

struct tt_ib_send_shared {
  struct tt_ib_ring ring;                  /* written by the receiver */
  struct tt_ib_record record[TT_IB_SLOTS]; /* what is written into its records */
  uint64_t done[TT_IB_SLOTS];              /* what was read of its inbox */
};

struct tt_ib_send_comm {
  struct tt_ib_link link; /* first: registrations know only it */
  struct tt_ib_send_shared *memory;
  uint64_t next, oldest; /* receives: the next to look for; the oldest that is not done */
  struct tt_ib_group group[TT_IB_SLOTS];
  struct tt_ib_lane lane[TT_IB_QPS];
  uint32_t queued; /* pieces in all lanes */
  bool unsettled;  /* a way has failed, and some pieces that went there may be there or not */
  bool looking;    /* a read of the receiver's inbox is under way */
  tt_deadline look_at;
  struct tt_ib_send_request *waiting, **waiting_end, *free;
  struct tt_ib_send_block *blocks;
  struct {
    uint32_t tag;
    int in_flight;
  } tag[TT_IB_SEND_TAGS];
  int tags;
  size_t threshold; /* of adaptive routing; SIZE_MAX without */
};

static inline struct tt_ib_group *tt_ib_group_of(struct tt_ib_send_comm *comm, uint64_t number)
{
  return &comm->group[number % TT_IB_SLOTS];
}

/* Once for each piece. */
void tt_ib_piece_arrived(struct tt_ib_send_comm *comm, struct tt_ib_group *group, int piece);

/* ---- match.c: which message goes into which buffer ---- */

/* Gives the oldest free buffer with the tag of the request to it; false if there is none. */
bool tt_ib_match_request(struct tt_ib_send_comm *comm, struct tt_ib_send_request *request);
/* Looks whether the receiver has cleared more, and gives the buffers to messages that wait. */
ncclResult_t tt_ib_look_for_clear(struct tt_ib_send_comm *comm);

/* ---- pieces.c: writes ---- */

/* All messages of the receive are there: shares it out to the queue pairs, which the receives take in turn. */
void tt_ib_queue_group(struct tt_ib_send_comm *comm, uint64_t number);
/* One piece, which went the way of a queue pair that failed. */
void tt_ib_queue_again(struct tt_ib_send_comm *comm, int slot, int piece);
/* Forgets what waits for queue pairs that go the way of this one. */
void tt_ib_drop_lanes(struct tt_ib_send_comm *comm, int qp);
/* Posts what there is room for. */
ncclResult_t tt_ib_post_lanes(struct tt_ib_send_comm *comm);

/* ---- settle.c: what became of the pieces that went a way that failed ---- */

/* The hooks of a link. */
ncclResult_t tt_ib_settle_later(struct tt_ib_link *link, int qp);
ncclResult_t tt_ib_take_note(struct tt_ib_link *link, const struct tt_ib_note *note);
/* Looks into the receiver's inbox now and then, until all is known. */
ncclResult_t tt_ib_settle(struct tt_ib_send_comm *comm);
/* It has been read. */
void tt_ib_take_look(struct tt_ib_send_comm *comm);

#endif
