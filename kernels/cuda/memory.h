/* What the files of GPU memory share: exports, and what a GPU can do. */
#ifndef TT_KERNELS_CUDA_MEMORY_H
#define TT_KERNELS_CUDA_MEMORY_H

#include <stdbool.h>
#include "kernels/cuda/driver.h"
#include "tutti/device.h"

/* The handle of an exported LOCAL allocation. */
struct tt_cuda_local {
  void *ptr;
  int32_t device;
  uint32_t mapped; /* by cuMem, else of cudaMalloc */
};

/* memory.c. Each sets what is of its kind in `out`. */
ncclResult_t tt_cuda_export_fd(CUmemGenericAllocationHandle handle, struct tt_device_export *out);
ncclResult_t tt_cuda_export_ipc(void *ptr, struct tt_device_export *out);
void tt_cuda_export_local(const struct tt_cuda_local *mine, struct tt_device_export *out);
/* The context's GPU may use what another one has of cudaMalloc; the context is entered. */
ncclResult_t tt_cuda_enable_peer(const struct tt_device_context *context, int device);
ncclResult_t tt_cuda_can(int device, CUdevice_attribute attribute, bool *is);

#endif
