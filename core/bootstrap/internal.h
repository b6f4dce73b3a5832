/* The bootstrap object, shared by the files of this folder.
 *
 * One mutex guards everything below `mutex`. The service thread owns the links: it alone frees them; a user thread may
 * add one (dialling) and write to one, under the mutex. */
#ifndef TT_BOOTSTRAP_INTERNAL_H
#define TT_BOOTSTRAP_INTERNAL_H

#include <pthread.h>
#include "bootstrap/bootstrap.h"
#include "bootstrap/link.h"
#include "bootstrap/listen.h"

/* Tags of the bootstrap's own messages. Those of a round add its number. */
enum {
  TT_TAG_LEAVE = 3,   /* the sender is being destroyed; the last message of a link */
  TT_TAG_CLOSE = 4,   /* the sender wants to close an idle link */
  TT_TAG_CLOSED = 5,  /* its answer: the last message in the other direction */
  TT_TAG_DEAD = 6,    /* u32 rank, text: somebody's connection broke; the receiver itself may be meant */
  TT_TAG_ASK = 7,     /* are you there? u32: steps that the asked one asks further */
  TT_TAG_HERE = 8,    /* the answer */
  TT_TAG_GAVE_UP = 9, /* u64 number of a call, u32 part, u32 rank, text: that rank does not go on with it */
  TT_TAG_EXCHANGE = 0x100,
  TT_TAG_GATHER = 0x200,
  TT_TAG_BARRIER = 0x300,
  TT_TAG_CALL = 0x400 /* the gather of a call; u64 number, blocks */
};

/* A service's connection to a peer. */
struct tt_service_link {
  struct tt_link *link;
  int peer;                            /* -1: a client that has not proved who it is */
  bool ready;                          /* the handshake is over and the peer knows of the link */
  bool closing;                        /* no more data will be sent here, and its end is expected */
  bool said;                           /* TT_TAG_LEAVE was sent */
  bool gone;                           /* to be freed at the end of the pass */
  struct tt_message *held, *held_tail; /* read while an older link to the peer closes, whose messages come first */
  uint64_t made_ns;                    /* when it was dialled or accepted */
  uint64_t asked_ns, heard_ns;         /* when TT_TAG_ASK was sent, 0: it was not; when anything came */
};

struct tt_peer {
  bool told;                   /* of the death because of which this rank gave up */
  struct tt_endpoint endpoint; /* count 0: not known yet */
  struct tt_service_link *out; /* the link used for sending; stays the same while it lives, which keeps the order */
  struct tt_message *waiting, *waiting_tail; /* to be sent when there is a link */
  struct tt_message *inbox, *inbox_tail;     /* received and not asked for yet, oldest first */
  size_t waiting_bytes;
  int links;     /* ready ones */
  int wanted;    /* threads that wait for a message of this peer */
  bool dialling; /* a link is being dialled */
  bool deferred; /* a link is to be dialled when others are closed */
  bool closing;  /* an idle link that was dialled here is being closed: its messages come before those of others */
  bool left;     /* said goodbye */
  bool optional; /* it is not needed: that it cannot be reached means that it has left */
  bool absent;   /* and it cannot */
  bool dead;     /* its connection broke, it cannot be reached, or another rank says so */
};

/* A user of incoming messages; call NULL: free. */
#define TT_HANDLERS 6
struct tt_handler {
  tt_bootstrap_handler *call;
  void *context;
  uint32_t tag, mask;
};

struct tt_net_ring; /* net_ring.c */
struct tt_given_up; /* calls.c */

struct tt_bootstrap {
  int rank, nranks;
  const _Atomic uint32_t *abort;
  struct tt_bootstrap_probe *probe; /* of the check-in; NULL: none */
  uint64_t id_nonce;                /* of the id: whose root is held */
  bool holds_root;
  struct tt_key key; /* of this communicator */
  uint64_t nonce;    /* of this communicator */
  struct tt_listener listener;
  pthread_t thread;
  bool started;
  int wake; /* eventfd */
  struct tt_net_ring *ring;

  pthread_mutex_t mutex;
  pthread_cond_t changed; /* a message came, a peer's state changed, output drained */
  struct tt_peer *peers;
  struct tt_service_link **links;
  int nlinks, links_room;
  int ndeferred;        /* peers that are */
  int newest_fd;        /* of a link; descriptors have the lowest free number, so it tells how many there are */
  int most_descriptors; /* that the process may have */
  bool leaving;
  tt_deadline leave_by;
  tt_deadline accept_after; /* descriptors ran out: NEVER while accepting */
  struct tt_shortage shortage;
  uint64_t waited_ns;  /* when a user's thread last waited */
  uint64_t looked_ns;  /* when the service last looked after its peers */
  uint64_t relayed_ns; /* when a peer that waits, or was asked by one, last asked for `relay_steps` more */
  unsigned relay_steps;
  bool outcast;   /* others have given this rank up, which has no right to blame them */
  bool gave_up;   /* an exchange ended because of first_dead: whoever waits for this rank is told why */
  int first_dead; /* -1: none */
  char dead_why[240];
  struct tt_given_up *given_up; /* calls; newest first */
  uint64_t last_call;           /* the newest that this rank has begun or refused */
  struct tt_handler handlers[TT_HANDLERS];
  bool handler_new; /* messages kept before one was set are to be looked through */
  bool handling;    /* the service thread is inside a handler, without the mutex */
  struct tt_bootstrap_stats stats;
};

/* ---- checkin.c ---- */
struct tt_checkin_times {
  uint64_t start, reached, listening, answered;
};
/* Reaches the root, or roots, opens the listener, checks in, and takes the answers: neighbours, key and nonce. */
ncclResult_t tt_checkin_run(struct tt_bootstrap *b, const struct tt_id *ids, int nids, struct tt_checkin_times *times);

/* The ranks of a root: `count` from `first` on. */
struct tt_share {
  int root, first, count;
};
/* The share that a rank is in. */
struct tt_share tt_share_of(int rank, int nranks, int nroots);

/* ---- peers.c ---- */
/* Tells a peer of the first death that is known here. */
void tt_peer_tell_dead(struct tt_bootstrap *b, struct tt_service_link *l);

/* ---- liveness.c: with the mutex ---- */
/* A user's thread waits. */
void tt_liveness_wait(struct tt_bootstrap *b);
/* A peer asked whether this rank is there, and for the contents of that message. */
void tt_liveness_asked(struct tt_bootstrap *b, const void *data, size_t bytes);
/* Something came on the link. */
void tt_liveness_heard(struct tt_service_link *l);
/* Asks peers whether they are there, and declares those dead that did not answer in time. Once a second. */
void tt_liveness_look(struct tt_bootstrap *b);

/* ---- service.c ---- */
ncclResult_t tt_service_start(struct tt_bootstrap *b);
/* Says goodbye, in bounded time, and ends the thread. */
void tt_service_stop(struct tt_bootstrap *b);
void tt_service_wake(struct tt_bootstrap *b);
bool tt_service_is_me(const struct tt_bootstrap *b); /* is the caller the service thread? */
/* Starts to dial a peer, now or when other links are closed, unless there is a link or one is coming. With the mutex
 * held. */
ncclResult_t tt_service_dial(struct tt_bootstrap *b, int peer);
/* At once; to be used if there is none and none is coming. */
ncclResult_t tt_service_dial_now(struct tt_bootstrap *b, int peer);
bool tt_service_log_step(const struct tt_bootstrap *b, int peer);

/* ---- demand.c: with the mutex held ---- */
/* True if the peer will be dialled later, since there are too many connections now. */
bool tt_demand_defer(struct tt_bootstrap *b, int peer);
/* Closes idle connections, and dials who had to wait. Of the service thread. */
void tt_demand_look(struct tt_bootstrap *b);

/* ---- peers.c: what the service does with a peer's messages and states. With the mutex held. ---- */
void tt_peer_ready(struct tt_bootstrap *b, struct tt_service_link *l);
void tt_peer_ended(struct tt_bootstrap *b, struct tt_service_link *l);
void tt_peer_dead(struct tt_bootstrap *b, int rank, const char *why, bool tell);
/* Takes the message. May release the mutex while it calls the handler. */
void tt_peer_message(struct tt_bootstrap *b, struct tt_service_link *l, struct tt_message *message);
void tt_peer_rehandle(struct tt_bootstrap *b);

/* ---- mail.c ---- */
/* Whose death ends a wait: the peer's only (count 0), anybody's (-1), or the listed ranks'. */
struct tt_mail_scope {
  const int *ranks;
  int count;
  const struct tt_bootstrap_call *call; /* NULL: none; else the message begins with its number */
};
enum tt_mail_kind {
  TT_MAIL_NEEDED,   /* connects to the peer, which is dead if it cannot be reached */
  TT_MAIL_AWAITED,  /* the peer will connect to us */
  TT_MAIL_OPTIONAL, /* connects to the peer, which has left if it cannot be reached */
  TT_MAIL_NOTICE    /* likewise; and if it has left or is dead, nothing is to be done */
};
ncclResult_t tt_mail_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes,
                          enum tt_mail_kind kind);
ncclResult_t tt_mail_receive(struct tt_bootstrap *b, int peer, uint32_t tag, struct tt_mail_scope scope,
                             tt_deadline deadline, struct tt_message **message);
void tt_mail_append(struct tt_message **head, struct tt_message **tail, struct tt_message *message);
void tt_mail_free(struct tt_message *head);

/* ---- calls.c: with the mutex ---- */
#define TT_CALL_BYTES 8 /* in front of each message of a call */
/* A call begins: what is known of much earlier ones is forgotten. */
void tt_calls_begin(struct tt_bootstrap *b, uint64_t number);
/* Fails if a rank has given it up. */
ncclResult_t tt_calls_check(const struct tt_bootstrap *b, const struct tt_bootstrap_call *call);
/* TT_TAG_GAVE_UP */
void tt_calls_heard(struct tt_bootstrap *b, const struct tt_message *message);
void tt_calls_free(struct tt_bootstrap *b);

/* ---- gather.c ---- */
/* Spreads the endpoints, starting from the two neighbours'. */
ncclResult_t tt_gather_endpoints(struct tt_bootstrap *b);
tt_deadline tt_gather_deadline(void);

/* ---- net_ring.c ---- */
ncclResult_t tt_net_ring_all_gather(struct tt_bootstrap *b, void *data, size_t bytes);
void tt_net_ring_destroy(struct tt_bootstrap *b);

static inline ncclResult_t tt_bootstrap_probe(struct tt_bootstrap_probe *probe)
{
  ncclResult_t result = probe ? probe->ask(probe->context) : ncclSuccess;
  if (result != ncclSuccess) probe->failed = true;
  return result;
}

static inline bool tt_bootstrap_aborted(const struct tt_bootstrap *b)
{
  return b->abort && atomic_load_explicit(b->abort, memory_order_relaxed) != 0;
}

#endif
