/* The memory of devices as the network of direct.c moves it: the fake device's, or that of GPUs, by the CUDA driver. */
#ifndef TT_TESTS_FAKES_NET_DIRECT_MEMORY_H
#define TT_TESTS_FAKES_NET_DIRECT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct direct_memory {
  /* Once, before the others. `flushed` is called when a device flushes by itself, if it is one that can tell. */
  bool (*begin)(void (*flushed)(void));
  /* Whether the memory is a device's; the host's has no such thing. */
  bool (*is_device)(const void *ptr, size_t bytes);
  /* Whether a descriptor is a dma-buf of that memory, and of no less. */
  bool (*is_dmabuf)(int fd, const void *ptr, size_t bytes);
  /* Copies between the two; done when it returns. */
  bool (*to_device)(void *to, const void *from, size_t bytes);
  bool (*from_device)(void *to, const void *from, size_t bytes);
};

extern const struct direct_memory direct_memory_fake, direct_memory_cuda;

#endif
