/* The InfiniBand and RoCE net plugin, inside. A connection is one-way: a send comm here and a receive comm at the peer.
 *
 * A device is one port of a NIC, or several that work as one, its rails. A connection has some queue pairs on each
 * rail, used in both directions: for data, and for the receiver's clear-to-send entries (wire.h). Messages wait at the
 * sender until a receive with their tag has come, the oldest first; nothing is ever buffered. Beside them there is a
 * TCP socket, which makes the connection and then tells when the peer is gone. Nothing here ever blocks.
 *
 * Threads: the data path of a comm is used by one thread at a time, as the ABI says. Registrations take a lock of the
 * port. A thread a NIC reads asynchronous events and leaves a mark where they belong. */
#ifndef TT_NET_IB_H
#define TT_NET_IB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "verbs.h"
#include "wire.h"
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "base/socket.h"
#include "base/thread.h"
#include "base/timer.h"
#include "plugins/common/counters.h"

/* ---- devices.c: the process-wide state ---- */

#define TT_IB_PORTS 32    /* that are used */
#define TT_IB_DEVICES 256 /* ports and what is made of them */
#define TT_IB_NAME 64

/* A NIC; its ports share the context and the thread. */
struct tt_ib_nic {
  struct ibv_context *context;
  char name[TT_IB_NAME];
  int max_qp, max_wr;
  int stop_fd; /* eventfd that ends the thread; -1: there is none */
  pthread_t thread;
  /* The fatal event that the NIC has reported, plus 1; 0 while it is well. */
  _Atomic int fatal;
};

struct tt_ib_mr {
  uintptr_t address; /* whole pages */
  size_t bytes;
  int users;
  struct ibv_mr *mr;
};

struct tt_ib_port {
  struct tt_ib_nic *nic;
  const char *name; /* of the NIC */
  int number;
  uint8_t link_layer, mtu, flags;
  uint16_t lid;
  int gid_index;
  union ibv_gid gid;
  uint64_t guid; /* of the card */
  int speed;     /* megabits a second */
  int card_port; /* how many devices of the same card come before it */
  int rail, plane;
  uint32_t max_message;
  bool adaptive; /* packets may overtake each other */
  bool takes_peer_memory, takes_dmabuf;
  char pci_path[512]; /* without the function; "" if there is none */
  char full_path[512];
  struct ibv_pd *pd;
  _Atomic uint64_t down_since_ns; /* 0: the port is up */
  _Atomic uint64_t up_since_ns;   /* 0: ever */
  pthread_mutex_t lock;           /* guards the registrations */
  struct tt_ib_mr *mrs;           /* by address */
  int mr_count, mr_room;
};

/* What the caller sees as a device: a port, or several. */
struct tt_ib_device {
  int index;
  char name[TT_IB_NAME * TT_IB_RAILS];
  int count;
  int port[TT_IB_RAILS]; /* indices; also of devices, since ports come first */
  int speed, rail, plane;
};

/* Counted: the last close ends the threads, closes the NICs and stops logging. */
ncclResult_t tt_ib_open(ncclDebugLogger_t logger);
ncclResult_t tt_ib_close(void);
int tt_ib_device_count(void);
/* ncclInternalError if there is no such device. Valid until the last close. */
ncclResult_t tt_ib_device(int index, const struct tt_ib_device **device);
struct tt_ib_port *tt_ib_port(int index);
ncclResult_t tt_ib_merge(const int *ports, int count, int *index);
/* Where listeners listen. */
const union tt_address *tt_ib_address(void);
/* Comms that exist: the NICs are not closed under them. */
void tt_ib_comm_counts(int change);

/* ---- ports.c: finding ports ---- */

/* Opens the NIC and describes those of its ports that pass the filter and are up; adds them to `ports`. Failures of one
 * NIC or port are logged and passed over. *used: some port was added, so the context is in use. */
struct tt_ib_hca_filter;
struct tt_ib_gid_wish;
ncclResult_t tt_ib_ports_find(struct tt_ib_nic *nic, struct ibv_device *device, const struct tt_ib_hca_filter *filter,
                              const struct tt_ib_gid_wish *wish, struct tt_ib_port *ports, int *count);
const char *tt_ib_link_name(uint8_t link_layer);

/* ---- events.c ---- */

ncclResult_t tt_ib_events_start(struct tt_ib_nic *nic);
void tt_ib_events_stop(struct tt_ib_nic *nic);

/* ---- register.c ---- */

/* A registration: with each rail of a comm. */
struct tt_ib_memory {
  bool host; /* processors can read it */
  int count;
  struct tt_ib_port *port[TT_IB_RAILS];
  struct ibv_mr *mr[TT_IB_RAILS];
};
struct tt_ib_link;
/* fd -1: by address. */
ncclResult_t tt_ib_register(struct tt_ib_link *link, void *data, size_t bytes, int type, uint64_t offset, int fd,
                            struct tt_ib_memory **memory);
ncclResult_t tt_ib_deregister(struct tt_ib_memory *memory);
/* For memory of the comm itself, with strict order on PCI. */
ncclResult_t tt_ib_register_own(struct tt_ib_port *port, void *data, size_t bytes, struct ibv_mr **mr);
/* Whether regMr takes GPUs' memory (a driver's module gives NICs their addresses), and regMrDmaBuf works. */
bool tt_ib_peer_memory(void);
bool tt_ib_dmabuf_works(struct ibv_pd *pd);

/* ---- qp.c ---- */

struct tt_ib_qp {
  struct ibv_qp *qp;
  int rail, remote_rail;
  uint32_t remote_number;
  uint32_t depth;                     /* of the send queue */
  uint32_t posted, retired, signaled; /* counts of requests; `signaled`: up to the last that will tell */
  uint32_t max_inline;
  uint32_t receives; /* requests on the receive queue */
  struct tt_ib_port *port;
  bool dead; /* failed, and others took over */
};

struct tt_ib_path {
  uint8_t traffic_class, service_level;
  uint32_t flow_label;
  struct tt_ib_wire_rail remote;
};
/* In state INIT. receives: depth of the receive queue. */
ncclResult_t tt_ib_qp_make(struct tt_ib_qp *qp, struct tt_ib_port *port, struct ibv_cq *cq, void *user, uint32_t depth,
                           uint32_t receives, uint32_t max_inline);
/* Through RTR to RTS. */
ncclResult_t tt_ib_qp_connect(struct tt_ib_qp *qp, const struct tt_ib_path *path);
/* Has it stop: whatever is on it completes with an error, and nothing arrives any more. */
void tt_ib_qp_stop(struct tt_ib_qp *qp);
void tt_ib_qp_end(struct tt_ib_qp *qp);
/* The flow label of queue pair `index` of a connection: RoCE takes the UDP source port from it, by which switches
 * choose among equal ways, so each has another. */
uint32_t tt_ib_flow_label(uint64_t connection, int index);

/* ---- link.c: what both kinds of comm share ---- */

struct tt_ib_rail {
  struct tt_ib_port *port;
  struct ibv_cq *cq;
  struct ibv_mr *mr; /* of the comm's shared memory */
  uint32_t covered;  /* a receiver: the first of its flushes' requests that is behind all that has come over the NIC */
  bool lost;         /* while the connection was made, which others do without it */
  bool spent;        /* its NIC has failed, and nothing that it did before is left to be seen */
  tt_deadline spent_at; /* when that is known, if nothing more shows; 0 while the NIC is well */
};

/* How long to look for completions of what the peer did before it closed: they may be later than the socket's end. */
#define TT_IB_LINGER_MS 200
#define TT_IB_NOTES 32 /* that wait to be sent: one for each pair of rails, a few more */

struct tt_ib_link;
struct tt_ib_done;
/* What the two kinds of comm do differently. */
struct tt_ib_hooks {
  /* A request is done. */
  ncclResult_t (*done)(struct tt_ib_link *link, const struct tt_ib_done *done);
  /* The queue pairs that go the way of this one have failed, and are stopped; others are left. */
  ncclResult_t (*down)(struct tt_ib_link *link, int qp);
  /* DOWN, STATE or END has come. */
  ncclResult_t (*note)(struct tt_ib_link *link, const struct tt_ib_note *note);
};

struct tt_ib_link {
  const struct tt_ib_hooks *hooks;
  const struct tt_ib_device *device;
  struct tt_counted counted;
  bool sends;
  int fd;
  char peer[TT_ADDRESS_TEXT];
  ncclResult_t failed; /* once set, every call returns it */
  bool left;           /* it failed since the peer has left, so that what came before can be flushed still */
  bool told;           /* the peer, of the failure */
  int rails, qps, pieces;
  int loops; /* queue pairs behind the others, one a rail, that flushes go over; or 0 */
  struct tt_ib_rail rail[TT_IB_RAILS];
  struct tt_ib_qp qp[TT_IB_QPS + TT_IB_RAILS];
  struct tt_ib_card remote;
  int patience_ms;        /* how long a NIC tries, by NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT */
  unsigned rounds;        /* of progress, so that the socket is looked at now and then */
  bool ended;             /* a sender: the receiver closes, and has said what it has */
  tt_deadline lost_since; /* 0: the peer's socket is open. Else: when to stop looking for what came before its end */
  struct tt_ib_note note; /* being received */
  size_t note_got;
  struct tt_ib_note *notes; /* to be sent; TT_IB_NOTES of them once there was one */
  int note_count;
  size_t note_sent; /* of the first */
  bool drains;      /* a receiver: dead queue pairs have requests left, or are to be reported */
  bool reported[TT_IB_QPS];
  _Atomic int event; /* fatal event of a queue of this comm, plus 1; set by the thread of the NIC */
};

/* What a request on a queue pair is for; travels in wr_id. */
enum tt_ib_work {
  TT_IB_WORK_DATA,
  TT_IB_WORK_LAST,
  TT_IB_WORK_CLEAR,
  TT_IB_WORK_RECEIVE,
  TT_IB_WORK_FLUSH,
  TT_IB_WORK_LOOK
};
struct tt_ib_done {
  enum tt_ib_work work;
  int qp, slot, piece;
  uint32_t imm; /* of a receive */
};

/* Makes rails, of those ports of the device whose NICs are there, and queue pairs for `memory`, which stays the
 * caller's. On failure all is undone. */
ncclResult_t tt_ib_link_make(struct tt_ib_link *link, const struct tt_ib_hooks *hooks, bool sends,
                             const struct tt_ib_device *device, int qps, int pieces, void *memory, size_t bytes);
ncclResult_t tt_ib_link_add_loops(struct tt_ib_link *link);
/* What this side tells the other. */
void tt_ib_link_card(const struct tt_ib_link *link, const void *memory, struct tt_ib_card *card);
/* Takes over the socket that the two sides have met over. */
void tt_ib_link_met(struct tt_ib_link *link, int fd);
/* Connects the queue pairs with those of the card, but of rails that are lost meanwhile. */
ncclResult_t tt_ib_link_connect(struct tt_ib_link *link, const struct tt_ib_card *card, uint8_t traffic_class);
void tt_ib_link_end(struct tt_ib_link *link);

/* ---- making.c ---- */

/* A NIC that was removed says so to whatever it is asked, maybe before its event has been read. */
bool tt_ib_port_gone(const struct tt_ib_port *port);
/* Making it has failed: a NIC has gone since the ports were chosen, and others are left? */
bool tt_ib_makes_anew(const struct tt_ib_link *link);
/* Something of the rail has failed: is it lost, and are others left? Then its queue pairs count no more. */
bool tt_ib_makes_without(struct tt_ib_link *link, int rail);
/* Once the two sides are connected, as far as this one is concerned. */
ncclResult_t tt_ib_give_up_lost(struct tt_ib_link *link);

/* ---- progress.c ---- */

/* Keeps and returns the result of TT_FAIL, and tells the peer. */
ncclResult_t tt_ib_link_fail(struct tt_ib_link *link, ncclResult_t result);
/* Room for so many more requests on the send queue? */
bool tt_ib_link_room(const struct tt_ib_link *link, int qp, uint32_t count);
/* Posts one request; there must be room. Its completion tells only if asked to, or where the queue would fill up. */
ncclResult_t tt_ib_link_post(struct tt_ib_link *link, int qp, struct ibv_send_wr *wr, struct tt_ib_done what,
                             bool tell);
ncclResult_t tt_ib_link_post_receive(struct tt_ib_link *link, int qp);
/* Polls all rails, and looks after the peer, the ports and the NICs. */
ncclResult_t tt_ib_link_progress(struct tt_ib_link *link);
/* Polls all rails of a link that has failed since the peer left; the failure of a flush is another. */
ncclResult_t tt_ib_link_look(struct tt_ib_link *link);
/* Before memory is used (NULL is none): a NIC that had failed when it was registered is not in it, so the comm must
 * have heard of that. */
ncclResult_t tt_ib_link_look_for(struct tt_ib_link *link, const struct tt_ib_memory *memory);

/* ---- notes.c: what is said over the socket ---- */

/* Sends it now or with the next calls of progress; one that does not fit any more is dropped. */
void tt_ib_note_send(struct tt_ib_link *link, const struct tt_ib_note *note);
void tt_ib_notes_flush(struct tt_ib_link *link);
/* Reads what has come. */
ncclResult_t tt_ib_notes_read(struct tt_ib_link *link);
/* Before the socket is closed. */
void tt_ib_notes_discard(struct tt_ib_link *link);

/* ---- failover.c ---- */

/* Do both go between the same two rails? Then what has happened to one has to the other. */
bool tt_ib_same_way(const struct tt_ib_link *link, int qp, int other);
/* The queue pair to use in place of this one: itself while it is well, -1 if none is. */
int tt_ib_alive(const struct tt_ib_link *link, int qp);
bool tt_ib_rail_alive(const struct tt_ib_link *link, int rail);
/* Something has come over the rail. */
void tt_ib_unflushed(struct tt_ib_link *link, int rail);
/* Is all flushed that has come over its NIC? */
bool tt_ib_is_flushed(const struct tt_ib_link *link, int rail);
/* Is there another port in use that flushes what this rail's has written, since it is one of the same NIC? */
bool tt_ib_other_flushes(const struct tt_ib_link *link, int rail);
/* Stops all queue pairs that go the same way, tells the comm, and *saved; unless no other would be left. `why`, for the
 * log. */
ncclResult_t tt_ib_fail_over(struct tt_ib_link *link, int qp, const char *why, bool *saved);
/* The same for all ways that begin at the rail; they need not all be there still. */
ncclResult_t tt_ib_fail_over_rail(struct tt_ib_link *link, int rail, const char *why, bool *saved);
/* A receiver: reports ways on which nothing is left. */
ncclResult_t tt_ib_report_drained(struct tt_ib_link *link, void (*describe)(struct tt_ib_link *, struct tt_ib_note *));

/* ---- status.c ---- */

/* What a completion's status means and what to check; for progress.c and the documentation's table. */
struct tt_ib_status {
  const char *words, *check;
  bool remote; /* the peer or the network, not this side */
  bool path;   /* another way may do where this one failed */
};
struct tt_ib_status tt_ib_status(enum ibv_wc_status status);

/* ---- listen.c, connect.c ---- */

ncclResult_t tt_ib_listen(int dev, void *handle, void **listen_comm);
ncclResult_t tt_ib_accept(void *listen_comm, void **recv_comm);
ncclResult_t tt_ib_close_listen(void *listen_comm);
/* traffic_class: of the communicator, or -1; user: of the attempt (attempts.h) */
ncclResult_t tt_ib_connect(int dev, uint64_t user, int traffic_class, void *handle, void **send_comm);
/* Ends the user's attempts that were never completed. */
void tt_ib_connect_forget(uint64_t user);
extern const struct tt_meeting_kind tt_ib_meeting;
/* The number of queue pairs of a connection between two devices, and of pieces of its messages. */
int tt_ib_qps_between(int rails, int qps, int remote_rails, int remote_qps, int *pieces);
/* Moves what can be moved now; *done counts. Closed: ncclRemoteError without a word. */
ncclResult_t tt_ib_socket_move(int fd, bool send, void *data, size_t bytes, size_t *done);

/* ---- send.c with match.c, pieces.c and settle.c, recv.c with tell.c and flush.c: comms and requests ---- */

/* First member of all kinds of request. */
enum tt_ib_request_kind { TT_IB_REQUEST_NONE, TT_IB_REQUEST_SEND, TT_IB_REQUEST_RECV, TT_IB_REQUEST_FLUSH };
struct tt_ib_request {
  enum tt_ib_request_kind kind;
};

struct tt_ib_send_comm;
ncclResult_t tt_ib_send_make(const struct tt_ib_device *device, int qps, int pieces, struct tt_ib_send_comm **comm);
struct tt_ib_link *tt_ib_send_link(struct tt_ib_send_comm *comm);
void *tt_ib_send_memory(struct tt_ib_send_comm *comm);
ncclResult_t tt_ib_isend(void *send_comm, void *data, size_t bytes, int tag, void *memory, void **request);
ncclResult_t tt_ib_send_test(struct tt_ib_request *request, int *done, int *sizes);
ncclResult_t tt_ib_close_send(void *send_comm);

struct tt_ib_recv_comm;
ncclResult_t tt_ib_recv_make(const struct tt_ib_device *device, int qps, int pieces, struct tt_ib_recv_comm **comm);
struct tt_ib_link *tt_ib_recv_link(struct tt_ib_recv_comm *comm);
void *tt_ib_recv_memory(struct tt_ib_recv_comm *comm);
/* Once connected: posts the receives. */
ncclResult_t tt_ib_recv_start(struct tt_ib_recv_comm *comm);
ncclResult_t tt_ib_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **memory,
                         void **request);
ncclResult_t tt_ib_iflush(void *recv_comm, int n, void **data, const int *sizes, void **memory, void **request);
ncclResult_t tt_ib_recv_test(struct tt_ib_request *request, int *done, int *sizes);
ncclResult_t tt_ib_close_recv(void *recv_comm);

#endif
