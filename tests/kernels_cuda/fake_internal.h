/* What the files of the fake CUDA share. */
#ifndef TEST_KERNELS_CUDA_FAKE_INTERNAL_H
#define TEST_KERNELS_CUDA_FAKE_INTERNAL_H

#include <cuda.h>
#include <stdint.h>
#include "fake_cuda.h"
#include "kernels/cuda/context.h"

#define DEVICES 4
#define GRANULARITY ((size_t)2 << 20)

/* Whether this is the call that fails. */
bool fake_fails(void);
#define MAY_FAIL                                                                                                       \
  if (fake_fails()) return cudaErrorUnknown
#define MAY_FAIL_DRIVER                                                                                                \
  if (fake_fails()) return CUDA_ERROR_UNKNOWN

/* A forbidden call during a capture would be one outside of the relaxed mode: all but those that begin and end it. */
#define RELAXED_ONLY                                                                                                   \
  if (fake_mode != cudaStreamCaptureModeRelaxed) abort()

/* What cudaMalloc has given out, and other memory that is not of cuMem. */
struct fake_allocation {
  char *ptr;
  size_t bytes;
  uint64_t id;
  CUmemorytype type;
  bool pool, managed;
  int device;
};
/* The one around a pointer, or NULL. */
struct fake_allocation *fake_allocation_at(const void *ptr);
/* Of the thread's context. */
int fake_thread_device(void);
/* Of allocations, of whatever kind. */
uint64_t fake_next_id(void);

#endif
