/* The receiving side, shared by recv.c (requests) and match.c (which message goes where). */
#ifndef TT_NET_OFI_RECV_H
#define TT_NET_OFI_RECV_H

#include "counts.h"
#include "net_ofi.h"

#define TT_OFI_RECV_REQUESTS NCCL_NET_MAX_REQUESTS
/* Places to be told at a time: a slot may have given up one, for a small message, and need another. */
#define TT_OFI_CLEARINGS (4 * TT_OFI_RECV_REQUESTS * TT_OFI_RECVS)
#define TT_OFI_FLUSHES NCCL_NET_MAX_REQUESTS

/* One buffer of a receive. */
struct tt_ofi_slot {
  char *data;
  size_t room, bytes;
  int32_t tag;
  const struct tt_ofi_memory *memory;
  struct tt_ofi_memory *own; /* made for this message alone, where that was NULL */
  uint64_t number;           /* of the tag's buffers */
  bool matched;
  uint32_t left;  /* pieces of the message that have not come; meaningful once matched */
  uint32_t came;  /* pieces that came before the packet that tells of them */
  uint32_t place; /* that its writes name; 0: none is expected */
  bool told;      /* the peer knows the place */
};

struct tt_ofi_recv_comm;
struct tt_ofi_recv_request {
  struct tt_ofi_request base;
  struct tt_ofi_recv_comm *comm;
  struct tt_ofi_recv_request *next; /* free list, or the queue of receives with free slots */
  int n, matched;
  struct tt_ofi_slot slot[TT_OFI_RECVS];
};

/* A message that came before its receive. */
struct tt_ofi_early {
  struct tt_ofi_header header;
  struct tt_ofi_early *next;
  char data[]; /* of a small one */
};
struct tt_ofi_earlies {
  struct tt_ofi_early *first, **end;
};

/* A place that is to be told; 0: that there is none, ahead. */
struct tt_ofi_clearing {
  uint32_t place;
  struct tt_ofi_slot *slot; /* where it still has that place */
  int32_t tag;
  uint64_t number;
};

struct tt_ofi_flush;
struct tt_ofi_read {
  struct tt_ofi_op op; /* must be first */
  struct tt_ofi_flush *flush;
};
struct tt_ofi_flush {
  struct tt_ofi_request base;
  struct tt_ofi_recv_comm *comm;
  struct tt_ofi_flush *next;
  const struct tt_ofi_memory *memory;
  const void *data;
  uint64_t outlasts_ns; /* since when its link has failed, as far as it knows; 0: it has not */
  int posted;           /* rails */
  int left;
  struct tt_ofi_read read[TT_OFI_RAILS];
};

struct tt_ofi_recv_comm {
  struct tt_ofi_link link; /* must be first */
  struct tt_ofi_recv_request *free;
  struct tt_ofi_recv_request *open, **open_end; /* receives with a free slot, oldest first */
  uint64_t heard;                               /* messages that were told of, so far */
  struct tt_ofi_earlies early;                  /* have no receive */
  struct tt_ofi_clearing clearing[TT_OFI_CLEARINGS];
  int clearing_first, clearing_count; /* a ring */
  uint32_t places;                    /* that were given */
  bool asked;                         /* the peer waits for one of the clearings */
  struct tt_ofi_counts counts;
  bool unsaid;    /* acknowledgements that the socket did not take */
  int large_open; /* large messages that are not whole */
  struct tt_ofi_flush *free_flushes, *flushing;
  struct tt_ofi_flush flushes[TT_OFI_FLUSHES];
  struct tt_ofi_recv_request requests[TT_OFI_RECV_REQUESTS];
};

/* A message's header, and its payload if it is small. */
ncclResult_t tt_ofi_match_packet(struct tt_ofi_link *link, const struct tt_ofi_header *header, size_t bytes);
/* Gives early messages to the slots of a new receive, and tells the places of others ahead. */
ncclResult_t tt_ofi_match_receive(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request);
/* The peer has written a piece. `data`: its immediate data. */
ncclResult_t tt_ofi_match_written(struct tt_ofi_link *link, uint64_t data);
/* Clears and acknowledges what could not be before. */
ncclResult_t tt_ofi_match_progress(struct tt_ofi_recv_comm *comm);
void tt_ofi_match_free(struct tt_ofi_recv_comm *comm);

#endif
