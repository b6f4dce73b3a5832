/* A rank's two buffers, and the operations on memory and streams that depend on the device. The rest of tutti-perf
 * touches device memory through `struct perf_memory` alone, so that another device is one more such table. */
#ifndef PERF_BUFFERS_H
#define PERF_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"

struct perf_memory {
  const char *name;
  /* Page-aligned memory of a device, touched and zero. NULL when there is none. */
  void *(*allocate)(int device, size_t bytes);
  void (*release)(void *memory, size_t bytes);
  /* To and from device memory; complete on return. */
  void (*copy_in)(void *device, const void *host, size_t bytes);
  void (*copy_out)(void *host, const void *device, size_t bytes);
  /* The stream to use, and the wait for all that was put on it. */
  cudaStream_t stream;
  ncclResult_t (*synchronize)(cudaStream_t stream);
};

extern const struct perf_memory perf_memory_host;

#define PERF_GUARD 256 /* bytes before and after the data in which a stray write is found */

struct perf_buffer {
  const struct perf_memory *memory;
  char *base, *data; /* data: base + guard + misalignment */
  size_t bytes;      /* of the allocation */
};

/* Room for `bytes` of data that starts `shift` bytes after an aligned address. */
bool perf_buffer_make(struct perf_buffer *buffer, const struct perf_memory *memory, int device, size_t bytes,
                      size_t shift);
void perf_buffer_drop(struct perf_buffer *buffer);

/* Writes the guards around the first `bytes` of data, and counts the guard bytes that have changed since. */
void perf_buffer_guard(const struct perf_buffer *buffer, size_t bytes);
size_t perf_buffer_damage(const struct perf_buffer *buffer, size_t bytes);

#endif
