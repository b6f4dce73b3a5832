/* A rank's context on its device, counted: memory that it allocated may be in use by ranks of this process after the
 * rank has left, and a context takes its memory with it. Any thread. */
#ifndef TT_DEVICE_CONTEXT_H
#define TT_DEVICE_CONTEXT_H

#include "nccl.h"
#include "tutti/device.h"

struct tt_context {
  const struct tt_device *device;
  struct tt_device_context *handle; /* what the device's functions take */
  TT_ATOMIC(unsigned) references;
};

/* Opens a context, for a device that has them. */
ncclResult_t tt_context_open(const struct tt_device *device, const struct tt_device_config *config,
                             struct tt_context **out);
struct tt_context *tt_context_retain(struct tt_context *context);
/* The last one closes it. NULL is allowed. */
void tt_context_release(struct tt_context *context);

#endif
