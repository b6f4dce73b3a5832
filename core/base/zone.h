/* An arena: objects that end together. Taking one moves a pointer; all are given back at once. The memory comes from a
 * pool, so that a short-lived zone (of one group, one plan) allocates nothing when it is made again and again, or from
 * the C library, for one that lives long. One thread at a time. */
#ifndef TT_BASE_ZONE_H
#define TT_BASE_ZONE_H

#include <stddef.h>
#include "base/pool.h"
#include "nccl.h"

/* All zero is an empty zone with memory of the C library. */
struct tt_zone {
  struct tt_pool *pool; /* outlives the zone; NULL: the C library */
  struct tt_zone_piece *pieces;
  unsigned char *next; /* in the newest piece, or in what was lent */
  size_t left;
  size_t bytes; /* of all pieces */
};

/* Memory of the caller's, aligned for every type, for an empty zone to use before any other. It stays until the zone is
 * cleared. */
void tt_zone_lend(struct tt_zone *zone, void *memory, size_t bytes);
/* Zeroed memory, aligned for every type; NULL if there is none. */
void *tt_zone_take(struct tt_zone *zone, size_t bytes);
/* `count` zeroed objects; reports it if there is no memory. On failure *out is NULL. */
#define TT_ZONE_NEW(zone, out, count)                                                                                  \
  tt_zone_new((zone), (void **)(out), (count), sizeof(**(out)), __FILE__, __LINE__, __func__)
ncclResult_t tt_zone_new(struct tt_zone *zone, void **out, size_t count, size_t size, const char *file, int line,
                         const char *func);
/* A copy of a text; NULL stays NULL. */
ncclResult_t tt_zone_copy(struct tt_zone *zone, const char *text, char **out);

/* Gives back all that was taken; the zone is then empty. */
void tt_zone_clear(struct tt_zone *zone);

#endif
