/* ncclMemAlloc and ncclMemFree. On the host device: memory of whole pages, zeroed. What was given out is known, so that
 * a pointer that is freed twice, or came from elsewhere, is an error instead of a crash. */
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
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;

static ncclResult_t check_device(const char *function)
{
  const struct tt_device *device;
  TT_TRY(tt_device_choose(&device));
  if (device->features & TT_DEVICE_MEMORY)
    return TT_FAIL(ncclInvalidUsage,
                   "%s is not supported on the %s device by this version; allocate with the device's own calls",
                   function, device->name);
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclMemAlloc, (void **ptr, size_t size))
{
  struct block *block;
  TT_TRY(tt_api_check_pointer("ncclMemAlloc", "ptr", ptr));
  *ptr = NULL;
  TT_TRY(check_device("ncclMemAlloc"));
  if (size == 0) return ncclSuccess;
  TT_TRY(TT_CALLOC(&block, 1));
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    free(block);
    return TT_FAIL(ncclSystemError, "ncclMemAlloc: no memory for %zu bytes", size);
  }
  *block = (struct block){.memory = memory, .bytes = size};
  pthread_mutex_lock(&lock);
  block->next = blocks;
  blocks = block;
  pthread_mutex_unlock(&lock);
  *ptr = memory;
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclMemFree, (void *ptr))
{
  if (ptr == NULL) return ncclSuccess;
  pthread_mutex_lock(&lock);
  struct block **place = &blocks;
  while (*place != NULL && (*place)->memory != ptr) place = &(*place)->next;
  struct block *block = *place;
  if (block != NULL) *place = block->next;
  pthread_mutex_unlock(&lock);
  if (block == NULL)
    return TT_FAIL(ncclInvalidArgument, "ncclMemFree: %p did not come from ncclMemAlloc, or was freed before", ptr);
  munmap(block->memory, block->bytes);
  free(block);
  return ncclSuccess;
}
