/* Addresses for handles of cuMem (memory.c). Between enter and leave. */
#ifndef TT_KERNELS_CUDA_MAPPING_H
#define TT_KERNELS_CUDA_MAPPING_H

#include <cuda.h>
#include "kernels/cuda/context.h"

/* Gives a handle an address in the context, for reading and writing. `bytes` is a multiple of `granularity`. */
ncclResult_t tt_cuda_map_handle(const struct tt_device_context *context, CUmemGenericAllocationHandle handle,
                                size_t bytes, size_t granularity, void **ptr);
void tt_cuda_unmap_handle(void *ptr, size_t bytes);
/* The memory is left as it is if its zeroing does not end. */
ncclResult_t tt_cuda_zero(struct tt_device_context *context, void *ptr, size_t bytes);

#endif
