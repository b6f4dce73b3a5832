/* See pinned.h. Ranks of one process use the very same slab, at one address: the device's backend counts who has it
 * mapped, and the arena it lies in stays for as long as a rank that has found it. */
#include "transport/pinned.h"

#include <pthread.h>
#include <stdlib.h>
#include "base/check.h"

struct slab {
  struct slab *next;
  unsigned char *ptr, *at; /* for the host, for the device */
  uint64_t offset;         /* in the shared memory */
  size_t bytes, used;
};

struct tt_pinned_import {
  struct tt_pinned_import *next;
  int rank;
  uint64_t offset;
  size_t bytes;
  void *ptr, *at;
  unsigned references;
};

struct tt_pinned {
  struct tt_context *context;
  struct tt_peer_memory *memory;
  pthread_mutex_t lock; /* of both lists and what is on them */
  struct slab *slabs;
  struct tt_pinned_import *imports;
};

ncclResult_t tt_pinned_create(struct tt_context *context, struct tt_peer_memory *memory, struct tt_pinned **out)
{
  *out = NULL;
  struct tt_pinned *pinned;
  TT_TRY(TT_CALLOC(&pinned, 1));
  pinned->context = tt_context_retain(context);
  pinned->memory = memory;
  pthread_mutex_init(&pinned->lock, NULL);
  *out = pinned;
  return ncclSuccess;
}

static ncclResult_t map(const struct tt_pinned *pinned, void *ptr, size_t bytes, void **at)
{
  const struct tt_context *context = pinned->context;
  ncclResult_t result = context->device->map_host(context->handle, ptr, bytes, at);
  if (result == ncclSuccess) return ncclSuccess;
  return TT_FAIL(result,
                 "%zu bytes of shared memory cannot be mapped for device %s: %s; without NCCL_P2P_DISABLE or "
                 "NCCL_P2P_LEVEL devices may need none, and with NCCL_SHM_DISABLE=1 none is used",
                 bytes, context->device->name, tt_log_thread_error());
}

static void unmap(const struct tt_pinned *pinned, void *ptr, size_t bytes)
{
  pinned->context->device->unmap_host(pinned->context->handle, ptr, bytes);
}

/* ---- This rank's ---- */

static ncclResult_t make_slab(struct tt_pinned *pinned, size_t bytes, struct slab **out)
{
  struct tt_shm *shm = tt_peer_memory_shm(pinned->memory);
  struct slab *slab;
  void *ptr = NULL, *at = NULL;
  *out = NULL;
  TT_TRY(TT_CALLOC(&slab, 1));
  slab->bytes = bytes;
  ncclResult_t result;
  TT_TRY_GOTO(tt_shm_alloc(shm, bytes, &ptr, &slab->offset), result, out);
  TT_TRY_GOTO(map(pinned, ptr, bytes, &at), result, out);
  slab->ptr = ptr;
  slab->at = at;
  slab->next = pinned->slabs;
  pinned->slabs = *out = slab;
  return ncclSuccess;
out:
  if (ptr) tt_shm_free(shm, ptr, bytes);
  free(slab);
  return result;
}

/* Whole pages, which is what can be mapped. */
static size_t slab_bytes(size_t piece)
{
  const size_t page = 4096;
  size_t bytes = piece < TT_PINNED_LARGE_PIECE ? TT_MAX(4 * piece, TT_PINNED_SLAB_BYTES) : piece;
  return (bytes + page - 1) / page * page;
}

ncclResult_t tt_pinned_alloc(struct tt_pinned *pinned, size_t bytes, struct tt_pinned_place *place, unsigned char **at)
{
  ncclResult_t result = ncclSuccess;
  bytes = (bytes + TT_PINNED_ALIGNMENT - 1) / TT_PINNED_ALIGNMENT * TT_PINNED_ALIGNMENT;
  pthread_mutex_lock(&pinned->lock);
  struct slab *slab = pinned->slabs;
  while (slab && slab->bytes - slab->used < bytes) slab = slab->next;
  if (!slab) result = make_slab(pinned, slab_bytes(bytes), &slab);
  if (result == ncclSuccess) {
    *place = (struct tt_pinned_place){.slab = slab->offset, .slab_bytes = slab->bytes, .offset = slab->used};
    *at = slab->at + slab->used;
    slab->used += bytes;
  }
  pthread_mutex_unlock(&pinned->lock);
  return result;
}

/* ---- Other ranks' ---- */

static ncclResult_t import(struct tt_pinned *pinned, int rank, const struct tt_pinned_place *place,
                           struct tt_pinned_import **out)
{
  struct tt_pinned_import *made;
  TT_TRY(TT_CALLOC(&made, 1));
  made->rank = rank;
  made->offset = place->slab;
  made->bytes = (size_t)place->slab_bytes;
  ncclResult_t result = tt_peer_memory_map(pinned->memory, rank, made->offset, made->bytes, &made->ptr);
  if (result == ncclSuccess) result = map(pinned, made->ptr, made->bytes, &made->at);
  if (result != ncclSuccess) {
    tt_peer_memory_unmap(pinned->memory, rank, made->ptr, made->bytes);
    free(made);
    return result;
  }
  made->next = pinned->imports;
  pinned->imports = *out = made;
  return ncclSuccess;
}

static void end(struct tt_pinned *pinned, struct tt_pinned_import *import)
{
  unmap(pinned, import->ptr, import->bytes);
  tt_peer_memory_unmap(pinned->memory, import->rank, import->ptr, import->bytes);
  free(import);
}

/* What another rank says is not taken for granted; whether the slab lies in its memory is seen when it is mapped. */
static bool is_sound(const struct tt_pinned_place *place, size_t bytes)
{
  const uint64_t page = 4096;
  return place->slab % page == 0 && place->slab_bytes % page == 0 && place->offset % TT_PINNED_ALIGNMENT == 0 &&
         place->offset <= place->slab_bytes && bytes <= place->slab_bytes - place->offset;
}

ncclResult_t tt_pinned_get(struct tt_pinned *pinned, int rank, const struct tt_pinned_place *place, size_t bytes,
                           struct tt_pinned_import **out, unsigned char **at)
{
  ncclResult_t result = ncclSuccess;
  *out = NULL;
  if (!is_sound(place, bytes))
    return TT_FAIL(ncclRemoteError, "rank %d named %zu bytes at %llu of %llu bytes at %llu, which are no piece of them",
                   rank, bytes, (unsigned long long)place->offset, (unsigned long long)place->slab_bytes,
                   (unsigned long long)place->slab);
  pthread_mutex_lock(&pinned->lock);
  struct tt_pinned_import *found = pinned->imports;
  while (found && (found->rank != rank || found->offset != place->slab || found->bytes != place->slab_bytes))
    found = found->next;
  if (!found) result = import(pinned, rank, place, &found);
  if (result == ncclSuccess) {
    found->references++;
    *out = found;
    *at = (unsigned char *)found->at + place->offset;
  }
  pthread_mutex_unlock(&pinned->lock);
  return result;
}

void tt_pinned_put(struct tt_pinned *pinned, struct tt_pinned_import *import)
{
  if (!import) return;
  pthread_mutex_lock(&pinned->lock);
  if (--import->references == 0) {
    struct tt_pinned_import **link = &pinned->imports;
    while (*link != import) link = &(*link)->next;
    *link = import->next;
    end(pinned, import);
  }
  pthread_mutex_unlock(&pinned->lock);
}

void tt_pinned_destroy(struct tt_pinned *pinned)
{
  if (!pinned) return;
  while (pinned->imports) {
    struct tt_pinned_import *next = pinned->imports->next;
    end(pinned, pinned->imports);
    pinned->imports = next;
  }
  while (pinned->slabs) {
    struct slab *slab = pinned->slabs;
    pinned->slabs = slab->next;
    unmap(pinned, slab->ptr, slab->bytes);
    tt_shm_free(tt_peer_memory_shm(pinned->memory), slab->ptr, slab->bytes);
    free(slab);
  }
  tt_context_release(pinned->context);
  pthread_mutex_destroy(&pinned->lock);
  free(pinned);
}
