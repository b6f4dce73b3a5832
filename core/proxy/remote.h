/* Connections for sending that the proxy of another rank of this host serves, the relay (PXN).
 *
 * The sender's device fills slots in memory that both ranks map. Beside them lies a desk, on which the sender's proxy
 * says what it expects, and the relay's how it goes; counters and FIFO are those that any proxy uses. Neither side
 * trusts what the other writes: it may be wrong, but leads nowhere outside the slots.
 *
 * With slots of a pool (TT_CONN_POOLED) that pool is the sender's, in its shared memory. Its proxy grants units to its
 * device and takes them back, and passes on what was filled: counters and places for the relay lie on the desk. */
#ifndef TT_PROXY_REMOTE_H
#define TT_PROXY_REMOTE_H

#include "base/doorbell.h"
#include "proxy/proxy.h"

#define TT_DESK_OPERATIONS 64
#define TT_DESK_TEXT 480

/* Bits of the relay's word. */
enum {
  TT_DESK_READY = 1,   /* the network connection is there */
  TT_DESK_FAILED = 2,  /* `result` and `why` say how */
  TT_DESK_CLOSED = 4,  /* the relay does not touch this memory any more */
  TT_DESK_ACCEPTED = 8 /* the relay serves it, even once it has left; without this bit one that has left never will */
};

struct tt_desk_operation {
  uint64_t end; /* up to but not including this step */
  int32_t protocol, reserved;
};

/* Where a step's slot lies in the sender's memory. */
struct tt_desk_unit {
  uint64_t slab, slab_bytes; /* registered as a whole */
  uint64_t at, bytes;        /* of the message, from the slab's start; header and payload */
};

/* In memory that both map; all zero at start, but the counters of a connection with a pool. */
struct tt_proxy_desk {
  /* The sender writes: */
  _Alignas(64) _Atomic uint64_t announced; /* operations, ever; the last ones lie in the ring below */
  _Atomic uint32_t closing;                /* it needs the connection no more */
  struct tt_desk_operation operations[TT_DESK_OPERATIONS];
  struct tt_desk_unit units[TT_SLOTS];  /* with a pool */
  _Alignas(64) _Atomic uint64_t filled; /* likewise: steps */
  /* The relay writes: */
  _Alignas(64) _Atomic uint64_t sent; /* with a pool: steps */
  _Atomic uint64_t taken;             /* of the announced operations */
  _Atomic uint32_t state;
  int32_t result;
  uint64_t bell; /* from READY on: where in the relay's memory its doorbell lies */
  char why[TT_DESK_TEXT];
};

/* ---- The sender's side ---- */

struct tt_proxy_remote_config {
  struct tt_conn *conn; /* as for tt_proxy_conn_create */
  struct tt_proxy_desk *desk;
  struct tt_doorbell *bell; /* the relay's */
  int peer, relay;          /* for errors */
  const char *label;        /* "NET/Socket/1(3)", copied */
  bool free_running;        /* as for tt_proxy_conn_create, on both sides */
  /* With TT_CONN_POOLED: as in tt_proxy_conn_config, and the memory in which the pool lies. */
  int pool_units, device;
  struct tt_shm *shm;
  struct tt_proxy_pool_map map;
};
/* The connection belongs to this rank's engine like any other: tt_proxy_expect, tt_proxy_progress, which reports the
 * relay's failure as this rank's, and tt_proxy_conn_destroy, which tells the relay nothing. */
ncclResult_t tt_proxy_remote_create(struct tt_proxy *proxy, const struct tt_proxy_remote_config *config,
                                    struct tt_proxy_conn **out);
/* The relay may still read units that the connection holds, since it does not say that it is through: they are not used
 * again. */
void tt_proxy_remote_lose(struct tt_proxy_conn *conn);
/* The relay's failure, of a desk with TT_DESK_FAILED, as the sender's: names both ranks and the peer. */
ncclResult_t tt_proxy_desk_failure(const struct tt_proxy_desk *desk, int rank, int relay, int peer, const char *label);

/* ---- The relay's side ---- */

/* What was read from a desk. */
struct tt_desk_reader {
  uint64_t taken, expected; /* expected: the step from which the connection counts */
};
/* Hands on what the sender has announced to the connection that serves it; *more: something was new. */
ncclResult_t tt_proxy_desk_take(struct tt_proxy_desk *desk, struct tt_desk_reader *reader, struct tt_proxy_conn *conn,
                                bool *more);
void tt_proxy_desk_fail(struct tt_proxy_desk *desk, ncclResult_t result, const char *why);

#endif
