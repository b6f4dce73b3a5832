/* See buffers.h. */
#include "buffers.h"

#include <string.h>
#include <sys/mman.h>

static void *host_allocate(int device, size_t bytes)
{
  (void)device;
  /* MAP_POPULATE: page faults must not be part of the first measurement. */
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static void host_release(void *memory, size_t bytes)
{
  munmap(memory, bytes);
}

static void host_copy_in(void *device, const void *host, size_t bytes)
{
  memcpy(device, host, bytes);
}

static void host_copy_out(void *host, const void *device, size_t bytes)
{
  memcpy(host, device, bytes);
}

/* With stream NULL the host device's operations are complete when the call returns. */
static ncclResult_t host_synchronize(cudaStream_t stream)
{
  return stream == NULL ? ncclSuccess : ncclInvalidArgument;
}

const struct perf_memory perf_memory_host = {"host",        host_allocate, host_release,    host_copy_in,
                                             host_copy_out, NULL,          host_synchronize};

bool perf_buffer_make(struct perf_buffer *buffer, const struct perf_memory *memory, int device, size_t bytes,
                      size_t shift)
{
  *buffer = (struct perf_buffer){.memory = memory, .bytes = bytes + shift + 2 * PERF_GUARD};
  buffer->base = memory->allocate(device, buffer->bytes);
  if (!buffer->base) return false;
  buffer->data = buffer->base + PERF_GUARD + shift;
  return true;
}

void perf_buffer_drop(struct perf_buffer *buffer)
{
  if (buffer->base) buffer->memory->release(buffer->base, buffer->bytes);
  buffer->base = NULL;
}

static void guard_bytes(unsigned char *out, unsigned salt)
{
  for (unsigned i = 0; i < PERF_GUARD; i++) out[i] = (unsigned char)((i * 167 + salt) ^ 0x5a);
}

void perf_buffer_guard(const struct perf_buffer *buffer, size_t bytes)
{
  unsigned char guard[PERF_GUARD];
  guard_bytes(guard, 1);
  buffer->memory->copy_in(buffer->data - PERF_GUARD, guard, PERF_GUARD);
  guard_bytes(guard, 2);
  buffer->memory->copy_in(buffer->data + bytes, guard, PERF_GUARD);
}

size_t perf_buffer_damage(const struct perf_buffer *buffer, size_t bytes)
{
  unsigned char guard[PERF_GUARD], found[PERF_GUARD];
  size_t damaged = 0;
  for (unsigned side = 0; side < 2; side++) {
    guard_bytes(guard, side + 1);
    buffer->memory->copy_out(found, side ? buffer->data + bytes : buffer->data - PERF_GUARD, PERF_GUARD);
    for (size_t i = 0; i < PERF_GUARD; i++) damaged += guard[i] != found[i];
  }
  return damaged;
}
