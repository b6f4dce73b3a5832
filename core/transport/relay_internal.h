/* What the files of the relay share. */
#ifndef TT_TRANSPORT_RELAY_INTERNAL_H
#define TT_TRANSPORT_RELAY_INTERNAL_H

#include <pthread.h>
#include <sys/types.h>
#include "base/doorbell.h"
#include "transport/relay.h"
#include "transport/resources.h"

#define TT_TAG_RELAY (TT_TAG_USER + 0x4000u)

/* What a user asks of its relay. */
struct tt_relay_request {
  uint64_t block; /* where it lies in the user's memory */
  uint64_t bell;  /* the user's doorbell */
  int32_t device, peer, channel, index;
  int32_t pooled; /* 1: the slots come from a pool of the user's */
  uint64_t first_step;
  uint64_t slot_bytes[TT_NUM_PROTOCOLS];
  _Alignas(64) unsigned char handle[NCCL_NET_HANDLE_MAXSIZE]; /* the plugin may keep its state in it */
};

struct tt_relay_slab; /* relay_slab.c */

/* A connection as the relay sees it; its thread's, once it has it. */
struct tt_relay_user {
  struct tt_relay_user *next;
  struct tt_relay *relay;
  int rank, number; /* of the user: in the communicator, and among the resources' ranks */
  struct tt_relay_request request;
  struct tt_relay_layout layout;
  unsigned char *block; /* mapped */
  struct tt_doorbell *bell;
  struct tt_proxy_desk *desk;
  struct tt_conn conn;
  struct tt_proxy *proxy;
  struct tt_proxy_conn *proxied;
  struct tt_desk_reader reader;
  struct tt_relay_slab *slabs; /* of its pool, mapped */
  int nslabs;
  void *comm;    /* until the proxy has it */
  uint64_t head; /* of which the user was told */
  bool failed;   /* it waits for the user to close */
};

struct tt_relay {
  struct tt_transport_env *env; /* gone once `left`, as is the next */
  struct tt_bootstrap *bootstrap;
  struct tt_resources *resources; /* a reference only if `lingers` */
  struct tt_net *net;             /* referenced by the thread */
  int rank, device, crowd;
  struct tt_doorbell *bell; /* in the resources' memory; with the thread */
  uint64_t bell_offset;
  pthread_mutex_t lock; /* guards all below but the thread's */
  pthread_cond_t ended_now;
  struct tt_relay_user *fresh; /* not accepted yet */
  struct tt_relayed *asking;   /* this rank's */
  bool running, ended;         /* the thread */
  bool left;                   /* its communicator is gone: nobody is accepted any more */
  bool quit;                   /* all users fail */
  pthread_t thread;
  bool lingers;
  pid_t process;               /* then: whose thread it is; a forked child has none */
  struct tt_relay *next;       /* of those that linger */
  bool *silent;                /* nranks: relays that this rank has waited for in vain; the worker's */
  struct tt_relay_user *users; /* the thread's */
};

/* ---- relay_user.c: one user ---- */

/* Maps the user's memory, which is only looked at. */
ncclResult_t tt_relay_user_map(struct tt_relay_user *user);
/* Does what can be done now. *moved: something was; *busy: something is to be polled. False: the user has closed. */
bool tt_relay_user_advance(struct tt_relay_user *user, bool *moved, bool *busy);
/* Tells the user that it is served no more. */
void tt_relay_user_fail(struct tt_relay_user *user, ncclResult_t result, const char *why);
/* Gives up all that belongs to the user, and says so. Frees it. */
void tt_relay_user_end(struct tt_relay_user *user);
/* Frees one that was not accepted, whose memory may have another use by now. */
void tt_relay_user_drop(struct tt_relay_user *user);

/* ---- relay_slab.c: the pool of a user's rank ---- */

/* As tt_proxy_find; `user` is the context. */
ncclResult_t tt_relay_slab_find(void *user, uint64_t step, struct tt_proxy_found *found);
/* Once nobody sends from them. */
void tt_relay_slabs_free(struct tt_relay_user *user);

/* ---- relay.c ---- */

/* Answers a user whose memory cannot be had. Without effect once the communicator is gone. */
void tt_relay_refuse(struct tt_relay *relay, const struct tt_relay_user *user, const char *why);

/* ---- relay_thread.c ---- */

/* Starts the thread. Called with the lock held. */
ncclResult_t tt_relay_start(struct tt_relay *relay);
/* Ends it, or lets it go on without its communicator; the relay is freed then or later. */
void tt_relay_end(struct tt_relay *relay, bool aborted);
void tt_relay_free(struct tt_relay *relay);

#endif
