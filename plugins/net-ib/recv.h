/* The receiving side's comm. */
#ifndef TT_IB_RECV_H
#define TT_IB_RECV_H

#include "net_ib.h"

#define TT_IB_FLUSHES 256 /* numbers of flushes that are under way; slot and piece of wr_id together */

struct tt_ib_recv_request {
  struct tt_ib_request base;
  struct tt_ib_recv_comm *comm;
  int n;
  uint64_t number;
  uint32_t arrived, wanted; /* pieces, as bits */
  bool record, done;
  bool told; /* the sender, over this queue pair: */
  int told_qp;
  uint64_t bytes[TT_IB_RECVS]; /* that came */
  size_t room[TT_IB_RECVS];
};

/* A read of what was received, through each NIC that may have written it: when it is done, so are the writes. */
struct tt_ib_flush_request {
  struct tt_ib_request base;
  struct tt_ib_recv_comm *comm;
  struct tt_ib_flush_request *next;
  uint64_t address;
  const struct tt_ib_memory *memory;
  uint32_t to_post, left;     /* rails, as bits */
  tt_deadline outlasts;       /* the connection, at most so long; 0: it has not failed */
  uint32_t read[TT_IB_RAILS]; /* the number of its request on each */
};

struct tt_ib_recv_shared {
  struct tt_ib_inbox inbox; /* written and read by the sender */
  struct tt_ib_ring ring;   /* what is written into its ring */
  uint64_t flushed;         /* where flushes read to */
};

struct tt_ib_recv_comm {
  struct tt_ib_link link; /* first: registrations know only it */
  struct tt_ib_recv_shared *memory;
  uint64_t next, oldest; /* receive; that is not done */
  struct tt_ib_recv_request request[TT_IB_SLOTS];
  int told, untold; /* receives that are not done, of which the sender knows or does not */
  int ended;        /* of which no other has taken the place */
  bool gaps;        /* some of the untold may come before others that are told, which the sender does not see then */
  int tag;          /* of the receives from `alike` on, which have one buffer each */
  uint64_t alike;
  bool unsure;                 /* the sender has not said of all ways that failed that its end is stopped, too */
  bool stopped[TT_IB_QPS];     /* it has, of the way of this queue pair */
  uint64_t doubt[TT_IB_SLOTS]; /* 1 + the number of the receive that was told over one of which it has not; or 0 */
  struct tt_ib_flush_request *flush[TT_IB_FLUSHES], *free_flushes;
  int flushes_to_post;
};

/* Whenever something may have moved. */
ncclResult_t tt_ib_recv_progress(struct tt_ib_recv_comm *comm);

/* ---- tell.c: what the sender is told of receives ---- */

/* After a receive was posted, and whenever some may be done. */
ncclResult_t tt_ib_tell_sender(struct tt_ib_recv_comm *comm);
/* The hooks of a link. */
ncclResult_t tt_ib_untell_way(struct tt_ib_link *link, int qp);
ncclResult_t tt_ib_take_down(struct tt_ib_link *link, const struct tt_ib_note *note);

/* ---- flush.c ---- */

/* A read is done. */
void tt_ib_take_flush(struct tt_ib_recv_comm *comm, const struct tt_ib_done *done);
/* Posts what there is room for. */
ncclResult_t tt_ib_post_flushes(struct tt_ib_recv_comm *comm);
ncclResult_t tt_ib_flush_test(struct tt_ib_flush_request *flush, int *done);
void tt_ib_flushes_free(struct tt_ib_recv_comm *comm);

#endif
