/* See buffers.h. */
#include "buffers.h"

/* Windows are whole pages of this size. */
#define PAGE ((size_t)NCCL_WIN_REQUIRED_ALIGNMENT)

static void *library_allocate(const struct perf_backend *backend, size_t bytes)
{
  void *memory = NULL;
  if (ncclMemAlloc(&memory, bytes) != ncclSuccess) return NULL;
  if (backend->zero(memory, bytes)) return memory;
  (void)ncclMemFree(memory);
  return NULL;
}

bool perf_buffer_make(struct perf_buffer *buffer, const struct perf_backend *backend, enum perf_memory memory,
                      size_t bytes, size_t shift)
{
  *buffer = (struct perf_buffer){.backend = backend, .memory = memory};
  buffer->bytes = (bytes + shift + 2 * PERF_GUARD + PAGE - 1) / PAGE * PAGE;
  buffer->base =
      memory != PERF_MEMORY_PLAIN ? library_allocate(backend, buffer->bytes) : backend->allocate(buffer->bytes);
  if (!buffer->base) return false;
  buffer->data = buffer->base + PERF_GUARD + shift;
  return true;
}

void perf_buffer_drop(struct perf_buffer *buffer)
{
  if (buffer->base && buffer->memory != PERF_MEMORY_PLAIN) (void)ncclMemFree(buffer->base);
  if (buffer->base && buffer->memory == PERF_MEMORY_PLAIN) buffer->backend->release(buffer->base, buffer->bytes);
  buffer->base = NULL;
}

ncclResult_t perf_buffer_register(struct perf_buffer *buffer, ncclComm_t comm)
{
  if (buffer->memory == PERF_MEMORY_REGISTERED)
    return ncclCommRegister(comm, buffer->base, buffer->bytes, &buffer->registration);
  if (buffer->memory == PERF_MEMORY_WINDOW)
    return ncclCommWindowRegister(comm, buffer->base, buffer->bytes, &buffer->window, NCCL_WIN_COLL_SYMMETRIC);
  return ncclSuccess;
}

ncclResult_t perf_buffer_deregister(struct perf_buffer *buffer, ncclComm_t comm)
{
  ncclResult_t result = ncclSuccess;
  if (buffer->registration) result = ncclCommDeregister(comm, buffer->registration);
  if (buffer->window) result = ncclCommWindowDeregister(comm, buffer->window);
  buffer->registration = NULL;
  buffer->window = NULL;
  return result;
}

static void guard_bytes(unsigned char *out, unsigned salt)
{
  for (unsigned i = 0; i < PERF_GUARD; i++) out[i] = (unsigned char)((i * 167 + salt) ^ 0x5a);
}

bool perf_buffer_guard(const struct perf_buffer *buffer, size_t bytes)
{
  unsigned char before[PERF_GUARD], after[PERF_GUARD];
  guard_bytes(before, 1);
  guard_bytes(after, 2);
  return buffer->backend->copy_in(buffer->data - PERF_GUARD, before, PERF_GUARD) &&
         buffer->backend->copy_in(buffer->data + bytes, after, PERF_GUARD);
}

bool perf_buffer_damage(const struct perf_buffer *buffer, size_t bytes, size_t *damaged)
{
  unsigned char guard[PERF_GUARD], found[PERF_GUARD];
  *damaged = 0;
  for (unsigned side = 0; side < 2; side++) {
    guard_bytes(guard, side + 1);
    if (!buffer->backend->copy_out(found, side ? buffer->data + bytes : buffer->data - PERF_GUARD, PERF_GUARD))
      return false;
    for (size_t i = 0; i < PERF_GUARD; i++) *damaged += guard[i] != found[i];
  }
  return true;
}
