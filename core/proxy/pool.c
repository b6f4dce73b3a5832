/* See pool.h. */
#include "proxy/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "base/check.h"
#include "base/timer.h"

#define SLAB_UNITS 8
#define LEAD 64 /* bytes before the first unit */
#define PAGE 4096
/* Of a pool that a device has mapped: less than a connection can use at a time, since not all have work. */
#define UNITS_EACH 4
/* Far above what a message takes that both sides are ready for; far below what anybody notices as a hang. */
#define POOL_STALL_NS 5000000u

struct tt_proxy_slab {
  struct tt_proxy_slab *next; /* of the pool's; not of spares */
  _Atomic int references;
  bool spare;
  bool mapped; /* by the device */
  unsigned char *memory;
  size_t bytes;
  struct tt_shm *shm; /* that it lies in, at `offset`; or NULL */
  uint64_t offset;
  bool lost;                  /* see tt_proxy_slab_lose */
  tt_proxy_slab_unmap *unmap; /* of one that was adopted */
  void *context;
  int nunits;
  struct tt_proxy_unit units[SLAB_UNITS];
};

struct tt_proxy_pool {
  struct tt_proxy_pool_config config;
  struct tt_proxy_slab *slabs;
  struct tt_proxy_unit *free;
  struct tt_proxy_wait *first, **end;
  int conns, active;    /* connections; those with work */
  uint64_t dry_since;   /* ns; 0: nobody was refused since a unit was given back */
  int allowed, doubled; /* spares that may be given at once; how many the next time */
  struct tt_proxy_pool_state state;
};

/* ---- Slabs ---- */

static ncclResult_t allocate(struct tt_proxy_slab *slab, struct tt_shm *shm)
{
  slab->shm = shm;
  void *memory;
  if (shm) {
    TT_TRY(tt_shm_alloc(shm, slab->bytes, &memory, &slab->offset));
  } else {
    memory = mmap(NULL, slab->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      return TT_FAIL(ncclSystemError, "%zu bytes for a pool of network buffers: %m; lower NCCL_BUFFSIZE", slab->bytes);
  }
  slab->memory = memory;
  return ncclSuccess;
}

static ncclResult_t show(const struct tt_proxy_pool *pool, struct tt_proxy_slab *slab, unsigned char **at)
{
  const struct tt_proxy_pool_map *map = &pool->config.map;
  void *mapped = slab->memory;
  if (map->map) TT_TRY(map->map(map->context, slab->memory, slab->bytes, &mapped));
  slab->mapped = map->map != NULL;
  *at = mapped;
  return ncclSuccess;
}

static ncclResult_t make_slab(const struct tt_proxy_pool *pool, int nunits, struct tt_proxy_slab **out)
{
  struct tt_proxy_slab *slab;
  TT_TRY(TT_CALLOC(&slab, 1));
  slab->bytes = LEAD + (size_t)nunits * pool->config.unit_bytes;
  if (pool->config.map.map) slab->bytes = (slab->bytes + PAGE - 1) / PAGE * PAGE;
  ncclResult_t result = allocate(slab, pool->config.shm);
  if (result != ncclSuccess) {
    free(slab);
    return result;
  }
  slab->nunits = nunits;
  atomic_store(&slab->references, 1);
  unsigned char *at;
  result = show(pool, slab, &at);
  if (result != ncclSuccess) {
    tt_proxy_slab_release(slab);
    return result;
  }
  for (int u = 0; u < nunits; u++) {
    size_t offset = LEAD + (size_t)u * pool->config.unit_bytes;
    slab->units[u] = (struct tt_proxy_unit){.slab = slab, .data = slab->memory + offset, .at = at + offset};
  }
  *out = slab;
  return ncclSuccess;
}

ncclResult_t tt_proxy_slab_adopt(void *memory, size_t bytes, tt_proxy_slab_unmap *unmap, void *context,
                                 struct tt_proxy_slab **out)
{
  struct tt_proxy_slab *slab;
  *out = NULL;
  TT_TRY(TT_CALLOC(&slab, 1));
  slab->memory = memory;
  slab->bytes = bytes;
  slab->unmap = unmap;
  slab->context = context;
  atomic_store(&slab->references, 1);
  *out = slab;
  return ncclSuccess;
}

uint64_t tt_proxy_slab_offset(const struct tt_proxy_slab *slab)
{
  return slab->offset;
}

void tt_proxy_slab_lose(struct tt_proxy_slab *slab)
{
  slab->lost = true;
}

void *tt_proxy_slab_memory(const struct tt_proxy_slab *slab, size_t *bytes)
{
  *bytes = slab->bytes;
  return slab->memory;
}

struct tt_proxy_slab *tt_proxy_slab_retain(struct tt_proxy_slab *slab)
{
  atomic_fetch_add(&slab->references, 1);
  return slab;
}

void tt_proxy_slab_release(struct tt_proxy_slab *slab)
{
  if (atomic_fetch_sub(&slab->references, 1) != 1) return;
  if (slab->unmap)
    slab->unmap(slab->context, slab->memory, slab->bytes);
  else if (!slab->shm)
    munmap(slab->memory, slab->bytes);
  else if (!slab->lost)
    tt_shm_free(slab->shm, slab->memory, slab->bytes);
  free(slab);
}

bool tt_proxy_unit_spare(const struct tt_proxy_unit *unit)
{
  return unit->slab->spare;
}

/* ---- The pool ---- */

ncclResult_t tt_proxy_pool_create(const struct tt_proxy_pool_config *config, struct tt_proxy_pool **out)
{
  struct tt_proxy_pool *pool;
  *out = NULL;
  TT_TRY(TT_CALLOC(&pool, 1));
  pool->config = *config;
  pool->end = &pool->first;
  pool->doubled = 1;
  *out = pool;
  return ncclSuccess;
}

void tt_proxy_pool_destroy(struct tt_proxy_pool *pool)
{
  if (!pool) return;
  const struct tt_proxy_pool_map *map = &pool->config.map;
  while (pool->slabs) {
    struct tt_proxy_slab *next = pool->slabs->next;
    if (pool->slabs->mapped) map->unmap(map->context, pool->slabs->memory, pool->slabs->bytes);
    tt_proxy_slab_release(pool->slabs);
    pool->slabs = next;
  }
  free(pool);
}

bool tt_proxy_pool_matches(const struct tt_proxy_pool *pool, const struct tt_proxy_pool_config *config)
{
  return pool->config.device == config->device && pool->config.send == config->send &&
         pool->config.unit_bytes == config->unit_bytes && pool->config.limit == config->limit &&
         pool->config.shm == config->shm && pool->config.map.context == config->map.context;
}

static ncclResult_t grow(struct tt_proxy_pool *pool)
{
  int more = TT_MIN(pool->config.limit - pool->state.units, SLAB_UNITS);
  if (more <= 0) return ncclSuccess;
  struct tt_proxy_slab *slab;
  TT_TRY(make_slab(pool, more, &slab));
  slab->next = pool->slabs;
  pool->slabs = slab;
  for (int u = more; u-- > 0;) {
    slab->units[u].next = pool->free;
    pool->free = &slab->units[u];
  }
  pool->state.units += more;
  pool->state.free += more;
  pool->state.bytes += slab->bytes;
  return ncclSuccess;
}

ncclResult_t tt_proxy_pool_join(struct tt_proxy_pool *pool)
{
  pool->conns++;
  int wanted = pool->config.map.map ? TT_MIN(pool->config.limit, UNITS_EACH * pool->conns) : 0;
  while (pool->state.units < wanted) TT_TRY(grow(pool));
  return ncclSuccess;
}

void tt_proxy_pool_part(struct tt_proxy_pool *pool)
{
  pool->conns--;
}

/* Whether the head of the queue has waited long enough for a spare. */
static bool stalled(struct tt_proxy_pool *pool)
{
  uint64_t now = tt_timer_ns();
  if (pool->dry_since == 0) pool->dry_since = now;
  if (pool->allowed == 0 && now - pool->dry_since > POOL_STALL_NS) {
    pool->allowed = pool->doubled;
    pool->doubled = TT_MIN(2 * pool->doubled, 1024);
    pool->dry_since = now;
  }
  return pool->allowed > 0;
}

static ncclResult_t make_spare(struct tt_proxy_pool *pool, struct tt_proxy_unit **unit)
{
  struct tt_proxy_slab *slab;
  TT_TRY(make_slab(pool, 1, &slab));
  pool->allowed--;
  pool->state.spares++;
  pool->state.bytes += slab->bytes;
  *unit = &slab->units[0];
  slab->spare = !pool->config.shm && !pool->config.map.map;
  if (slab->spare) return ncclSuccess;
  slab->next = pool->slabs;
  pool->slabs = slab;
  pool->state.units++;
  return ncclSuccess;
}

static void enqueue(struct tt_proxy_pool *pool, struct tt_proxy_wait *wait)
{
  if (wait->queued) return;
  wait->queued = true;
  wait->next = NULL;
  *pool->end = wait;
  pool->end = &wait->next;
  pool->state.waiting++;
}

void tt_proxy_pool_forget(struct tt_proxy_pool *pool, struct tt_proxy_wait *wait)
{
  if (!wait->queued) return;
  struct tt_proxy_wait **at = &pool->first;
  while (*at != wait) at = &(*at)->next;
  *at = wait->next;
  if (!*at) pool->end = at;
  wait->queued = false;
  pool->state.waiting--;
}

ncclResult_t tt_proxy_pool_take(struct tt_proxy_pool *pool, struct tt_proxy_wait *wait, int held,
                                struct tt_proxy_unit **unit)
{
  *unit = NULL;
  if (held > 0 && pool->first) return ncclSuccess;
  if (!pool->free && !pool->config.map.map) TT_TRY(grow(pool));
  bool turn = !pool->first || pool->first == wait;
  if (turn && pool->free) {
    *unit = pool->free;
    pool->free = (*unit)->next;
    pool->state.free--;
  } else if (turn && held == 0 && stalled(pool)) {
    TT_TRY(make_spare(pool, unit));
  }
  if (*unit)
    tt_proxy_pool_forget(pool, wait);
  else if (held == 0)
    enqueue(pool, wait);
  return ncclSuccess;
}

void tt_proxy_pool_give(struct tt_proxy_pool *pool, struct tt_proxy_unit *unit)
{
  pool->dry_since = 0;
  pool->allowed = 0;
  pool->doubled = 1;
  if (unit->slab->spare) {
    pool->state.bytes -= unit->slab->bytes;
    tt_proxy_slab_release(unit->slab);
    return;
  }
  unit->next = pool->free;
  pool->free = unit;
  pool->state.free++;
}

void tt_proxy_pool_count(struct tt_proxy_pool *pool, int more)
{
  pool->active += more;
}

int tt_proxy_pool_share(const struct tt_proxy_pool *pool)
{
  return TT_MAX(1, pool->config.limit / TT_MAX(pool->active, 1));
}

size_t tt_proxy_pool_unit_bytes(const struct tt_proxy_pool *pool)
{
  return pool->config.unit_bytes;
}

struct tt_proxy_pool_state tt_proxy_pool_look(const struct tt_proxy_pool *pool)
{
  return pool->state;
}
