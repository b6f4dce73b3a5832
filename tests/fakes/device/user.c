/* Memory of users: as other memory of the device, and known to it by an id. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>

struct user_memory {
  struct user_memory *next;
  struct tt_device_memory memory;
  size_t bytes; /* as they were asked for */
  uint64_t id;
  int device;
  uint32_t exports;
  uint32_t reached; /* by devices, a bit each */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct user_memory *all;
static uint64_t last_id;

static ncclResult_t allocate(int device, size_t bytes, uint32_t exports, void *at, void **ptr)
{
  struct user_memory *user;
  *ptr = NULL;
  if (device < 0 || device >= FAKE_DEVICES) return TT_FAIL(ncclInvalidArgument, "device %d does not exist", device);
  TT_TRY(TT_CALLOC(&user, 1));
  ncclResult_t result = fake_alloc_user(device, bytes, at, &user->memory);
  if (result != ncclSuccess) {
    free(user);
    return result;
  }
  fake_totals.users++;
  user->bytes = bytes;
  user->device = device;
  user->exports = exports;
  pthread_mutex_lock(&lock);
  user->id = ++last_id;
  user->next = all;
  all = user;
  pthread_mutex_unlock(&lock);
  *ptr = user->memory.ptr;
  return ncclSuccess;
}

ncclResult_t fake_user_alloc_on(int index, size_t bytes, void **ptr)
{
  return allocate(index, bytes, 1u << TT_EXPORT_LOCAL | 1u << TT_EXPORT_FD, NULL, ptr);
}

ncclResult_t fake_user_free_of(void *ptr)
{
  pthread_mutex_lock(&lock);
  struct user_memory **place = &all;
  while (*place != NULL && (*place)->memory.ptr != ptr) place = &(*place)->next;
  struct user_memory *user = *place;
  if (user != NULL) *place = user->next;
  pthread_mutex_unlock(&lock);
  if (user == NULL) return TT_FAIL(ncclInvalidArgument, "%p is no memory of a fake device", ptr);
  fake_release(NULL, &user->memory);
  free(user);
  fake_totals.users--;
  return ncclSuccess;
}

/* Locked. */
static struct user_memory *find(const void *ptr)
{
  struct user_memory *user = all;
  while (user != NULL && ((uintptr_t)ptr < (uintptr_t)user->memory.ptr ||
                          (uintptr_t)ptr - (uintptr_t)user->memory.ptr >= user->memory.bytes))
    user = user->next;
  return user;
}

ncclResult_t fake_find_buffer(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer)
{
  (void)context;
  pthread_mutex_lock(&lock);
  const struct user_memory *user = find(ptr);
  if (user != NULL)
    *buffer = (struct tt_device_buffer){.size = buffer->size,
                                        .base = user->memory.ptr,
                                        .bytes = user->memory.bytes,
                                        .id = user->id,
                                        .device = user->device,
                                        .exports = user->exports};
  pthread_mutex_unlock(&lock);
  return user != NULL ? ncclSuccess : TT_FAIL(ncclInvalidArgument, "%p is no memory of a fake device", ptr);
}

/* Allocations may lie side by side, and end where the user wanted them to. */
ncclResult_t fake_check_buffer(struct tt_device_context *context, struct tt_device_check *check)
{
  const char *at = check->ptr, *end = at + check->bytes;
  check->why[0] = 0;
  pthread_mutex_lock(&lock);
  while (at < end && check->why[0] == 0) {
    const struct user_memory *user = find(at);
    const char *ends = user != NULL ? (const char *)user->memory.ptr + user->bytes : NULL;
    if (user == NULL || at >= ends)
      snprintf(check->why, sizeof check->why, "%p is no memory of a fake device; use ncclMemAlloc", (const void *)at);
    else if (user->device != context->device)
      snprintf(check->why, sizeof check->why, "%p is memory of device %d, not %d; use that one's", (const void *)at,
               user->device, context->device);
    else
      at = ends;
  }
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

ncclResult_t fake_reach_buffer(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer)
{
  TT_TRY(fake_find_buffer(context, ptr, buffer));
  if (!(buffer->exports & 1u << TT_EXPORT_LOCAL))
    return TT_FAIL(ncclInvalidArgument, "%p can be used by no other fake device", ptr);
  pthread_mutex_lock(&lock);
  struct user_memory *user = find(ptr);
  if (user != NULL) user->reached |= 1u << context->device;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

bool fake_may_use(const struct tt_device_context *context, const void *ptr)
{
  pthread_mutex_lock(&lock);
  const struct user_memory *user = find(ptr);
  bool may = user == NULL || user->device == context->device || (user->reached & 1u << context->device) != 0;
  pthread_mutex_unlock(&lock);
  return may;
}

ncclResult_t fake_export_buffer(struct tt_device_context *context, const void *ptr, int local,
                                struct tt_device_export *out)
{
  ncclResult_t result = ncclInvalidArgument;
  pthread_mutex_lock(&lock);
  const struct user_memory *user = find(ptr);
  if (user != NULL) result = fake_export(context, &user->memory, local, out);
  pthread_mutex_unlock(&lock);
  return user != NULL ? result : TT_FAIL(ncclInvalidArgument, "%p is no memory of a fake device", ptr);
}

__attribute__((visibility("default"))) void *fake_user_alloc(int device, size_t bytes, bool exported, void *at)
{
  uint32_t exports = exported ? 1u << TT_EXPORT_LOCAL | 1u << TT_EXPORT_FD : 0;
  void *ptr;
  return allocate(device, bytes, exports, at, &ptr) == ncclSuccess ? ptr : NULL;
}

__attribute__((visibility("default"))) bool fake_user_free(void *ptr)
{
  return fake_user_free_of(ptr) == ncclSuccess;
}
