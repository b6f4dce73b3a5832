/* What works may touch: the device's memory, and memory of the host that their context has mapped. All of this process
 * is on one list, so that an end of a connection that lies elsewhere, or not any more, is found when it is opened. */
#include "internal.h"

#include <stdlib.h>
#include <unistd.h>

struct range {
  struct range *next;
  const struct tt_device_context *context; /* NULL: of all */
  const unsigned char *ptr;
  size_t bytes;
  int refs;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;

static struct range **find(const struct tt_device_context *context, const void *ptr, size_t bytes)
{
  struct range **link = &ranges;
  while (*link != NULL && ((*link)->context != context || (*link)->ptr != ptr || (*link)->bytes != bytes))
    link = &(*link)->next;
  return link;
}

ncclResult_t fake_range_add(const struct tt_device_context *context, const void *ptr, size_t bytes)
{
  struct range *added;
  TT_TRY(TT_CALLOC(&added, 1));
  *added = (struct range){.context = context, .ptr = ptr, .bytes = bytes};
  pthread_mutex_lock(&lock);
  struct range **link = find(context, ptr, bytes);
  if (*link == NULL)
    *link = added;
  else
    free(added);
  (*link)->refs++;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

bool fake_range_remove(const struct tt_device_context *context, const void *ptr, size_t bytes)
{
  pthread_mutex_lock(&lock);
  struct range **link = find(context, ptr, bytes), *range = *link;
  if (range != NULL && --range->refs == 0) {
    *link = range->next;
    free(range);
  }
  pthread_mutex_unlock(&lock);
  return range != NULL;
}

bool fake_range_covers(const struct tt_device_context *context, const void *ptr, size_t bytes)
{
  const unsigned char *from = ptr;
  bool found = false;
  pthread_mutex_lock(&lock);
  for (const struct range *range = ranges; range != NULL && !found; range = range->next)
    found = (range->context == NULL || range->context == context) && from >= range->ptr && bytes <= range->bytes &&
            (size_t)(from - range->ptr) <= range->bytes - bytes;
  pthread_mutex_unlock(&lock);
  return found;
}

ncclResult_t fake_map_host(struct tt_device_context *context, void *ptr, size_t bytes, void **at)
{
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  *at = NULL;
  if (bytes == 0 || bytes % page != 0 || (uintptr_t)ptr % page != 0)
    return TT_FAIL(ncclInternalError, "fake device %d maps whole pages of the host, not %zu bytes at %p",
                   context->device, bytes, ptr);
  TT_TRY(fake_range_add(context, ptr, bytes));
  fake_totals.hosts++;
  *at = ptr;
  return ncclSuccess;
}

void fake_unmap_host(struct tt_device_context *context, void *ptr, size_t bytes)
{
  if (fake_range_remove(context, ptr, bytes)) fake_totals.hosts--;
}
