/* How own net plugins count (tutti/counters.h): each comm has figures that its own thread writes, and a list of all
 * comms, under a lock that only opening, closing and reading take.
 *
 *     struct tt_counted in the comm; tt_counted_open when it is made, tt_counted_close before it is freed
 *     tt_count(&comm->counted, TT_COUNT_BYTES, n) on the way
 *     export tt_counted_read as the `read` of tuttiNetCounters
 *     tt_counted_forget when the plugin forgets its devices
 *
 * The figures of a comm that closes are added to its device's. */
#ifndef TT_PLUGINS_COUNTERS_H
#define TT_PLUGINS_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "tutti/counters.h"

/* In the order of the bits TT_COUNTS_*, up to the depth, which has two. */
enum tt_count {
  TT_COUNT_BYTES,
  TT_COUNT_OPERATIONS,
  TT_COUNT_RETRIES,
  TT_COUNT_REFUSED,
  TT_COUNT_CLEAR_TO_SENDS,
  TT_COUNT_CLEAR_TO_SEND_WAITS,
  TT_COUNT_DEPTH,
  TT_COUNT_DEPTH_MOST,
  TT_COUNT_KINDS
};

struct tt_counted {
  struct tt_counted *next, **link; /* NULL: not open */
  bool sends;
  int dev;
  const void *comm;        /* NULL: of the device beside its comms, as what only a port counts; not shown by itself */
  const char *name, *peer; /* the caller's, valid until it is closed */
  uint64_t counts;         /* TT_COUNTS_* */
  /* Looks up what is counted elsewhere, as by a kernel; NULL: nothing is. Called by readers and by the close, one at a
   * time, never by who moves data. */
  void (*refresh)(struct tt_counted *counted);
  _Atomic uint64_t values[TT_COUNT_KINDS];
};

/* `counted` is zeroed but for what the caller has set, from `sends` to `refresh`. Any thread, as the two below. */
void tt_counted_open(struct tt_counted *counted);
/* Nothing happens to one that is not open. */
void tt_counted_close(struct tt_counted *counted);
/* Forgets what devices had. */
void tt_counted_forget(void);
ncclResult_t tt_counted_read(tt_counters_visit *visit, void *context);

/* Sets a figure. By one thread at a time, as all that follow. */
static inline void tt_count_set(struct tt_counted *counted, enum tt_count which, uint64_t value)
{
  atomic_store_explicit(&counted->values[which], value, memory_order_relaxed);
}

static inline uint64_t tt_count_get(const struct tt_counted *counted, enum tt_count which)
{
  return atomic_load_explicit(&counted->values[which], memory_order_relaxed);
}

/* There is one writer, so this is no locked instruction. */
static inline void tt_count(struct tt_counted *counted, enum tt_count which, uint64_t more)
{
  tt_count_set(counted, which, tt_count_get(counted, which) + more);
}

/* A piece of work was handed over. */
static inline void tt_count_begun(struct tt_counted *counted)
{
  uint64_t depth = tt_count_get(counted, TT_COUNT_DEPTH) + 1;
  tt_count_set(counted, TT_COUNT_DEPTH, depth);
  if (depth > tt_count_get(counted, TT_COUNT_DEPTH_MOST)) tt_count_set(counted, TT_COUNT_DEPTH_MOST, depth);
}

/* It is complete. */
static inline void tt_count_ended(struct tt_counted *counted)
{
  tt_count_set(counted, TT_COUNT_DEPTH, tt_count_get(counted, TT_COUNT_DEPTH) - 1);
}

/* A message of `bytes` bytes is complete. */
static inline void tt_count_message(struct tt_counted *counted, uint64_t bytes)
{
  tt_count(counted, TT_COUNT_BYTES, bytes);
  tt_count(counted, TT_COUNT_OPERATIONS, 1);
}

#endif
