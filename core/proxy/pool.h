/* Slots that the connections of a proxy share: one pool for each network device and direction.
 *
 * A unit is one slot of any protocol. The proxy gives a connection a unit for a step and takes it back when the message
 * has left, or was read. So a rank that talks to many peers holds as many slots as are on their way, not eight for each
 * peer and protocol. A pool grows by slabs of eight units, as many as one connection has slots, up to its limit.
 *
 * A pool that has run dry makes connections wait, but never for ever:
 *   1. Only who has no unit queues up, first come, first served, and those with units get no more while anybody waits.
 *   2. If nothing is given back for a while although somebody waits (POOL_STALL_NS), the head of the queue gets a unit
 *      beyond the limit, a spare, which is freed after use; if that does not help either, two more get one, then four.
 *   3. So at a standstill each connection with work holds at least one unit in the end. Then it can do what one with
 *      a FIFO of one slot of its own does, whatever others do: the sender fills it, the network takes it to the
 *      receiver, which has posted one, and there it is read. The programs that use pools run with FIFOs of one slot, as
 *      the validator proves (tests/program). So whatever made the pool dry, it is not the pool that is waited for.
 * Step 2 needs the time because a queue is usually served by itself: all ranks serve messages in the same order (the
 * rounds of core/plan), so the first in all queues is on its way. It is needed because users may order messages between
 * several groups otherwise. Memory is thus at most the limit and one spare for each connection that waits for a peer.
 *
 * A device with memory of its own has slabs mapped (tt_proxy_pool_map), which may cost it time, and must not be
 * unmapped while it works. So such a pool grows when connections are made, by a few units each, and its spares stay in
 * it.
 *
 * All but references is guarded by the proxy's lock. */
#ifndef TT_PROXY_POOL_H
#define TT_PROXY_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/shm.h"
#include "nccl.h"

struct tt_proxy_slab;

struct tt_proxy_unit {
  struct tt_proxy_unit *next; /* of the pool's free ones */
  struct tt_proxy_slab *slab;
  unsigned char *data; /* begins at 64 modulo 128, as slots of every protocol may */
  unsigned char *at;   /* where the device finds it */
};

/* How a device with memory of its own is shown slabs, whole pages of them. */
struct tt_proxy_pool_map {
  ncclResult_t (*map)(void *context, void *memory, size_t bytes, void **at); /* NULL: it finds them where they are */
  void (*unmap)(void *context, void *memory, size_t bytes);                  /* may wait for what runs */
  void *context;
};

struct tt_proxy_pool;
struct tt_proxy_pool_config {
  int device;
  bool send;
  size_t unit_bytes; /* a multiple of 128 */
  int limit;         /* units */
  /* Where slabs lie, for a pool that another rank sends from (remote.h); NULL: in memory of this process alone. Spares
   * then stay in the pool: what that rank has registered may not go away under it. */
  struct tt_shm *shm;
  struct tt_proxy_pool_map map;
};

/* A connection's place in a pool's queue. */
struct tt_proxy_wait {
  struct tt_proxy_wait *next;
  bool queued;
};

ncclResult_t tt_proxy_pool_create(const struct tt_proxy_pool_config *config, struct tt_proxy_pool **out);
/* NULL is allowed. Slabs that links have registered live as long as these. */
void tt_proxy_pool_destroy(struct tt_proxy_pool *pool);
bool tt_proxy_pool_matches(const struct tt_proxy_pool *pool, const struct tt_proxy_pool_config *config);

/* A unit for a connection that holds `held` of them; *unit is NULL if it has to ask again later. */
ncclResult_t tt_proxy_pool_take(struct tt_proxy_pool *pool, struct tt_proxy_wait *wait, int held,
                                struct tt_proxy_unit **unit);
void tt_proxy_pool_give(struct tt_proxy_pool *pool, struct tt_proxy_unit *unit);
/* A connection that waited is gone. */
void tt_proxy_pool_forget(struct tt_proxy_pool *pool, struct tt_proxy_wait *wait);

/* One more or one less connection that uses the pool. A pool that a device has to be shown is made as large as it will
 * be here, so that nothing is mapped while works run, but for spares. */
ncclResult_t tt_proxy_pool_join(struct tt_proxy_pool *pool);
void tt_proxy_pool_part(struct tt_proxy_pool *pool);

/* One more or one less connection with work. */
void tt_proxy_pool_count(struct tt_proxy_pool *pool, int more);
/* How many units a connection may hold, so that all that have work get their share. */
int tt_proxy_pool_share(const struct tt_proxy_pool *pool);
size_t tt_proxy_pool_unit_bytes(const struct tt_proxy_pool *pool);

struct tt_proxy_pool_state {
  size_t bytes; /* held now */
  int units, free, waiting;
  uint64_t spares; /* ever given */
};
struct tt_proxy_pool_state tt_proxy_pool_look(const struct tt_proxy_pool *pool);

/* ---- Slabs: what is registered ---- */

void *tt_proxy_slab_memory(const struct tt_proxy_slab *slab, size_t *bytes);
struct tt_proxy_slab *tt_proxy_slab_retain(struct tt_proxy_slab *slab);
void tt_proxy_slab_release(struct tt_proxy_slab *slab);
/* Where a slab lies in shared memory. */
uint64_t tt_proxy_slab_offset(const struct tt_proxy_slab *slab);
/* Another rank may still read the slab: its place in shared memory is not used again. */
void tt_proxy_slab_lose(struct tt_proxy_slab *slab);
/* A slab of another rank's memory, mapped here: one reference; the last release calls `unmap`. */
typedef void tt_proxy_slab_unmap(void *context, void *memory, size_t bytes);
ncclResult_t tt_proxy_slab_adopt(void *memory, size_t bytes, tt_proxy_slab_unmap *unmap, void *context,
                                 struct tt_proxy_slab **out);
/* Whether the unit is a spare: it is registered for one message only. */
bool tt_proxy_unit_spare(const struct tt_proxy_unit *unit);

#endif
