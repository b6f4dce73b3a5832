/* The libfabric net plugin, inside. A connection is one-way: a send comm here and a receive comm at the peer.
 *
 * A comm has an endpoint of its own (FI_EP_RDM) on each NIC of its device, a rail each, and a socket to the other side.
 * Small messages go as packets of rail 0, copied at both ends. Of a large one the packet only tells (RTS); the receiver
 * says where it goes, with addresses and keys (CTS), ahead if the tag's last message was large too, and the sender
 * writes it in pieces over all rails, each with immediate data, which the receiver counts. Of one that fills the buffer
 * that it was told of ahead the pieces themselves tell. So nothing depends on an order that a provider might not keep:
 * messages are numbered, and one is complete when all its pieces are, whichever comes last.
 *
 * Tags: the n-th message of a tag goes to the n-th buffer of that tag; one without a receive is kept aside. Of each tag
 * only so many small messages may be on their way or aside (the receiver acknowledges by the dozen, over the socket),
 * and no more large ones than requests.
 *
 * The socket carries what connecting needs, acknowledgements, the goodbye and its answer, and its end tells at once
 * that the peer is gone, which an endpoint without connections would never say.
 *
 * Endpoints of a comm's own, and not shared ones: closing a comm ends at once all that it has under way, whatever the
 * provider, and comms of several threads have no lock in common.
 *
 * Threads: the data path of a comm is used by one thread at a time, as the ABI says; registrations beside it touch
 * only the domain, which is opened for any number of threads. */
#ifndef TT_NET_OFI_H
#define TT_NET_OFI_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "base/socket.h"
#include "base/timer.h"
#include "fabric.h"
#include "plugins/common/counters.h"
#include "wire.h"

#define TT_OFI_NICS 32
#define TT_OFI_DEVICES (2 * TT_OFI_NICS) /* with those that are several NICs */
#define TT_OFI_RECVS 8                   /* receives in a group */
#define TT_OFI_GATHER 4                  /* places that one packet tells of at most */
/* The socket is heard as often, where something is waited for, and before places are told. */
#define TT_OFI_HEAR_NS ((uint64_t)1000000)

/* ---- nic.c: a NIC, which is a domain of libfabric ---- */

struct tt_ofi_nic {
  char name[64];      /* the domain's */
  char pci_path[512]; /* "" for a virtual one */
  struct fi_info *info;
  union tt_address address; /* that its comms' sockets listen on */
  int speed;                /* megabits a second */
  bool hmem;                /* reaches memory of GPUs */
  /* Open while a comm uses it; the lock guards that. */
  pthread_mutex_t lock;
  int users;
  struct fid_fabric *fabric;
  struct fid_domain *domain;
  _Atomic uint64_t last_key; /* for providers that let the user choose keys */
};

/* Whether to ask libfabric at all, which takes a quarter of a second: there is a NIC, or somebody wants a provider that
 * needs none. Else a phrase in `why`. */
bool tt_ofi_nics_likely(char *why, size_t size);
/* Finds the NICs of one provider; *count 0 and a phrase in `why` if there are none. The infos are the caller's, to be
 * freed by tt_ofi_nics_free. */
ncclResult_t tt_ofi_nics_find(const struct tt_ofi_fabric *fabric, struct tt_ofi_nic nics[TT_OFI_NICS], int *count,
                              char *why, size_t size);
void tt_ofi_nics_free(const struct tt_ofi_fabric *fabric, struct tt_ofi_nic *nics, int count);
/* Bytes of a message that travel as a packet. */
size_t tt_ofi_nic_eager(const struct tt_ofi_nic *nic);
/* Counted. */
ncclResult_t tt_ofi_nic_open(struct tt_ofi_nic *nic);
void tt_ofi_nic_close(struct tt_ofi_nic *nic);

/* ---- devices.c: the process-wide state ---- */

struct tt_ofi_device {
  char name[200];
  int count; /* of NICs: 1, or more of one that makeVDevice made */
  int members[TT_OFI_RAILS];
  struct tt_ofi_nic *nic[TT_OFI_RAILS];
};

/* Counted: the last close forgets the devices, and ends what connect left unfinished. */
ncclResult_t tt_ofi_open(ncclDebugLogger_t logger);
ncclResult_t tt_ofi_close(void);
int tt_ofi_device_count(void);
/* ncclInternalError if there is no such device. It stays where it is until the last user goes. */
ncclResult_t tt_ofi_device(int index, struct tt_ofi_device **device);
/* Makes one of several; *out is its number. The same list gives the same number. */
ncclResult_t tt_ofi_device_fuse(const int *members, int count, int *out);

/* ---- memory.c ---- */

struct tt_ofi_link;
struct tt_ofi_memory {
  char *base;
  size_t bytes;
  int type; /* NCCL_PTR_HOST or NCCL_PTR_CUDA */
  int rails;
  struct fid_mr *mr[TT_OFI_RAILS];
};
ncclResult_t tt_ofi_memory_make(struct tt_ofi_link *link, void *data, size_t bytes, int type, uint64_t offset, int fd,
                                struct tt_ofi_memory **out);
ncclResult_t tt_ofi_memory_free(struct tt_ofi_link *link, struct tt_ofi_memory *memory);
/* Registers memory of the plugin itself, for local use. *mr stays NULL where the provider needs none. */
ncclResult_t tt_ofi_memory_own(struct tt_ofi_nic *nic, struct fid_ep *ep, void *data, size_t bytes, struct fid_mr **mr);
/* The error if data[0..bytes) is not inside. */
ncclResult_t tt_ofi_memory_holds(const struct tt_ofi_memory *memory, const void *data, size_t bytes, const char *call);
/* What a peer writes to, on that rail. */
uint64_t tt_ofi_memory_remote(const struct tt_ofi_link *link, const struct tt_ofi_memory *memory, int rail,
                              const void *data);

/* ---- rail.c: an endpoint with its packets ---- */

enum tt_ofi_op_kind { TT_OFI_OP_IN, TT_OFI_OP_OUT, TT_OFI_OP_WRITE, TT_OFI_OP_READ };
/* First member of whatever is posted: what a completion comes back with. */
struct tt_ofi_op {
  struct fi_context2 context; /* the provider's while it is posted; must be first */
  enum tt_ofi_op_kind kind;
};
struct tt_ofi_packet {
  struct tt_ofi_op op;
  char *data; /* a header, and what follows it */
  size_t bytes;
  void *owner;  /* request that is told when the packet is sent, or NULL */
  bool injects; /* if it is short enough. Only where a request of its comm is under way until the peer has answered:
                   a provider may hold back what it took, and sends it when the comm is moved. */
  struct tt_ofi_packet *next;
};
struct tt_ofi_packets {
  struct tt_ofi_packet *first, **end;
};

struct tt_ofi_rail {
  struct tt_ofi_nic *nic;
  bool is_open; /* the nic */
  struct fid_ep *ep;
  struct fid_cq *cq;
  struct fid_av *av;
  struct fid_mr *mr; /* of `memory`, or NULL */
  fi_addr_t peer, self;
  char name[TT_OFI_NAME_BYTES]; /* this endpoint's address */
  size_t name_bytes;
  size_t inject; /* bytes of a packet that can be injected */
  char *memory;  /* of the packets; the last bytes are where flushes read to */
  struct tt_ofi_packet *packets;
  int in_count, out_count;
  struct tt_ofi_packet *free;    /* for sending */
  struct tt_ofi_packets waiting; /* to be posted, in order */
  struct tt_ofi_packets idle;    /* for receiving, not posted yet */
  int out_busy;
};
/* `in_bytes` and `out_bytes`: of a packet. */
ncclResult_t tt_ofi_rail_open(struct tt_ofi_rail *rail, struct tt_ofi_nic *nic, size_t in_bytes, size_t out_bytes);
void tt_ofi_rail_close(struct tt_ofi_rail *rail);
ncclResult_t tt_ofi_rail_meet(struct tt_ofi_rail *rail, const char *name, size_t bytes);
void *tt_ofi_rail_scratch(const struct tt_ofi_rail *rail);

/* ---- link.c, errors.c, move.c, notes.c: what send and receive comms share ---- */

/* How a comm hears of what happened. An error ends the link. */
struct tt_ofi_events {
  ncclResult_t (*packet)(struct tt_ofi_link *link, const struct tt_ofi_header *header, size_t bytes);
  void (*sent)(struct tt_ofi_link *link, void *owner);               /* a packet with an owner */
  ncclResult_t (*written)(struct tt_ofi_link *link, uint64_t place); /* by the peer */
  void (*done)(struct tt_ofi_link *link, struct tt_ofi_op *op);      /* a write or read of this side */
  ncclResult_t (*note)(struct tt_ofi_link *link, const struct tt_ofi_note *note);
};

struct tt_ofi_link {
  bool sends;
  int dev, fd, rails;
  const struct tt_ofi_device *device;
  const struct tt_ofi_events *events;
  struct tt_ofi_rail rail[TT_OFI_RAILS];
  char peer[TT_ADDRESS_TEXT];
  ncclResult_t failed; /* once set, every call returns it */
  struct tt_counted counted;
  uint32_t eager;     /* bytes of payload in a packet at most */
  uint32_t immediate; /* bytes of this side's immediate data, as greeted; rails that are not met count, too */
  bool wide;          /* immediate data has 64 bits on both sides */
  uint64_t piece_max;
  size_t stripe; /* bytes of a rail's part at least, if it has any */
  unsigned idle; /* rounds in which nothing came */
  int hellos;    /* that have come: see greet.c */
  /* The socket. */
  bool gone; /* its other end */
  bool bye;  /* a receiver: has heard it */
  uint64_t bye_count;
  bool answered;           /* the goodbye: by a receiver, or to a sender */
  uint64_t answer;         /* to a sender: `clears` of the receiver */
  uint64_t clears;         /* packets with places: told by a receiver, come to a sender */
  uint64_t heard_ns;       /* when it was last looked at */
  uint64_t arrived_ns;     /* when something last came, once the peer was gone */
  struct tt_ofi_note note; /* coming in */
  size_t note_got;
  struct tt_ofi_note saying; /* going out */
  size_t note_left;
};

/* Takes over `fd`, also when it fails, and opens the rails. */
ncclResult_t tt_ofi_link_open(struct tt_ofi_link *link, bool sends, int dev, int fd);
void tt_ofi_link_close(struct tt_ofi_link *link);
/* The connection is made: its figures are shown from now on. */
void tt_ofi_link_count(struct tt_ofi_link *link);
const char *tt_ofi_link_provider(const struct tt_ofi_link *link);
/* Keeps and returns the result of TT_FAIL. */
ncclResult_t tt_ofi_link_fail(struct tt_ofi_link *link, ncclResult_t result);
/* For a failed call or completion of libfabric: names the device, the peer, the cause and the remedy. */
ncclResult_t tt_ofi_link_broken(struct tt_ofi_link *link, int rail, const char *doing, int error, const char *detail);
/* The peer is gone, in the middle of what `doing` says. */
ncclResult_t tt_ofi_link_lost(struct tt_ofi_link *link, const char *doing);
/* The greeting of this side, and what it and the other's agree on. */
void tt_ofi_link_greeting(const struct tt_ofi_link *link, struct tt_ofi_greeting *greeting);
ncclResult_t tt_ofi_link_agree(struct tt_ofi_link *link, const struct tt_ofi_greeting *theirs);
/* NULL: none is free now. */
struct tt_ofi_packet *tt_ofi_link_packet(struct tt_ofi_link *link, int rail);
/* Gives back one that is not sent after all. */
void tt_ofi_link_return(struct tt_ofi_link *link, int rail, struct tt_ofi_packet *packet);
/* Sends in order; what cannot be posted now is when the link next moves. */
ncclResult_t tt_ofi_link_send(struct tt_ofi_link *link, int rail, struct tt_ofi_packet *packet);
/* Before closing: waits shortly for this side's packets to have left. A provider with a thread of its own (sockets of
 * libfabric 1.17) may still touch what was closed under them. */
void tt_ofi_link_drain(struct tt_ofi_link *link);
/* Posts what waits, and hears of what happened on all rails and, now and then or if `listen`, on the socket. An error
 * once the peer is gone and nothing more comes. */
ncclResult_t tt_ofi_link_move(struct tt_ofi_link *link, bool listen);
/* Only hears of what happened on the rails, also of a link that has failed. */
ncclResult_t tt_ofi_link_look(struct tt_ofi_link *link);
/* Says something on the socket; false: it is full, try again. Nobody hears it once the peer is gone. */
bool tt_ofi_link_say(struct tt_ofi_link *link, enum tt_ofi_note_kind kind, int32_t tag, uint64_t value);
/* False: there is still something that could not be said. */
bool tt_ofi_link_finish_saying(struct tt_ofi_link *link);
/* Reads notes, and notices the end of the peer. `now`: tt_timer_ns. */
ncclResult_t tt_ofi_link_hear(struct tt_ofi_link *link, uint64_t now);
/* How a large message is cut: the stripe of `rail` is *bytes from *at on, 0 for none. `first` has the first one. */
void tt_ofi_link_stripe(const struct tt_ofi_link *link, size_t bytes, int first, int rail, size_t *at, size_t *part);
/* How many writes that makes. */
uint32_t tt_ofi_link_pieces(const struct tt_ofi_link *link, size_t bytes);

/* ---- listen.c, connect.c, greet.c ---- */

extern const struct tt_meeting_kind tt_ofi_meeting;
ncclResult_t tt_ofi_listen(int dev, void *handle, void **listen_comm);
ncclResult_t tt_ofi_accept(void *listen_comm, void **recv_comm);
ncclResult_t tt_ofi_close_listen(void *listen_comm);
/* user: of the attempt (attempts.h) */
ncclResult_t tt_ofi_connect(int dev, uint64_t user, void *handle, void **send_comm);
/* Ends the user's attempts that were never completed. */
void tt_ofi_connect_forget(uint64_t user);

/* Both sides' greetings on the socket, and then a packet each way on each rail. */
struct tt_ofi_greet {
  struct tt_ofi_link *link;
  struct tt_ofi_greeting mine, theirs;
  size_t said, got;
  bool agreed, answered;
  tt_deadline deadline;
};
void tt_ofi_greet_begin(struct tt_ofi_greet *greet, struct tt_ofi_link *link);
/* One step; *ready when the connection has carried data both ways. */
ncclResult_t tt_ofi_greet_move(struct tt_ofi_greet *greet, bool *ready);

/* ---- send.c, recv.c: comms and requests ---- */

enum tt_ofi_request_kind { TT_OFI_SEND, TT_OFI_RECV, TT_OFI_FLUSH };
/* First member of all requests: test finds out which it has. */
struct tt_ofi_request {
  enum tt_ofi_request_kind kind;
  bool live;
};

/* A comm begins with its link. */
ncclResult_t tt_ofi_send_make(int dev, int fd, struct tt_ofi_link **out);
ncclResult_t tt_ofi_isend(void *send_comm, void *data, size_t bytes, int tag, void *mhandle, void **request);
ncclResult_t tt_ofi_send_test(struct tt_ofi_request *request, int *done, int *sizes);
ncclResult_t tt_ofi_close_send(void *send_comm);

ncclResult_t tt_ofi_recv_make(int dev, int fd, struct tt_ofi_link **out);
ncclResult_t tt_ofi_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                          void **request);
ncclResult_t tt_ofi_recv_test(struct tt_ofi_request *request, int *done, int *sizes);
ncclResult_t tt_ofi_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
ncclResult_t tt_ofi_flush_test(struct tt_ofi_request *request, int *done);
ncclResult_t tt_ofi_close_recv(void *recv_comm);

#endif
