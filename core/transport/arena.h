/* The shared memory that ranks of this process own, found by name and counted, so that a rank of the same process can
 * use another's memory by plain pointers and keep it alive: an aborted communicator may leave while its neighbour's
 * thread still reads. The only state that outlives a communicator is the list of arenas in use. Any thread. */
#ifndef TT_TRANSPORT_ARENA_H
#define TT_TRANSPORT_ARENA_H

#include <stddef.h>
#include "nccl.h"
#include "base/shm.h"

struct tt_arena;

/* Publishes `shm` under a name that no other rank has; the arena owns `shm` from then on, also on failure. `base` is
 * where offset 0 of the memory lies. */
ncclResult_t tt_arena_publish(const char *name, struct tt_shm *shm, unsigned char *base, size_t bytes,
                              struct tt_arena **out);
/* One more reference to the arena of that name; NULL if this process has none. */
struct tt_arena *tt_arena_find(const char *name);
/* Gives a reference back; the last one frees the memory. NULL is allowed. */
void tt_arena_release(struct tt_arena *arena);
/* The owner is gone: the name is found no more. References stay valid. NULL is allowed. */
void tt_arena_withdraw(struct tt_arena *arena);
/* The address of [offset, offset + bytes); NULL if that is outside. */
void *tt_arena_at(const struct tt_arena *arena, uint64_t offset, size_t bytes);

#endif
