/* The sending side, shared by send.c (requests) and write.c (large messages).
 *
 * A small message becomes a packet at once. Of a large one a packet tells, unless the receiver knows its size; it is
 * written, in pieces over all rails, once the receiver has said where, which it may have done ahead. Each tag has its
 * requests, and only so many small messages that have not met their receives (the window); those beyond it are held,
 * and others pass. */
#ifndef TT_NET_OFI_SEND_H
#define TT_NET_OFI_SEND_H

#include "counts.h"
#include "net_ofi.h"
#include "plugins/common/send_tags.h"

#define TT_OFI_WRITES 32                                     /* pieces under way */
#define TT_OFI_PLACES (NCCL_NET_MAX_REQUESTS * TT_OFI_RECVS) /* buffers that the receiver has at a time, at most */

struct tt_ofi_send_comm;
struct tt_ofi_send_request {
  struct tt_sending sending; /* must be first */
  struct tt_ofi_request base;
  struct tt_ofi_send_comm *comm;
  struct tt_ofi_send_request *other; /* of a large one, in asking or writing */
  char *data;
  size_t bytes;
  const struct tt_ofi_memory *memory;
  struct tt_ofi_memory *own; /* made for this message alone, of memory that is not registered */
  bool small;
  bool told;  /* its packet has left, or it needs none */
  bool quiet; /* of a large one: no packet tells of it, since it was promised a place */
  bool done;
  uint64_t number; /* of the tag's messages */
  /* Of a large one that is being written. */
  struct tt_ofi_clear clear;
  bool whole;       /* its writes say how large it is */
  int rail;         /* the next piece's */
  int first_rail;   /* the first stripe's */
  size_t stripe_at; /* bytes of that rail's stripe that are posted */
  uint32_t writes;  /* under way */
  bool posted;      /* all of it */
};

struct tt_ofi_write {
  struct tt_ofi_op op; /* must be first */
  struct tt_ofi_send_request *request;
  struct tt_ofi_write *next;
};

struct tt_ofi_send_comm {
  struct tt_ofi_link link; /* must be first */
  struct tt_send_tags tags;
  int held_count;
  struct tt_sending_list ready;                       /* have no packet yet */
  struct tt_ofi_send_request *asking;                 /* large ones without a place */
  struct tt_ofi_send_request *writing, **writing_end; /* have a place, and pieces to be posted */
  struct tt_ofi_counts counts;
  struct tt_ofi_clear clears[TT_OFI_PLACES]; /* that came ahead of their messages */
  int clear_count;
  uint64_t told;        /* messages that the receiver hears of, so far */
  uint64_t done_ns;     /* when a message was last done */
  unsigned since_heard; /* small messages */
  struct tt_ofi_write writes[TT_OFI_WRITES], *free_writes;
};

/* ---- write.c ---- */

void tt_ofi_write_init(struct tt_ofi_send_comm *comm);
/* Gives a message the place that came ahead, if one did, and sees to it that it is written; else it will be when one
 * comes. Nothing happens to a small one, but that it uses up its place. `promised`: a place comes without asking. */
void tt_ofi_write_begin(struct tt_ofi_send_comm *comm, struct tt_ofi_send_request *request, bool promised);
/* A packet with places came. */
ncclResult_t tt_ofi_write_clear(struct tt_ofi_link *link, const struct tt_ofi_header *header, size_t bytes);
/* Posts what it can. */
ncclResult_t tt_ofi_write_all(struct tt_ofi_send_comm *comm);
void tt_ofi_write_done(struct tt_ofi_link *link, struct tt_ofi_op *op);

/* ---- send.c ---- */

/* A packet shall tell of a message. */
void tt_ofi_send_tell(struct tt_ofi_send_request *request);
/* A message is done when it is told of and wholly written. */
void tt_ofi_send_finish(struct tt_ofi_send_request *request);

#endif
