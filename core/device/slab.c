/* See slab.h. */
#include "device/slab.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"

struct tt_slab {
  struct tt_slab *next; /* of all slabs of this process; under `lock` */
  struct tt_context *context;
  char name[64];
  uint32_t number;
  unsigned references; /* under `lock` */
  struct tt_device_memory memory;
  size_t used;
  struct tt_device_export exports[3]; /* by TT_EXPORT_NEAR, HERE, FAR; of kind NONE: not made. Under `exporting` */
  pthread_mutex_t exporting;
};

struct tt_slabs {
  struct tt_slabs *next; /* of all ranks of this process; under `lenders` */
  struct tt_context *context;
  char name[64];
  pthread_mutex_t mutex; /* of the following */
  struct tt_slab **slabs;
  uint32_t count;
  struct tt_slab *lent[TT_SLAB_MOST_LENT];
  uint32_t nlent;
  int offered;
  uint64_t offered_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tt_slab *all;
/* Held while one of them makes a slab for another rank, so that it is not freed meanwhile; taken before `mutex`. */
static pthread_mutex_t lenders = PTHREAD_MUTEX_INITIALIZER;
static struct tt_slabs *all_slabs;

ncclResult_t tt_slabs_create(struct tt_context *context, const char *name, struct tt_slabs **out)
{
  *out = NULL;
  struct tt_slabs *slabs;
  TT_TRY(TT_CALLOC(&slabs, 1));
  slabs->context = tt_context_retain(context);
  slabs->offered = -1;
  strncpy(slabs->name, name, sizeof(slabs->name) - 1);
  pthread_mutex_init(&slabs->mutex, NULL);
  pthread_mutex_lock(&lenders);
  slabs->next = all_slabs;
  all_slabs = slabs;
  pthread_mutex_unlock(&lenders);
  *out = slabs;
  return ncclSuccess;
}

void tt_slabs_destroy(struct tt_slabs *slabs)
{
  if (!slabs) return;
  pthread_mutex_lock(&lenders);
  struct tt_slabs **link = &all_slabs;
  while (*link != slabs) link = &(*link)->next;
  *link = slabs->next;
  pthread_mutex_unlock(&lenders);
  for (uint32_t i = 0; i < slabs->count; i++) tt_slab_release(slabs->slabs[i]);
  for (uint32_t i = 0; i < slabs->nlent; i++) tt_slab_release(slabs->lent[i]);
  tt_context_release(slabs->context);
  pthread_mutex_destroy(&slabs->mutex);
  free(slabs->slabs);
  free(slabs);
}

/* A slab with one reference, known to the process. */
static ncclResult_t make_slab(struct tt_slabs *slabs, size_t bytes, uint32_t number, struct tt_slab **out)
{
  struct tt_context *context = slabs->context;
  struct tt_slab *slab;
  TT_TRY(TT_CALLOC(&slab, 1));
  ncclResult_t result = context->device->alloc(context->handle, bytes, &slab->memory);
  if (result != ncclSuccess) {
    free(slab);
    return TT_FAIL(result,
                   "no %zu bytes of memory of device %s for connections: %s; lower NCCL_BUFFSIZE or use less "
                   "channels",
                   bytes, context->device->name, tt_log_thread_error());
  }
  slab->context = tt_context_retain(context);
  memcpy(slab->name, slabs->name, sizeof(slab->name));
  slab->number = number;
  slab->references = 1;
  for (size_t i = 0; i < TT_COUNT(slab->exports); i++) slab->exports[i].fd = -1;
  pthread_mutex_init(&slab->exporting, NULL);
  pthread_mutex_lock(&lock);
  slab->next = all;
  all = slab;
  pthread_mutex_unlock(&lock);
  *out = slab;
  return ncclSuccess;
}

static ncclResult_t new_slab(struct tt_slabs *slabs, size_t bytes, struct tt_slab **out)
{
  struct tt_slab **grown = realloc(slabs->slabs, (slabs->count + 1) * sizeof(struct tt_slab *));
  *out = NULL;
  if (!grown) return TT_FAIL(ncclSystemError, "no memory for %u pieces of device memory", slabs->count + 1);
  slabs->slabs = grown;
  if (bytes < TT_SLAB_LARGE_PIECE) bytes = TT_MAX(4 * bytes, TT_SLAB_BYTES);
  TT_TRY(make_slab(slabs, bytes, slabs->count + 1, out));
  slabs->slabs[slabs->count++] = *out;
  return ncclSuccess;
}

ncclResult_t tt_slabs_alloc(struct tt_slabs *slabs, size_t bytes, struct tt_slab_piece *piece)
{
  memset(piece, 0, sizeof(*piece));
  bytes = (bytes + TT_SLAB_ALIGNMENT - 1) / TT_SLAB_ALIGNMENT * TT_SLAB_ALIGNMENT;
  pthread_mutex_lock(&slabs->mutex);
  struct tt_slab *slab = NULL;
  ncclResult_t result = ncclSuccess;
  for (uint32_t i = 0; i < slabs->count && !slab; i++)
    if (slabs->slabs[i]->memory.bytes - slabs->slabs[i]->used >= bytes) slab = slabs->slabs[i];
  if (!slab) result = new_slab(slabs, bytes, &slab);
  if (result == ncclSuccess) {
    *piece = (struct tt_slab_piece){
        .slab = slab, .offset = slab->used, .bytes = bytes, .ptr = (unsigned char *)slab->memory.ptr + slab->used};
    slab->used += bytes;
  }
  pthread_mutex_unlock(&slabs->mutex);
  return result;
}

uint32_t tt_slab_number(const struct tt_slab *slab)
{
  return slab->number;
}

static bool is_kind_for(uint32_t kind, int whom)
{
  if (whom == TT_EXPORT_FAR) return kind == TT_EXPORT_FABRIC;
  return whom == TT_EXPORT_HERE ? kind == TT_EXPORT_LOCAL : kind == TT_EXPORT_FD || kind == TT_EXPORT_HANDLE;
}

ncclResult_t tt_slab_export(struct tt_slab *slab, int whom, struct tt_device_export *out)
{
  static const char *const names[] = {"another process", "the same process", "another host"};
  const struct tt_device *device = slab->context->device;
  struct tt_device_export *kept = &slab->exports[whom];
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&slab->exporting);
  if (kept->kind == TT_EXPORT_NONE) {
    result = device->export_memory(slab->context->handle, &slab->memory, whom, kept);
    if (result == ncclSuccess && !is_kind_for(kept->kind, whom))
      result = TT_FAIL(ncclInternalError, "device %s exports memory to %s as kind %u, which is none for that",
                       device->name, names[whom], kept->kind);
    if (result != ncclSuccess) *kept = (struct tt_device_export){.fd = -1};
  }
  *out = *kept;
  pthread_mutex_unlock(&slab->exporting);
  return result;
}

/* NULL: it cannot be had, and why was said. */
static struct tt_slab *lend(struct tt_slabs *slabs, uint32_t number)
{
  struct tt_slab *slab = NULL;
  pthread_mutex_lock(&slabs->mutex);
  for (uint32_t i = 0; i < slabs->nlent && !slab; i++)
    if (slabs->lent[i]->number == number) slab = slabs->lent[i];
  if (!slab && slabs->nlent == TT_SLAB_MOST_LENT)
    TT_INFO(TT_INIT | TT_P2P,
            "%d pieces of this rank's device memory, of %zu bytes each, are lent already: no more are",
            TT_SLAB_MOST_LENT, TT_SLAB_LENT_BYTES);
  else if (!slab && make_slab(slabs, TT_SLAB_LENT_BYTES, number, &slab) == ncclSuccess)
    slabs->lent[slabs->nlent++] = slab;
  pthread_mutex_unlock(&slabs->mutex);
  return slab;
}

void tt_slabs_offer(struct tt_slabs *slabs, int fd, uint64_t bytes)
{
  pthread_mutex_lock(&slabs->mutex);
  slabs->offered = fd;
  slabs->offered_bytes = bytes;
  pthread_mutex_unlock(&slabs->mutex);
}

static int offered(struct tt_slabs *slabs, uint64_t *bytes)
{
  pthread_mutex_lock(&slabs->mutex);
  int fd = slabs->offered < 0 ? -1 : fcntl(slabs->offered, F_DUPFD_CLOEXEC, 0);
  if (fd >= 0) *bytes = slabs->offered_bytes;
  pthread_mutex_unlock(&slabs->mutex);
  return fd;
}

int tt_slabs_descriptor(struct tt_slabs *slabs, uint64_t number, uint64_t *bytes)
{
  int fd = -1;
  struct tt_slab *slab = NULL;
  struct tt_device_export shown;
  *bytes = 0;
  if (number == TT_SLAB_OFFERED) return offered(slabs, bytes);
  if (number <= UINT32_MAX && (number & TT_SLAB_LENT)) {
    slab = lend(slabs, (uint32_t)number);
    if (slab && tt_slab_export(slab, TT_EXPORT_NEAR, &shown) != ncclSuccess) return -1;
  } else {
    pthread_mutex_lock(&slabs->mutex);
    if (number >= 1 && number <= slabs->count) slab = slabs->slabs[number - 1];
    pthread_mutex_unlock(&slabs->mutex);
  }
  if (!slab) return -1;
  pthread_mutex_lock(&slab->exporting);
  if (slab->exports[0].kind == TT_EXPORT_FD) {
    fd = fcntl(slab->exports[0].fd, F_DUPFD_CLOEXEC, 0);
    *bytes = slab->exports[0].bytes;
  }
  pthread_mutex_unlock(&slab->exporting);
  return fd;
}

static struct tt_slab *find(const char *name, uint32_t number)
{
  pthread_mutex_lock(&lock);
  struct tt_slab *slab = all;
  while (slab && (slab->number != number || strcmp(slab->name, name) != 0)) slab = slab->next;
  if (slab) slab->references++;
  pthread_mutex_unlock(&lock);
  return slab;
}

struct tt_slab *tt_slab_find(const char *name, uint32_t number)
{
  struct tt_slab *slab = find(name, number);
  if (slab || !(number & TT_SLAB_LENT)) return slab;
  pthread_mutex_lock(&lenders);
  struct tt_slabs *slabs = all_slabs;
  while (slabs && strcmp(slabs->name, name) != 0) slabs = slabs->next;
  if (slabs && lend(slabs, number)) slab = find(name, number);
  pthread_mutex_unlock(&lenders);
  return slab;
}

void tt_slab_release(struct tt_slab *slab)
{
  if (!slab) return;
  pthread_mutex_lock(&lock);
  bool last = --slab->references == 0;
  if (last) {
    struct tt_slab **link = &all;
    while (*link != slab) link = &(*link)->next;
    *link = slab->next;
  }
  pthread_mutex_unlock(&lock);
  if (!last) return;
  for (size_t i = 0; i < TT_COUNT(slab->exports); i++)
    if (slab->exports[i].fd >= 0) close(slab->exports[i].fd);
  slab->context->device->release(slab->context->handle, &slab->memory);
  tt_context_release(slab->context);
  pthread_mutex_destroy(&slab->exporting);
  free(slab);
}
