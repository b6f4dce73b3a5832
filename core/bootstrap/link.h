/* An authenticated connection that never blocks: dialling over several addresses, handshake, messages both ways.
 *
 * A link is driven by whoever polls: wait for tt_link_events on link->fd, at most until link->timer, then call
 * tt_link_progress. It has no lock of its own. Errors of the other side are states, not log lines: the owner knows
 * whether they matter. */
#ifndef TT_BOOTSTRAP_LINK_H
#define TT_BOOTSTRAP_LINK_H

#include "bootstrap/wire.h"
#include "base/timer.h"

/* How long a client may take from connecting to the end of its handshake. */
#define TT_LINK_HANDSHAKE_MS 10000

struct tt_message {
  struct tt_message *next;
  uint32_t tag;
  size_t bytes;
  unsigned char data[]; /* `bytes`, then room for the trailer */
};

enum tt_link_state {
  TT_LINK_PAUSE,      /* dialling: waits for link->timer before the next attempt */
  TT_LINK_CONNECTING, /* dialling: connect() is in flight */
  TT_LINK_CHALLENGE,  /* dialling: the server's challenge is awaited */
  TT_LINK_ACCEPT,     /* dialling: the server's acceptance is awaited */
  TT_LINK_HELLO,      /* accepted: the client's hello is awaited */
  TT_LINK_PROOF,      /* accepted: the client's proof is awaited */
  TT_LINK_READY,
  TT_LINK_CLOSED /* for good; link->why says why */
};

struct tt_link_out;

/* Finds the key for a client's hello: TT_CHALLENGE_OK and *key, or the status to refuse it with. */
typedef enum tt_challenge_status tt_link_lookup(void *context, const struct tt_hello *hello, struct tt_key *key);

struct tt_link {
  int fd; /* -1 while paused or closed */
  enum tt_link_state state;
  tt_deadline timer; /* when tt_link_progress must be called even if nothing happens on fd */
  bool dialled;
  bool eof;      /* closed in order by the other side, between messages */
  char why[200]; /* valid when closed, or as the last cause while dialling */

  struct tt_hello hello; /* sent or received; hello.rank is the client's */
  struct tt_key key;     /* of the id or communicator */
  struct tt_key tx, rx;  /* of this connection */
  uint64_t tx_sequence, rx_sequence;
  unsigned char server[TT_HANDSHAKE_NONCE];
  tt_link_lookup *lookup; /* accepted links */
  void *context;

  unsigned char head[TT_HELLO_BYTES]; /* the fixed-size piece being read */
  size_t head_got;
  struct tt_header header;
  struct tt_message *in; /* payload being read */
  size_t in_got;

  struct tt_link_out *out, *out_tail;
  size_t queued; /* bytes not yet given to the socket */

  struct tt_endpoint target; /* dialled links */
  int candidate, round;      /* which address, and how often all were tried */
  int retries;               /* rounds after which it gives up; -1: none */
  tt_deadline deadline, attempt;
  tt_deadline refused_since; /* 0: the last attempt was not refused */
  int64_t refused_ms;        /* gives up when refused for so long; 0: never */

  void *owner; /* for the user of the link */
  uint64_t used_ns;
};

/* What dialling may take. */
struct tt_link_patience {
  tt_deadline deadline;
  int64_t refused_ms; /* 0: until the deadline */
  bool forever;       /* ignore NCCL_SOCKET_RETRY_CNT */
};

/* Starts to dial. `local`, if it is link-local, lends its scope to link-local addresses, whose own scope means nothing
 * here. NULL, or of another kind: they are as they should be. */
ncclResult_t tt_link_dial(const struct tt_endpoint *target, const union tt_address *local, const struct tt_key *key,
                          enum tt_purpose purpose, uint64_t nonce, int rank, const struct tt_link_patience *patience,
                          struct tt_link **out);
/* Takes over an accepted socket. */
ncclResult_t tt_link_adopt(int fd, tt_link_lookup *lookup, void *context, struct tt_link **out);
void tt_link_free(struct tt_link *link); /* NULL is allowed; a reset, unless everything was read */

short tt_link_events(const struct tt_link *link);
/* Does what can be done without waiting. Messages are read only by tt_link_receive. */
void tt_link_progress(struct tt_link *link);
/* The next whole message, or NULL; the caller frees it. */
struct tt_message *tt_link_receive(struct tt_link *link);
/* Queues a message (copied) and writes what the socket takes. Only on a READY link. */
ncclResult_t tt_link_send(struct tt_link *link, uint32_t tag, const void *data, size_t bytes);
void tt_link_flush(struct tt_link *link);

#endif
