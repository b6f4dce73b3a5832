/* Memory that is used again: who gives a block back leaves it on a list, and the next who wants one of that size finds
 * it there. So what is done again and again allocates nothing after the first time. A pool keeps a limited number of
 * bytes on its lists; what exceeds it, and every very large block, goes back to the C library. Any thread. */
#ifndef TT_BASE_POOL_H
#define TT_BASE_POOL_H

#include <stddef.h>
#include "nccl.h"

struct tt_pool;

/* `keep`: bytes that may lie on the lists. */
ncclResult_t tt_pool_create(size_t keep, struct tt_pool **out);
/* Every block must be back. NULL is allowed. */
void tt_pool_destroy(struct tt_pool *pool);

/* At least `bytes`, aligned for every type, with any content; NULL if there is no memory. Without a pool (NULL) it is
 * the C library's. */
void *tt_pool_take(struct tt_pool *pool, size_t bytes);
/* The same, all zero. */
void *tt_pool_take_zeroed(struct tt_pool *pool, size_t bytes);
/* Gives a block back to where it came from. NULL is allowed. */
void tt_pool_give(void *block);

/* `count` zeroed objects; reports it if there is no memory. On failure *out is NULL. */
#define TT_POOL_NEW(pool, out, count)                                                                                  \
  tt_pool_new((pool), (void **)(out), (count), sizeof(**(out)), __FILE__, __LINE__, __func__)
ncclResult_t tt_pool_new(struct tt_pool *pool, void **out, size_t count, size_t size, const char *file, int line,
                         const char *func);

/* Bytes that the pool holds, lent and on its lists. */
size_t tt_pool_bytes(struct tt_pool *pool);

#endif
