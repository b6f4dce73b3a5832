/* See lent.h. */
#include "transport/lent.h"

#include <pthread.h>
#include <stdlib.h>
#include "base/check.h"
#include "device/slab.h"

/* Slabs that one rank can ask another for; their number has the asker's above this. */
#define SLABS 256

struct slab {
  struct slab *next;
  int owner;
  uint32_t number;
  struct tt_import *import;
  size_t used;
};

struct tt_lent {
  struct tt_transport_env *env;
  pthread_mutex_t lock;
  struct slab *slabs; /* newest first */
};

ncclResult_t tt_lent_create(struct tt_transport_env *env, struct tt_lent **out)
{
  struct tt_lent *lent;
  *out = NULL;
  TT_TRY(TT_CALLOC(&lent, 1));
  lent->env = env;
  pthread_mutex_init(&lent->lock, NULL);
  *out = lent;
  return ncclSuccess;
}

void tt_lent_destroy(struct tt_lent *lent)
{
  if (!lent) return;
  for (struct slab *slab = lent->slabs, *next; slab; slab = next) {
    next = slab->next;
    tt_imports_put(lent->env->imports, slab->import);
    free(slab);
  }
  pthread_mutex_destroy(&lent->lock);
  free(lent);
}

bool tt_lent_is_for(uint32_t number, int rank)
{
  return (number & TT_SLAB_LENT) && (number & ~TT_SLAB_LENT) / SLABS == (uint32_t)rank;
}

struct tt_import_source tt_lent_source(const struct tt_transport_env *env, int owner, uint32_t number)
{
  bool here = env->peers[owner].process == env->peers[env->rank].process;
  return (struct tt_import_source){
      .rank = owner, .number = number, .shown = {.kind = here ? TT_EXPORT_LOCAL : TT_EXPORT_FD, .fd = -1}};
}

static ncclResult_t borrow(struct tt_lent *lent, int owner, struct slab **out)
{
  uint32_t count = 0;
  struct slab *slab;
  for (slab = lent->slabs; slab; slab = slab->next) count += slab->owner == owner;
  if (count == SLABS)
    return TT_FAIL(ncclSystemError,
                   "rank %d has lent %d pieces of its device's memory to rank %d already: use less "
                   "channels, or lower NCCL_BUFFSIZE",
                   owner, SLABS, lent->env->rank);
  TT_TRY(TT_CALLOC(&slab, 1));
  *slab = (struct slab){
      .next = lent->slabs, .owner = owner, .number = TT_SLAB_LENT | ((uint32_t)lent->env->rank * SLABS + count)};
  struct tt_import_source source = tt_lent_source(lent->env, owner, slab->number);
  ncclResult_t result = tt_imports_get(lent->env->imports, &source, &slab->import);
  if (result != ncclSuccess) {
    free(slab);
    return result;
  }
  lent->slabs = *out = slab;
  return ncclSuccess;
}

ncclResult_t tt_lent_alloc(struct tt_lent *lent, int owner, size_t bytes, struct tt_lent_piece *piece)
{
  ncclResult_t result = ncclSuccess;
  bytes = (bytes + TT_SLAB_ALIGNMENT - 1) / TT_SLAB_ALIGNMENT * TT_SLAB_ALIGNMENT;
  if (bytes > TT_SLAB_LENT_BYTES)
    return TT_FAIL(ncclInvalidUsage,
                   "a connection through the device of rank %d needs %zu bytes, and %zu are lent at a "
                   "time: lower NCCL_BUFFSIZE",
                   owner, bytes, TT_SLAB_LENT_BYTES);
  pthread_mutex_lock(&lent->lock);
  struct slab *slab = lent->slabs;
  while (slab && (slab->owner != owner || TT_SLAB_LENT_BYTES - slab->used < bytes)) slab = slab->next;
  if (!slab) result = borrow(lent, owner, &slab);
  if (result == ncclSuccess) {
    *piece = (struct tt_lent_piece){.import = slab->import, .number = slab->number, .offset = slab->used};
    piece->ptr = tt_import_at(slab->import, slab->used, bytes);
    slab->used += bytes;
    if (!piece->ptr)
      result =
          TT_FAIL(ncclRemoteError, "rank %d lent less of its device's memory than the %zu bytes that were asked for",
                  owner, TT_SLAB_LENT_BYTES);
  }
  pthread_mutex_unlock(&lent->lock);
  return result;
}
