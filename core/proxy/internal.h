/* What the files of the proxy share. */
#ifndef TT_PROXY_INTERNAL_H
#define TT_PROXY_INTERNAL_H

#include <pthread.h>
#include "proxy/link.h"
#include "proxy/pool.h"
#include "proxy/proxy.h"
#include "proxy/remote.h"

struct tt_proxy_pool_entry {
  struct tt_proxy_pool_entry *next;
  struct tt_proxy_pool *pool;
};

struct tt_proxy {
  struct tt_net *net;
  int rank;
  pthread_mutex_t lock; /* guards all below, and the connections */
  struct tt_proxy_conn *conns;
  struct tt_proxy_conn *active, **active_end; /* those with work left, in the order in which it was announced */
  struct tt_proxy_conn *idle, **idle_end; /* those that ask, and have not; those that were looked at last are last */
  int nidle;
  uint64_t turn;  /* of what is announced now (tt_proxy_next_turn) */
  bool moved;     /* something was done the last time */
  uint64_t moves; /* how often it was */
  struct tt_proxy_pool_entry *pools;
  struct tt_proxy_link *listed; /* links of which connections are ready for a grouped receive */
  struct tt_proxy_reduce *reduces;
  int nactive;                  /* connections and reductions with work left; none that are free running */
  uint64_t busy_ns, busy_since; /* how long there were any, until they last began to be */
  ncclResult_t error;           /* the first one */
  struct tt_proxy_copy *copies;
  _Atomic int running; /* connections that are free running, and copies; read without the lock */
};

/* `steps` slots of one protocol, up to but not including step `end`. */
struct tt_proxy_operation {
  int protocol;
  uint64_t end;
};

struct tt_proxy_group;

/* A slot on its way. Prepared once, posted when the plugin takes it. */
struct tt_proxy_transfer {
  bool prepared;
  bool registered; /* mhandle belongs to this transfer alone */
  int protocol;
  void *data;
  size_t bytes; /* of the message, or that can be received */
  int size;     /* that was received, while it is flushed */
  void *mhandle;
  void *request;
  struct tt_proxy_group *group; /* of receives, which has the request; NULL: none */
  int member;
};

/* Of a connection of lines (lines.c). */
struct tt_proxy_lines {
  bool on;
  int ahead;             /* messages that may be on their way to this rank */
  unsigned char *memory; /* receiving: where they go first, one behind the other */
  size_t bytes;
  uint64_t filled, word; /* sending: complete messages, and words of the next one that were seen */
};

struct tt_proxy_conn {
  struct tt_proxy *proxy;
  struct tt_proxy_conn *next, **link;
  struct tt_proxy_conn *active_next, **active_link; /* in the list of active ones, or of idle ones */
  struct tt_proxy_conn_config config;
  struct tt_proxy_link *wire; /* whose comm it uses; NULL: another rank's proxy serves it (remote.c) */
  struct tt_proxy_desk *desk; /* with that rank */
  struct tt_doorbell *relay_bell;
  struct tt_shm *shm; /* for its pool */
  int relay;
  uint64_t rung; /* the tail of which the relay was told */
  /* Free running, receiving: how the network failed while nobody may have waited for a message, and its sentence.
   * Nothing is posted from then on, but what was posted may still come, or be flushed. */
  ncclResult_t lost;
  char *lost_text;
  bool refused;     /* a receive was; tests of those before it have not failed */
  uint64_t came_ns; /* when one of them last came, or that was */
  bool asks;        /* free running: the device says how many steps it will move (tt_conn_asked) */
  uint64_t turn;    /* of the last steps that were announced */
  bool ready;       /* in the link's list */
  struct tt_proxy_conn *ready_next;
  char label[64];
  bool registered[TT_NUM_PROTOCOLS];
  void *mhandles[TT_NUM_PROTOCOLS];
  struct tt_proxy_operation *operations; /* those not wholly posted, oldest first */
  size_t noperations, capacity;
  uint64_t posted, done, expected; /* steps: done <= posted <= expected */
  uint64_t received;               /* of those that are flushed, posted ones that have come: done <= received */
  bool active;                     /* done != expected, or units are held */
  bool idle;                       /* it asks, and is not active */
  struct tt_proxy_transfer transfers[TT_SLOTS];
  /* With slots of a pool. Sending, a step's unit is granted to the device before it fills it, and taken back when it is
   * sent: done <= posted <= granted. Receiving, a step has its unit from when it is posted until the device has read
   * it: freed <= done. */
  struct tt_proxy_pool *pool; /* NULL: slots of its own */
  struct tt_proxy_wait wait;
  uint64_t granted, freed;
  int held;                        /* units */
  struct tt_proxy_figures figures; /* counters; who it is is filled in by who reads */
  uint64_t begun_ns;               /* of the step that is being timed */
  struct tt_proxy_unit *units[TT_SLOTS];
  struct tt_proxy_lines lines;
};

/* What is needed of steps is their order and distance, which survive a wrap. */
static inline bool tt_proxy_before(uint64_t a, uint64_t b)
{
  return (int64_t)(a - b) < 0;
}

/* For who may not wait long. False: somebody is in the engine all the time. */
bool tt_proxy_try_lock(struct tt_proxy *proxy);
/* More of them have work left, or fewer. Reads a clock where it is the first, or the last. Called with the lock held.
 */
void tt_proxy_count_active(struct tt_proxy *proxy, int change);
/* Posts and completes what can be. Called with the lock held. */
ncclResult_t tt_proxy_conn_advance(struct tt_proxy_conn *conn, bool *moved);
/* Whether messages have come that the device is not shown before they are flushed. */
bool tt_proxy_conn_flushes(const struct tt_proxy_conn *conn);
/* The same for all that reduces. */
ncclResult_t tt_proxy_reduces_progress(struct tt_proxy *proxy, bool *moved);
/* The same for a connection that another rank's proxy serves. */
ncclResult_t tt_proxy_remote_advance(struct tt_proxy_conn *conn, bool *moved);
/* The pool of the connection's device and direction, made if there is none. Called with the lock held. */
ncclResult_t tt_proxy_conn_find_pool(struct tt_proxy_conn *conn);
/* Makes the connection one of its proxy's. */
void tt_proxy_conn_add(struct tt_proxy_conn *conn);
/* The connection has work left. Called with the lock held. */
void tt_proxy_conn_wake(struct tt_proxy_conn *conn);
/* Makes it the last of the idle ones, or none of them. Called with the lock held. */
void tt_proxy_conn_idle(struct tt_proxy_conn *conn, bool idle);
/* As tt_proxy_expect. Called with the lock held. */
ncclResult_t tt_proxy_conn_append(struct tt_proxy_conn *conn, int protocol, uint64_t steps);
/* The connection has nothing left to do: one that asks is idle then. Called with the lock held. */
void tt_proxy_conn_rest(struct tt_proxy_conn *conn);
/* Gives back a transfer's own registration. Called with the link's lock held. */
void tt_proxy_transfer_clear(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer);

/* The next transfer was taken by the plugin. */
void tt_proxy_conn_posted(struct tt_proxy_conn *conn);

/* ---- group.c: receives of several connections in one request ---- */

/* Whether the connection's next step may be received in a group. */
bool tt_proxy_group_fits(const struct tt_proxy_conn *conn);
/* That step's transfer is prepared. Called with the proxy's and the link's lock held, as are the others. */
void tt_proxy_group_offer(struct tt_proxy_conn *conn);
/* Posts what was offered. Called with the proxy's lock held. */
ncclResult_t tt_proxy_groups_post(struct tt_proxy *proxy, bool *moved);
/* Tests a transfer of a group. */
ncclResult_t tt_proxy_group_test(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer, int *done, int *size);
/* The connection needs its part of the group no more. */
void tt_proxy_group_leave(struct tt_proxy_transfer *transfer);
/* The connection is being closed. */
void tt_proxy_group_forget(struct tt_proxy_conn *conn);

/* ---- direct.c: slots in a device's memory ---- */

ncclResult_t tt_proxy_direct_register(struct tt_proxy_conn *conn, void **mhandle);
/* Begins to flush what a transfer has received: transfer->request becomes the flush's, NULL if it is done. */
ncclResult_t tt_proxy_direct_flush(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer);

/* ---- running.c: connections that are free running ---- */

/* Before the connection is one of its proxy's, and after. */
ncclResult_t tt_proxy_running_prepare(struct tt_proxy_conn *conn);
void tt_proxy_running_start(struct tt_proxy_conn *conn);
/* As tt_proxy_conn_advance, of one that receives. */
ncclResult_t tt_proxy_running_receive(struct tt_proxy_conn *conn, bool *moved);
/* Of a connection that asks: takes down what the device asks for. Whether there is more to do than before. */
bool tt_proxy_running_hear(struct tt_proxy_conn *conn);
/* Looks at some of those that are idle. Called with the lock held. */
void tt_proxy_running_hear_some(struct tt_proxy *proxy);
/* Sending: the step behind the last that the device has filled; those before `sent` were sent. */
uint64_t tt_proxy_running_filled(const struct tt_proxy_conn *conn, uint64_t sent);
/* The step behind the last that is known of. */
uint64_t tt_proxy_running_end(const struct tt_proxy_conn *conn);
/* How many have filled slots that are not sent. Called with the lock held. */
int tt_proxy_running_busy(const struct tt_proxy *proxy);

/* ---- lines.c: LL for devices that look at lines alone ---- */

/* Whether the connection is one. */
bool tt_proxy_lines_wanted(const struct tt_proxy_conn_config *config);
/* Before buffers are registered; conn->done is where it starts. */
ncclResult_t tt_proxy_lines_create(struct tt_proxy_conn *conn);
void tt_proxy_lines_free(struct tt_proxy_conn *conn);
/* Sending: the step behind the last that is complete, and behind the last that the device has begun to fill, which is
 * `from` at least: all before that were sent. */
uint64_t tt_proxy_lines_filled(struct tt_proxy_conn *conn);
uint64_t tt_proxy_lines_begun(const struct tt_proxy_conn *conn, uint64_t from);
ncclResult_t tt_proxy_lines_prepare(struct tt_proxy_conn *conn, uint64_t step, struct tt_proxy_transfer *transfer);
/* Receiving: puts a message of `size` bytes into its slot. */
ncclResult_t tt_proxy_lines_publish(struct tt_proxy_conn *conn, uint64_t step, const void *message, int size);

/* ---- pooled.c: connections with slots of a pool ---- */

/* Sending: lets the device fill as many steps as there are units for. */
ncclResult_t tt_proxy_pooled_grant(struct tt_proxy_conn *conn, bool *moved);
/* Receiving: takes back the units of what the device has read. */
void tt_proxy_pooled_free(struct tt_proxy_conn *conn, uint64_t head, bool *moved);
/* Finds the transfer's memory. False: it has to wait for a unit. Called with the link's lock held. */
ncclResult_t tt_proxy_pooled_prepare(struct tt_proxy_conn *conn, uint64_t step, struct tt_proxy_transfer *transfer,
                                     bool *ready);
/* A transfer is complete: its unit goes back, or is shown to the device. */
void tt_proxy_pooled_complete(struct tt_proxy_conn *conn, uint64_t step, int size);
/* A connection of a shared link is closed while messages are on their way: their units are the link's from now on.
 * Called with the link's lock held. */
void tt_proxy_pooled_leave(struct tt_proxy_conn *conn);
/* Gives back what the connection holds. */
void tt_proxy_pooled_close(struct tt_proxy_conn *conn);

#endif
