/* See context.h. */
#include "device/context.h"

#include <stdlib.h>
#include "base/check.h"

ncclResult_t tt_context_open(const struct tt_device *device, const struct tt_device_config *config,
                             struct tt_context **out)
{
  *out = NULL;
  struct tt_context *context;
  TT_TRY(TT_CALLOC(&context, 1));
  context->device = device;
  atomic_init(&context->references, 1);
  ncclResult_t result = device->open(config, &context->handle);
  if (result != ncclSuccess) {
    free(context);
    return TT_FAIL(result, "rank %d cannot use %s device %d: %s", config->rank, device->name, config->index,
                   tt_log_thread_error());
  }
  *out = context;
  return ncclSuccess;
}

struct tt_context *tt_context_retain(struct tt_context *context)
{
  atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
  return context;
}

void tt_context_release(struct tt_context *context)
{
  if (!context || atomic_fetch_sub_explicit(&context->references, 1, memory_order_acq_rel) > 1) return;
  context->device->close(context->handle);
  free(context);
}
