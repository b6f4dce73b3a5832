/* A rank's two buffers in a device's memory, with guard bytes around their data. */
#ifndef PERF_BUFFERS_H
#define PERF_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include "backend.h"

#define PERF_GUARD 256 /* bytes before and after the data in which a stray write is found */

struct perf_buffer {
  const struct perf_backend *backend;
  char *base, *data; /* data: base + guard + misalignment */
  size_t bytes;      /* of the allocation */
  bool library;      /* from ncclMemAlloc */
};

/* Room for `bytes` of data that starts `shift` bytes after an aligned address, on the calling thread's device. Memory
 * comes from the backend, or if `library` from ncclMemAlloc. */
bool perf_buffer_make(struct perf_buffer *buffer, const struct perf_backend *backend, bool library, size_t bytes,
                      size_t shift);
void perf_buffer_drop(struct perf_buffer *buffer);

/* Writes the guards around the first `bytes` of data; counts the guard bytes that have changed since. False: the memory
 * cannot be reached, and the backend's `error` says why. */
bool perf_buffer_guard(const struct perf_buffer *buffer, size_t bytes);
bool perf_buffer_damage(const struct perf_buffer *buffer, size_t bytes, size_t *damaged);

#endif
