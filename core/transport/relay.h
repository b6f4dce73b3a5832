/* Sending through another rank of this host (PXN): a rank that sits near a network device has the connections of others
 * in its hands, its users. It is their relay.
 *
 * The user's slots, counters and desk (proxy/remote.h) lie in its shared memory, which the relay maps. The user asks by
 * a message of the bootstrap, so it is known to be a rank of the communicator; what follows goes through the desk. A
 * thread of the relay's, which begins with the first user, serves them without its own user's calls, each with an
 * engine of its own: one that fails stops no other.
 *
 * A relay may leave before its users: its thread then goes on until the last of them has closed or is dead, and a
 * process that exits waits for such threads, bounded. One that was aborted fails its users at once. Only those are its
 * users that it has accepted on their desk, which it does before it says goodbye or never: who asked and sees the
 * goodbye but no such word sends for itself.
 *
 * A user that closes waits, bounded, until the relay says that it does not touch the memory any more; if it does not,
 * that memory is never used again. */
#ifndef TT_TRANSPORT_RELAY_H
#define TT_TRANSPORT_RELAY_H

#include "base/timer.h"
#include "bootstrap/bootstrap.h"
#include "proxy/remote.h"
#include "transport/buffers.h"
#include "transport/transport.h"

struct tt_relay; /* one a communicator and rank: serves others, and asks others */

/* Sets env->relay, and a handler of the bootstrap's: call before the barrier that ends init. Both outlive it. */
ncclResult_t tt_relay_open(struct tt_transport_env *env, struct tt_bootstrap *bootstrap);
/* This rank's own connections must be closed. */
void tt_relay_close(struct tt_transport_env *env);

/* ---- The sending end: the connection worker's thread ---- */

/* Where things lie in a user's block. With slots of a pool it has the desk alone. */
struct tt_relay_layout {
  bool pooled;
  bool running; /* the connection is free running (proxy.h), and the sender's device has the block mapped */
  struct tt_buffers buffers;
  size_t fifo, desk, bytes;
};
ncclResult_t tt_relay_layout(const struct tt_transport_env *env, bool pooled, int index,
                             struct tt_relay_layout *layout);

/* A connection as its sending end sees it; all zero at first. */
struct tt_relayed {
  int relay, device;
  struct tt_relay_layout layout;
  unsigned char *block; /* in this rank's shared memory */
  bool mapped;          /* by the device */
  /* Of one that is free running, as the proxies see it; else the connector's is used. With slots of a pool it is set by
   * who has the memory. */
  struct tt_conn conn;
  uint64_t offset;
  struct tt_proxy_desk *desk;
  struct tt_doorbell *bell; /* the relay's */
  bool closed;              /* the relay does not touch the block any more, or never did */
  bool asked, refused;      /* refused, with `why`: guarded by the relay's lock */
  bool gone;                /* it left the communicator before it accepted: the sender is to do it itself */
  char why[TT_DESK_TEXT];
  tt_deadline look_at;     /* once the relay is known to have left: when to look again whether its process is there */
  struct tt_relayed *next; /* of those that asked and have no answer */
};

/* Makes the block, and points connector->conn into it unless that has slots of a pool. */
ncclResult_t tt_relayed_setup(struct tt_transport_env *env, struct tt_connector *connector, int relay, int device,
                              struct tt_relayed *relayed);
/* Asks the relay to connect to the network handle of the receiving end (NCCL_NET_HANDLE_MAXSIZE bytes), and goes on
 * until it has: *done. Never blocks. Sets connector->proxied. */
ncclResult_t tt_relayed_connect(struct tt_transport_env *env, struct tt_connector *connector,
                                struct tt_relayed *relayed, const unsigned char *handle, const char *label, bool *done);
/* Takes the connection back from the relay: before connector->proxied is destroyed. */
void tt_relayed_stop(struct tt_transport_env *env, struct tt_connector *connector, struct tt_relayed *relayed);
/* Once it is. */
void tt_relayed_close(struct tt_transport_env *env, struct tt_relayed *relayed);

#endif
