/* See pool.h. A block begins with a head that says whose it is; sizes are powers of two and those half way between. */
#include "base/pool.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

/* The smallest block, head included. */
#define SMALLEST_BITS 6
#define SMALLEST ((size_t)1 << SMALLEST_BITS)
#define CLASSES 25 /* 64, 96, 128, 192, ... 256 Ki */

struct head {
  struct tt_pool *pool; /* NULL: the C library's */
  size_t bytes;         /* head included */
};
_Static_assert(sizeof(struct head) % _Alignof(max_align_t) == 0, "what follows the head is aligned for every type");

/* On a list it also has a successor. */
struct idle {
  struct head head;
  struct idle *next;
};

struct tt_pool {
  size_t keep;
  pthread_mutex_t lock; /* guards what follows */
  size_t lent, kept;
  struct idle *lists[CLASSES];
};

/* The list for blocks of `bytes`, which becomes the size of all on it; CLASSES or more: none. Even lists are of powers
 * of two, odd ones of those half way to the next. */
static int find_class(size_t *bytes)
{
  if (*bytes <= SMALLEST) {
    *bytes = SMALLEST;
    return 0;
  }
  int above = 64 - __builtin_clzll(*bytes - 1); /* the next power of two, or the bytes themselves */
  size_t power = (size_t)1 << above, half_way = power / 4 * 3;
  bool fits = *bytes <= half_way;
  int class = 2 * (above - SMALLEST_BITS) - fits;
  if (class < CLASSES) *bytes = fits ? half_way : power;
  return class;
}

ncclResult_t tt_pool_create(size_t keep, struct tt_pool **out)
{
  TT_TRY(TT_CALLOC(out, 1));
  (*out)->keep = keep;
  pthread_mutex_init(&(*out)->lock, NULL);
  return ncclSuccess;
}

static void release(struct idle *idle)
{
  ASAN_UNPOISON_MEMORY_REGION(idle, idle->head.bytes);
  free(idle);
}

void tt_pool_destroy(struct tt_pool *pool)
{
  if (!pool) return;
  for (int i = 0; i < CLASSES; i++) {
    while (pool->lists[i]) {
      struct idle *idle = pool->lists[i];
      pool->lists[i] = idle->next;
      release(idle);
    }
  }
  if (pool->lent > 0) TT_WARN("%zu bytes of a pool are still in use at its end", pool->lent);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

static struct head *take_idle(struct tt_pool *pool, int class, size_t bytes)
{
  pthread_mutex_lock(&pool->lock);
  struct idle *idle = class < CLASSES ? pool->lists[class] : NULL;
  if (idle) {
    pool->lists[class] = idle->next;
    pool->kept -= bytes;
    pool->lent += bytes;
  }
  pthread_mutex_unlock(&pool->lock);
  if (idle) ASAN_UNPOISON_MEMORY_REGION(idle, bytes);
  return idle ? &idle->head : NULL;
}

void *tt_pool_take(struct tt_pool *pool, size_t bytes)
{
  if (bytes > PTRDIFF_MAX - sizeof(struct head)) return NULL;
  bytes += sizeof(struct head);
  int class = find_class(&bytes);
  struct head *head = pool ? take_idle(pool, class, bytes) : NULL;
  if (head) return head + 1;
  head = malloc(bytes);
  if (!head) return NULL;
  *head = (struct head){pool, bytes};
  if (pool) {
    pthread_mutex_lock(&pool->lock);
    pool->lent += bytes;
    pthread_mutex_unlock(&pool->lock);
  }
  return head + 1;
}

void *tt_pool_take_zeroed(struct tt_pool *pool, size_t bytes)
{
  void *block = tt_pool_take(pool, bytes);
  return block ? memset(block, 0, bytes) : NULL;
}

void tt_pool_give(void *block)
{
  if (!block) return;
  struct head *head = (struct head *)block - 1;
  struct idle *idle = (struct idle *)head;
  struct tt_pool *pool = head->pool;
  size_t bytes = head->bytes;
  if (!pool) {
    free(head);
    return;
  }
  int class = find_class(&bytes);
  pthread_mutex_lock(&pool->lock);
  pool->lent -= bytes;
  bool keep = class < CLASSES && pool->kept + bytes <= pool->keep;
  if (keep) {
    idle->next = pool->lists[class];
    pool->lists[class] = idle;
    pool->kept += bytes;
    ASAN_POISON_MEMORY_REGION(idle + 1, bytes - sizeof(*idle)); /* a sanitizer still finds who uses it after this */
  }
  pthread_mutex_unlock(&pool->lock);
  if (!keep) free(head);
}

ncclResult_t tt_pool_new(struct tt_pool *pool, void **out, size_t count, size_t size, const char *file, int line,
                         const char *func)
{
  bool possible = size == 0 || count <= PTRDIFF_MAX / size;
  *out = possible ? tt_pool_take_zeroed(pool, count * size) : NULL;
  if (*out) return ncclSuccess;
  return tt_log_fail(ncclSystemError, file, line, func, "out of memory: %zu objects of %zu bytes", count, size);
}

size_t tt_pool_bytes(struct tt_pool *pool)
{
  if (!pool) return 0;
  pthread_mutex_lock(&pool->lock);
  size_t bytes = pool->lent + pool->kept;
  pthread_mutex_unlock(&pool->lock);
  return bytes;
}
