/* What the files of users' memory share; see user_buffers.h. */
#ifndef TT_TRANSPORT_USER_INTERNAL_H
#define TT_TRANSPORT_USER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include "transport/transport.h"
#include "transport/user_buffers.h"
#include "transport/user_range.h"

/* Another rank's allocations, side by side, as this rank's device sees them; used by all that needs just these. */
struct tt_user_import {
  struct tt_user_import *next;
  int rank;
  uint32_t nparts;
  uint64_t *ids; /* of the allocations in that rank's process */
  unsigned uses;
  struct tt_device_memory memory;
};

/* A descriptor that other processes may fetch. */
struct tt_user_shown {
  struct tt_user_shown *next;
  uint64_t object, id; /* by which it is fetched; of its allocation */
  unsigned uses;
  int fd;
  uint64_t bytes;
};

/* An allocation in which a window lies, or a part of it. */
struct tt_user_extent {
  uint64_t id;
  const unsigned char *end; /* of the window's part in it */
};

struct tt_user_window {
  struct tt_user_window *next; /* of the closed ones */
  uint32_t number;
  unsigned opened; /* times, less those that it was closed; under the buffers' lock */
  unsigned holds;  /* under the lock of all holds */
  bool orphan;     /* likewise: the communicator is gone, and who lets go last frees the window */
  bool everywhere;
  uint64_t graph; /* that holds it since last; 0: none. Of the thread that has operations on the communicator */
  unsigned char *base;
  size_t bytes;
  uint32_t nextents;
  struct tt_user_extent *extents;  /* in the order of addresses */
  struct tt_user_import **imports; /* by rank; NULL: itself, or of another host */
  unsigned char **at;              /* by rank: where the window begins */
};

/* Whether this rank's device can use an allocation of another rank of this process in place, as was found out once. */
#define TT_USER_REACHED 256
struct tt_user_reached {
  uint64_t id; /* 0: none */
  bool can;
};

struct tt_user_buffers {
  struct tt_transport_env *env;
  struct tt_context *context;
  pthread_mutex_t lock;            /* of all that follows; not held while the device is called */
  struct tt_user_window **windows; /* open ones, by address */
  _Atomic int nwindows;
  int room;
  struct tt_user_window *closed; /* that somebody holds */
  struct tt_user_import *imports;
  struct tt_user_graph *graphs; /* user_graph.c's */
  _Atomic uint64_t ended_seen;
  struct tt_user_shown *shown;
  uint64_t last_object;
  struct tt_user_reached reached[TT_USER_REACHED]; /* by id; of the thread that has operations */
  uint32_t last_number; /* of windows: counts calls to open one, which all ranks make alike */
};

/* user_buffers.c. The open window of exactly this range, and any that has a part of it; NULL: none. */
struct tt_user_window *tt_user_same(struct tt_user_buffers *buffers, const void *ptr, size_t bytes);
struct tt_user_window *tt_user_overlapping(struct tt_user_buffers *buffers, const void *ptr, size_t bytes);
/* What the device knows of a pointer; where that is nothing, without a warning. */
ncclResult_t tt_user_look(const struct tt_user_buffers *buffers, const void *ptr, struct tt_device_buffer *buffer);
/* Takes the window in, which is open once. */
ncclResult_t tt_user_insert(struct tt_user_buffers *buffers, struct tt_user_window *window);
/* Unmaps what was closed and is not held any more. */
void tt_user_reap(struct tt_user_buffers *buffers);

/* Whether what lies at the window's part [ptr, ptr + bytes) is still the memory that it was opened with. */
bool tt_user_is_alive(const struct tt_user_buffers *buffers, const struct tt_user_window *window, const void *ptr,
                      size_t bytes);

/* user_import.c. One more use of the import of another rank's allocations. May wait, bounded, for the other process to
 * hand out descriptors. */
ncclResult_t tt_user_import(struct tt_user_buffers *buffers, int rank, const struct tt_user_range *range,
                            struct tt_user_import **out);
/* Ends the window's imports, and frees it unless it is held, as who lets go then does. */
void tt_user_window_free(struct tt_user_buffers *buffers, struct tt_user_window *window);
/* Hands out an allocation's descriptor under a number of its own, until it is withdrawn. Takes the descriptor over. */
ncclResult_t tt_user_show(struct tt_user_buffers *buffers, int fd, uint64_t id, uint64_t bytes, uint64_t *object);
/* Once more, if the allocation is shown already; it is then withdrawn as often. */
bool tt_user_show_again(struct tt_user_buffers *buffers, uint64_t id, uint64_t *object);
void tt_user_withdraw(struct tt_user_buffers *buffers, uint64_t object);
/* Of what is shown: it is to be withdrawn once more. */
void tt_user_show_longer(struct tt_user_buffers *buffers, uint64_t object);

/* user_graph.c. Unmaps what graphs hold, though they can still run. */
void tt_user_graphs_destroy(struct tt_user_buffers *buffers);

/* Ranks of this host but this one: those that are to map each other's memory. */
static inline bool tt_user_neighbour(const struct tt_transport_env *env, int rank)
{
  return rank != env->rank && env->peers[rank].node == env->peers[env->rank].node;
}

/* How memory goes to another rank of this host, and comes from it. */
static inline int tt_user_way(const struct tt_transport_env *env, int rank)
{
  return env->peers[rank].process == env->peers[env->rank].process ? TT_USER_LOCAL : TT_USER_REMOTE;
}

/* The device's functions for users' memory are there. */
static inline bool tt_user_memory_known(const struct tt_transport_env *env)
{
  return (env->device->features & TT_DEVICE_USER_MEMORY) != 0;
}

#endif
