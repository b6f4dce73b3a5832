/* Several handles of cuMem in one range of addresses (memory.c). Between enter and leave. */
#ifndef TT_KERNELS_CUDA_PARTS_H
#define TT_KERNELS_CUDA_PARTS_H

#include "kernels/cuda/context.h"
#include "tutti/device.h"

struct tt_cuda_parts;

/* Imports and maps them for the context's GPU, one behind the other. *at is the range's address, and *bytes its size.
 */
ncclResult_t tt_cuda_parts_map(const struct tt_device_context *context, const struct tt_device_export *in, int count,
                               struct tt_cuda_parts **out, void **at, size_t *bytes);
void tt_cuda_parts_unmap(struct tt_cuda_parts *parts);

#endif
