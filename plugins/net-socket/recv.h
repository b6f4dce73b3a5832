/* The receiving side, shared by recv.c (the stream) and match.c (which message goes where). */
#ifndef TT_NET_SOCKET_RECV_H
#define TT_NET_SOCKET_RECV_H

#include "net_socket.h"

#define TT_NETSOCKET_STAGING ((size_t)8 << 10)

/* One buffer of a receive. */
struct tt_netsocket_slot {
  char *data;
  size_t room, bytes;
  int32_t tag;
  bool matched;
  _Atomic uint32_t left; /* pieces of the message that have not arrived; meaningful once matched */
};

struct tt_netsocket_recv_comm;
struct tt_netsocket_recv_request {
  struct tt_netsocket_request base;
  struct tt_netsocket_recv_comm *comm;
  struct tt_netsocket_recv_request *next; /* free list, or the queue of receives with free slots */
  int n, matched;
  struct tt_netsocket_slot slot[TT_NETSOCKET_RECVS];
};

/* A message that came before its receive while others were waited for. */
struct tt_netsocket_early {
  int32_t tag;
  size_t bytes;
  char *data;
  _Atomic uint32_t left;
  struct tt_netsocket_slot *slot; /* where it goes when it is complete */
  struct tt_netsocket_early *next;
};

/* A tag with many early messages: what the sender was told, or is to be told. */
enum tt_netsocket_pause_state { TT_NETSOCKET_TO_PAUSE, TT_NETSOCKET_PAUSED, TT_NETSOCKET_TO_RESUME };
struct tt_netsocket_pause {
  int32_t tag;
  enum tt_netsocket_pause_state state;
};
#define TT_NETSOCKET_PAUSES 64

/* Where the payload that follows on the main socket goes. */
struct tt_netsocket_arrival {
  bool active;
  char *data;
  size_t bytes, got;
  _Atomic uint32_t *left;
};

struct tt_netsocket_recv_comm {
  struct tt_netsocket_link link;
  struct tt_netsocket_recv_request *free;
  struct tt_netsocket_recv_request *open, **open_end; /* receives with a free slot, oldest first */
  struct tt_netsocket_early *early, **early_end;      /* oldest first */
  size_t early_bytes;
  int early_count;
  struct tt_netsocket_pause pauses[TT_NETSOCKET_PAUSES];
  int pause_count;
  struct tt_netsocket_header note; /* being sent */
  size_t note_left;
  struct tt_netsocket_arrival arrival;
  size_t begin, end; /* unread bytes in staging */
  bool ended;        /* the sender has closed behind a whole message; the lanes may have more of those before it */
  char staging[TT_NETSOCKET_STAGING];
  struct tt_netsocket_recv_request requests[TT_NETSOCKET_RECV_REQUESTS];
};

/* Gives early messages to the slots of a new receive. */
ncclResult_t tt_netsocket_match_receive(struct tt_netsocket_recv_comm *comm, struct tt_netsocket_recv_request *request);
/* Finds the place of an arriving message and sets comm->arrival, or hands its stripes to the lanes. *stalled: it has to
 * wait, with its header unread, until something is posted or a lane has room. */
ncclResult_t tt_netsocket_match_message(struct tt_netsocket_recv_comm *comm, const struct tt_netsocket_header *header,
                                        bool *stalled);
/* Copies early messages that are complete and wanted, and sends notes that are due. */
ncclResult_t tt_netsocket_match_progress(struct tt_netsocket_recv_comm *comm);
void tt_netsocket_match_free(struct tt_netsocket_recv_comm *comm);

#endif
