/* Copy engines: a copy is only noted, and done when somebody asks what is done, so that who counts on it earlier is
 * found out. Each question does one. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct fake_pending {
  struct fake_pending *next;
  void *to;
  const void *from;
  size_t bytes;
};

ncclResult_t fake_copy(struct tt_device_context *context, void *to, const void *from, size_t bytes, uint64_t *ticket)
{
  struct fake_pending *pending;
  TT_TRY(TT_CALLOC(&pending, 1));
  *pending = (struct fake_pending){.to = to, .from = from, .bytes = bytes};
  pthread_mutex_lock(&context->lock);
  if (context->pending == NULL)
    context->pending = pending;
  else
    context->pending_end->next = pending;
  context->pending_end = pending;
  *ticket = ++context->copies_begun;
  pthread_mutex_unlock(&context->lock);
  return ncclSuccess;
}

ncclResult_t fake_copied(struct tt_device_context *context, uint64_t *ticket)
{
  pthread_mutex_lock(&context->lock);
  struct fake_pending *first = context->pending;
  if (first != NULL) {
    memcpy(first->to, first->from, first->bytes);
    context->pending = first->next;
    context->copies_done++;
    free(first);
  }
  *ticket = context->copies_done;
  pthread_mutex_unlock(&context->lock);
  return ncclSuccess;
}

void fake_copies_end(struct tt_device_context *context)
{
  for (struct fake_pending *first = context->pending, *next; first != NULL; first = next) {
    next = first->next;
    free(first);
  }
  context->pending = NULL;
}
