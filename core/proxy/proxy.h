/* The proxy: moves slots between a connection's FIFO and a net plugin.
 *
 * One engine a rank. tt_proxy_progress is called by whoever has time: the thread that waits for an operation drives its
 * executor and its proxy in turn. The engine is locked, so several threads may call. */
#ifndef TT_PROXY_PROXY_H
#define TT_PROXY_PROXY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "plugin/net.h"
#include "proxy/pool.h"
#include "tutti/device.h"

struct tt_proxy;

/* `net` NULL: there will be no net connections, only networks that reduce (proxy/reduce.h). */
ncclResult_t tt_proxy_create(struct tt_net *net, int rank, struct tt_proxy **out);
/* Closes whatever is left, with requests in flight. NULL is allowed. */
void tt_proxy_destroy(struct tt_proxy *proxy);

/* One direction of one connection. Made by the net transport once the plugin's comm exists. On success the engine owns
 * the comm and its registrations; `conn` is the device's view: staging memory, counters and FIFO, which outlive this
 * object. Counters and step start from conn->step.
 *
 * With TT_CONN_POOLED the slots are units of a pool (proxy/pool.h), which the engine names in the FIFO, and a sender's
 * `head` says what it may fill. Else, FIFO entries:
 * NORMAL is a slot in its own place. A sender's device may instead name the message by OFFSET from the
 * start of the protocol's buffer, or by POINTER; `size` is then its bytes. A receiver's device may write OFFSET or
 * POINTER, with the capacity in `size`, before it frees the slot: the next message of that slot is received there. In
 * every mode the message begins with its header. */
struct tt_proxy_conn;
struct tt_proxy_link; /* proxy/link.h */
struct tt_proxy_found {
  void *data;
  size_t bytes;
  struct tt_proxy_slab *slab; /* around it; not a reference */
};
typedef ncclResult_t tt_proxy_find(void *context, uint64_t step, struct tt_proxy_found *found);
/* Slots that lie in a device's memory, in `bytes` at `memory`, whole pages of the host's size, which the proxy only
 * hands to the network; counters and FIFO are the host's. Of connections that are free running. */
struct tt_proxy_direct {
  void *memory; /* NULL: slots are the host's */
  size_t bytes;
  const struct tt_device *device;
  struct tt_device_context *context;
  bool cuda;   /* the network registers addresses of the device's memory */
  bool dmabuf; /* it registers dma-bufs, which is tried first; needs TT_DEVICE_DMABUF */
  bool pci;    /* as of export_dmabuf */
  bool flush;  /* receiving: what came is flushed before the device hears of it, by the network ... */
  bool own;    /* ... or by the device, which has TT_DEVICE_FLUSH */
};
struct tt_proxy_conn_config {
  bool send;
  void *comm;                 /* the plugin's sendComm or recvComm; NULL with a link */
  struct tt_proxy_link *link; /* NULL: the comm is this connection's own; else a reference, the engine's on success */
  struct tt_conn *conn;
  int peer; /* for errors and tags */
  int tag;
  size_t max_bytes;  /* the largest message that the network takes */
  const char *label; /* "NET/Socket/0", copied */
  int pool_units;    /* 0: conn->slots are its own; else of the pool it draws from (TT_CONN_POOLED) */
  int device;        /* of the network, of which there is one pool a direction */
  /* Of a connection that is served for another rank (remote.h): where a step's slot lies, as that rank says, instead of
   * the FIFO; NULL: conn->slots. */
  tt_proxy_find *find;
  void *find_context;
  struct tt_proxy_pool_map map; /* with a pool: of a device that has to be shown its slots */
  /* Who launches does not announce what it moves (tt_proxy_expect), as works that graphs repeat: what the device has
   * filled is sent, and there are always receives for all of its free slots. With slots of a pool the device asks for
   * them (tt_conn_asked), and has none without. The connection has slots of one protocol; with slots of LL its device
   * looks at lines alone (TT_CONN_LINES). A network that fails while it waits for a message is no failure of the
   * proxy's, since there may be none to come: see tt_proxy_lost. */
  bool free_running;
  int ahead; /* of a connection of lines that receives: messages on their way at most; 0: as many as slots */
  struct tt_proxy_direct direct;
  bool foreign; /* another process fills the slots: its pointers mean nothing here, so POINTER is refused */
};
ncclResult_t tt_proxy_conn_create(struct tt_proxy *proxy, const struct tt_proxy_conn_config *config,
                                  struct tt_proxy_conn **out);
/* Requests in flight are given up: wait for `idle` first where their data matters. NULL is allowed. */
void tt_proxy_conn_destroy(struct tt_proxy_conn *conn);

/* An operation will move `steps` more slots on this connection with this protocol. Operations of one connection run in
 * the order of these calls. Of no consequence for one that is free running. */
ncclResult_t tt_proxy_expect(struct tt_proxy_conn *conn, int protocol, uint64_t steps);
/* What is announced from here on may begin only when what was announced before is complete: a rank that waits for this
 * one to get through the one may not send for the other yet. */
void tt_proxy_next_turn(struct tt_proxy *proxy);

/* Does what can be done now. *moved: something was done. *idle: nothing is expected any more and every request is
 * complete. An error (the plugin's, or a message that does not fit) names the peer and the connection; it is kept and
 * returned again. */
ncclResult_t tt_proxy_progress(struct tt_proxy *proxy, bool *moved, bool *idle);

/* Whether there are connections that are free running. Any thread, cheap. */
bool tt_proxy_runs(struct tt_proxy *proxy);
/* Of connections that are free running: whether all that devices have filled was sent. */
bool tt_proxy_quiet(struct tt_proxy *proxy);
/* The same for who wants to know whether it goes on. False: somebody is in the engine all the time. */
struct tt_proxy_unsent {
  int peer;       /* that one of them waits for; -1: all was sent */
  uint64_t moves; /* how often anything was done */
};
bool tt_proxy_look_unsent(struct tt_proxy *proxy, struct tt_proxy_unsent *unsent);
/* Whether a message from `peer` (-1: from anybody) can come no more over a connection that is free running, since the
 * network has failed: that failure, as a sentence of its own. What was posted before a receive was refused may come,
 * until nothing has for a second. Any thread; like tt_proxy_look. */
ncclResult_t tt_proxy_lost(struct tt_proxy *proxy, int peer);

/* For reports: any thread; waits at most a few milliseconds. `conn` NULL: no steps are set.
 * False: somebody is in the engine all the time, perhaps in a call of the plugin that does not return. */
struct tt_proxy_state {
  int active;                      /* connections and reductions with work left */
  uint64_t busy_ns;                /* how long there were any; of connections that are free running nobody knows */
  size_t pool_bytes;               /* of all pools now */
  uint64_t spares;                 /* units beyond a pool's limit that connections got, so that they could go on */
  uint64_t posted, done, expected; /* steps of the connection: given to the plugin, complete, in all */
};
bool tt_proxy_look(struct tt_proxy *proxy, struct tt_proxy_conn *conn, struct tt_proxy_state *state);

/* How well a connection uses its network, since it was made. One step in TT_SLOTS is timed, since reading a clock takes
 * as long as all the rest of counting. */
struct tt_proxy_figures {
  bool send;
  int peer;
  const char *label; /* "NET/Socket/0" */
  const void *comm;  /* the plugin's, by which tt_net_counters knows it */
  uint64_t steps;    /* that are complete; what follows is of these */
  uint64_t bytes;    /* of messages, headers included */
  uint64_t room;     /* of the slots that they lay in: bytes / room is how full slots are */
  uint64_t open;     /* requests that were under way, itself included, when each step was given to the plugin: a sum */
  uint64_t timed;    /* steps that were timed, from when they were given to the plugin to when they were complete */
  uint64_t ns, most_ns; /* that these took together, and the longest */
};
typedef void tt_proxy_figures_visit(void *context, const struct tt_proxy_figures *figures);
/* Calls `visit` for each connection that this engine gives to the network; it must not wait. As tt_proxy_look. */
bool tt_proxy_each_figures(struct tt_proxy *proxy, tt_proxy_figures_visit *visit, void *context);

#endif
