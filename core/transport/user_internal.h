/* What the files of users' memory share; see user_buffers.h. */
#ifndef TT_TRANSPORT_USER_INTERNAL_H
#define TT_TRANSPORT_USER_INTERNAL_H

#include <pthread.h>
#include "transport/transport.h"
#include "transport/user_buffers.h"

/* Another rank's allocation as this rank's device sees it, used by all windows in it. */
struct tt_user_import {
  struct tt_user_import *next;
  int rank;
  uint64_t id; /* of the allocation in that rank's process */
  unsigned uses;
  struct tt_device_memory memory;
};

/* A descriptor that other processes may fetch. */
struct tt_user_shown {
  struct tt_user_shown *next;
  uint64_t object;
  int fd;
  uint64_t bytes;
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
  uint64_t id;                     /* of the allocation */
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
  int nwindows, room;
  struct tt_user_window *closed; /* that somebody holds */
  struct tt_user_import *imports;
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

/* user_import.c. What a rank says of an allocation. */
struct tt_user_source {
  int rank;
  uint64_t id, object;
  struct tt_device_export shown;
};
/* One more use of the import of an allocation. May wait, bounded, for the other process to hand out a descriptor. */
ncclResult_t tt_user_import(struct tt_user_buffers *buffers, const struct tt_user_source *source,
                            struct tt_user_import **out);
/* The last use ends it. NULL is allowed. */
void tt_user_import_end(struct tt_user_buffers *buffers, struct tt_user_import *import);
/* Ends the window's imports, and frees it unless it is held, as who lets go then does. */
void tt_user_window_free(struct tt_user_buffers *buffers, struct tt_user_window *window);
/* Hands out a descriptor under a number of its own, until it is withdrawn. Takes the descriptor over. */
ncclResult_t tt_user_show(struct tt_user_buffers *buffers, int fd, uint64_t bytes, uint64_t *object);
void tt_user_withdraw(struct tt_user_buffers *buffers, uint64_t object);

/* The device's functions for users' memory are there. */
static inline bool tt_user_memory_known(const struct tt_transport_env *env)
{
  return (env->device->features & TT_DEVICE_USER_MEMORY) != 0;
}

#endif
