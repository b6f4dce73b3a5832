/* What the user's side (connect.c) and the worker (worker.c) of connection set-up share. */
#ifndef TT_CONNECT_INTERNAL_H
#define TT_CONNECT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include "connect/connect.h"

/* Bits 30 and 31 of a tag mark a message between connection services; below are distance and index. */
#define TT_TAG_CONNECT 0x40000000u
#define TT_TAG_CONNECT_MASK 0xc0000000u
/* Of a message about `index` from a rank to the one that comes `distance` behind it. */
static inline uint32_t tt_connect_tag(uint32_t distance, int index)
{
  return TT_TAG_CONNECT | distance << 3 | (uint32_t)index;
}
_Static_assert(TT_CONN_INDICES <= 8, "an index has three bits of a tag");

/* A connection's life. Guarded by the lock; UP and FAILED never change. */
enum tt_entry_state {
  TT_ENTRY_NOTED,  /* the user needs it; nothing was done */
  TT_ENTRY_ACTIVE, /* the worker's */
  TT_ENTRY_UP,     /* both ends can carry data; the user's */
  TT_ENTRY_FAILED  /* `result` and `why` say how */
};

struct tt_entry {
  _Atomic int state; /* written under the lock; read without it to see that an entry is UP */
  struct tt_connector connector;
  bool wanted;           /* on the list of what the user waits for; the user thread's */
  struct tt_entry *next; /* of `fresh`, then of the worker's list */
  ncclResult_t result;   /* of FAILED */
  char why[600];
  /* The worker's while ACTIVE; `progress` may be read under the lock, for reports. */
  const char *progress;
  bool set_up, sent, heard, connected, told_ready, peer_ready;
  struct tt_handshake mine, theirs;
  tt_deadline deadline;
};

static inline bool tt_entry_is_up(const struct tt_entry *entry)
{
  return atomic_load_explicit(&entry->state, memory_order_acquire) == TT_ENTRY_UP;
}

struct tt_connect_peer {
  struct tt_entry *_Atomic entries[TT_CONN_INDICES][TT_MAX_CHANNELS][2]; /* index, channel, send */
};

/* A message that came, waiting for the worker. */
struct tt_letter {
  struct tt_letter *next;
  int peer;
  uint32_t tag;
  size_t bytes;
  unsigned char data[];
};

struct tt_connect {
  struct tt_transport_env *env;
  struct tt_bootstrap *bootstrap;
  pthread_mutex_t lock;   /* held for short times only: the bootstrap's service thread takes it */
  pthread_cond_t changed; /* an entry is UP or FAILED: for the user */
  pthread_cond_t work;    /* for the worker */
  struct tt_letter *letters, **letters_end;
  struct tt_entry *fresh; /* ACTIVE now, not yet seen by the worker */
  bool listens;           /* to the bootstrap */
  bool stop, running, joinable;
  uint64_t passes; /* that the worker has ended */
  pthread_t worker;
  _Atomic size_t bytes;                   /* of entries that are UP */
  struct tt_connect_peer *_Atomic *peers; /* nranks; made when first needed */
  tt_connect_check *check;                /* NULL: none */
  void *check_context;
  /* The user thread's: what it noted and has not seen UP. */
  struct tt_entry **wanted;
  size_t nwanted, wanted_capacity;
};

/* The entry, made as NOTED if it is not there. Called with the lock held; NULL (reported) for lack of memory. */
struct tt_entry *tt_connect_entry(struct tt_connect *connect, int peer, int channel, int index, bool send);
/* Hands an entry to the worker and sees to it that it runs. Called with the lock held. */
void tt_connect_activate(struct tt_connect *connect, struct tt_entry *entry);
ncclResult_t tt_connect_wake_worker(struct tt_connect *connect);
/* The bootstrap's handler. */
void tt_connect_receive(void *context, int peer, uint32_t tag, const void *data, size_t bytes);
/* Frees what the transport and the device made of this end, if anything. */
void tt_connect_close(struct tt_connect *connect, struct tt_entry *entry);
/* Stops the worker for good. */
void tt_connect_stop_worker(struct tt_connect *connect);

#endif
