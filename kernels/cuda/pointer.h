/* What the driver knows of a pointer. */
#ifndef TT_KERNELS_CUDA_POINTER_H
#define TT_KERNELS_CUDA_POINTER_H

#include <stdbool.h>
#include <stdint.h>
#include "kernels/cuda/driver.h"

struct tt_cuda_pointer {
  uint32_t type; /* CU_MEMORYTYPE_DEVICE or HOST; 0: CUDA knows no memory there, and the rest is 0 */
  int32_t device;
  CUdeviceptr start; /* of the allocation; of cuMem of what one handle maps there, after tt_cuda_pointer_piece */
  size_t bytes;
  uint64_t id;      /* as in tt_device_buffer, likewise */
  bool managed;     /* by cudaMallocManaged */
  bool pool;        /* of cudaMallocAsync, or another pool */
  bool ipc;         /* CUDA IPC takes it */
  bool descriptors; /* of cuMem, and descriptors of it can be made */
};

/* The context's device is the thread's, by tt_cuda_enter. Fails only where the driver does. */
ncclResult_t tt_cuda_pointer_ask(const void *ptr, struct tt_cuda_pointer *pointer);
/* Of cuMem `ask` tells the range of addresses; this sets start, bytes and id to those of what one handle maps there. */
ncclResult_t tt_cuda_pointer_piece(const void *ptr, struct tt_cuda_pointer *pointer);

#endif
