/* A rank's two buffers in a device's memory, with guard bytes around their data. */
#ifndef PERF_BUFFERS_H
#define PERF_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include "backend.h"
#include "options.h"

#define PERF_GUARD 256 /* bytes before and after the data in which a stray write is found */

struct perf_buffer {
  const struct perf_backend *backend;
  char *base, *data; /* data: base + guard + misalignment */
  size_t bytes;      /* of the allocation */
  enum perf_memory memory;
  void *registration;  /* of PERF_MEMORY_REGISTERED */
  ncclWindow_t window; /* of PERF_MEMORY_WINDOW */
};

/* Room for `bytes` of data that starts `shift` bytes after an aligned address, on the calling thread's device.
 */
bool perf_buffer_make(struct perf_buffer *buffer, const struct perf_backend *backend, enum perf_memory memory,
                      size_t bytes, size_t shift);
/* What `memory` asks the communicator to be told of it; collective for windows, so all ranks call, and a thread's calls
 * are in one group. The buffer must outlive the group. */
ncclResult_t perf_buffer_register(struct perf_buffer *buffer, ncclComm_t comm);
ncclResult_t perf_buffer_deregister(struct perf_buffer *buffer, ncclComm_t comm);
void perf_buffer_drop(struct perf_buffer *buffer);

/* Writes the guards around the first `bytes` of data; counts the guard bytes that have changed since. False: the memory
 * cannot be reached, and the backend's `error` says why. */
bool perf_buffer_guard(const struct perf_buffer *buffer, size_t bytes);
bool perf_buffer_damage(const struct perf_buffer *buffer, size_t bytes, size_t *damaged);

#endif
