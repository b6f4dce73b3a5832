/* Plain buffers of ranks of this process, used by each other where they lie. Nothing is imported, and so nothing keeps
 * memory that its user frees: devices are given the right to use an allocation, once each, as long as it lives. What
 * was given is remembered by the allocation's id. */
#include "base/check.h"
#include "transport/user_internal.h"

/* Of one buffer; more are not looked through, but copied. PyTorch's expandable segments have one each 2 or 20 MiB. */
#define MOST_ALLOCATIONS 1024

static bool reaches(struct tt_user_buffers *buffers, const void *ptr, uint64_t id)
{
  struct tt_user_reached *known = &buffers->reached[id % TT_USER_REACHED];
  if (known->id == id) return known->can;
  struct tt_device_buffer buffer = {.size = sizeof(buffer)};
  tt_log_hush(true);
  ncclResult_t result = buffers->env->device->reach_buffer(buffers->context->handle, ptr, &buffer);
  tt_log_hush(false);
  *known = (struct tt_user_reached){.id = id, .can = result == ncclSuccess && buffer.id == id};
  if (!known->can)
    TT_INFO(TT_REG, "rank %d does not use memory at %p in place: %s", buffers->env->rank, ptr, tt_log_thread_error());
  return known->can;
}

bool tt_user_plain_usable(struct tt_user_buffers *const *ranks, int nranks, int owner, const void *ptr, size_t bytes)
{
  const unsigned char *at = ptr, *end = at + bytes;
  for (int n = 0; at < end && n < MOST_ALLOCATIONS; n++) {
    struct tt_device_buffer buffer;
    if (tt_user_look(ranks[owner], at, &buffer) != ncclSuccess) return false;
    if (!(buffer.exports & 1u << TT_EXPORT_LOCAL) || buffer.bytes == 0) return false;
    for (int r = 0; r < nranks; r++)
      if (r != owner && !reaches(ranks[r], at, buffer.id)) return false;
    at = (const unsigned char *)buffer.base + buffer.bytes;
  }
  return at >= end;
}

bool tt_user_plain_possible(const struct tt_user_buffers *buffers)
{
  return buffers != NULL && (buffers->env->device->features & TT_DEVICE_REACH) != 0;
}
