/* ncclMemAlloc and ncclMemFree: memory of the device that the thread has chosen, or, on the host device, whole pages;
 * zeroed. What was given out is known, so that a pointer that is freed twice, or came from elsewhere, is an error
 * instead of a crash. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "api/check.h"
#include "api/create.h"
#include "api/export.h"
#include "base/check.h"

struct block {
  struct block *next;
  void *memory;
  size_t bytes;
  const struct tt_device *device; /* NULL: the host's pages */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;

/* The device whose memory it is to be; NULL: the host's will do. */
static ncclResult_t choose(const struct tt_device **device)
{
  TT_TRY(tt_device_choose(device));
  if (!((*device)->features & TT_DEVICE_MEMORY)) *device = NULL;
  if (*device == NULL || ((*device)->features & TT_DEVICE_USER_MEMORY)) return ncclSuccess;
  return TT_FAIL(
      ncclInvalidUsage,
      "ncclMemAlloc: this library of the %s device allocates no memory for users; allocate with the device's "
      "own calls",
      (*device)->name);
}

static ncclResult_t allocate_pages(struct block *block)
{
  void *memory = mmap(NULL, block->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return TT_FAIL(ncclSystemError, "ncclMemAlloc: no memory for %zu bytes", block->bytes);
  block->memory = memory;
  return ncclSuccess;
}

static ncclResult_t allocate(struct block *block)
{
  int index;
  TT_TRY(choose(&block->device));
  if (block->device == NULL) return allocate_pages(block);
  TT_TRY(block->device->current(&index));
  return block->device->user_alloc(index, block->bytes, &block->memory);
}

TT_EXPORT(ncclResult_t, ncclMemAlloc, (void **ptr, size_t size))
{
  struct block *block;
  TT_TRY(tt_api_check_pointer("ncclMemAlloc", "ptr", ptr));
  *ptr = NULL;
  if (size == 0) return ncclSuccess;
  TT_TRY(TT_CALLOC(&block, 1));
  block->bytes = size;
  ncclResult_t result = allocate(block);
  if (result != ncclSuccess) {
    free(block);
    return result;
  }
  *ptr = block->memory;
  pthread_mutex_lock(&lock);
  block->next = blocks;
  blocks = block;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclMemFree, (void *ptr))
{
  ncclResult_t result = ncclSuccess;
  if (ptr == NULL) return ncclSuccess;
  pthread_mutex_lock(&lock);
  struct block **place = &blocks;
  while (*place != NULL && (*place)->memory != ptr) place = &(*place)->next;
  struct block *block = *place;
  if (block != NULL) *place = block->next;
  pthread_mutex_unlock(&lock);
  if (block == NULL)
    return TT_FAIL(ncclInvalidArgument, "ncclMemFree: %p did not come from ncclMemAlloc, or was freed before", ptr);
  if (block->device != NULL)
    result = block->device->user_free(ptr);
  else
    munmap(block->memory, block->bytes);
  free(block);
  return result;
}
