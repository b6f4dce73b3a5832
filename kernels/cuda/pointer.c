/* Asking the driver what a pointer points to. */
#include "kernels/cuda/pointer.h"

#include <string.h>
#include "base/check.h"

/* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, which older headers and drivers do not have. */
#define MEMORY_BLOCK_ID ((CUpointer_attribute)20)
/* Ids of cuMem's physical memory and of cudaMalloc's allocations are different sets of numbers. */
#define BLOCK_BIT ((uint64_t)1 << 63)

/* Words that the driver does not fill stay 0. */
enum { TYPE, DEVICE, ID, START, SIZE, MANAGED, POOL, IPC, TYPES, WORDS };

ncclResult_t tt_cuda_pointer_ask(const void *ptr, struct tt_cuda_pointer *pointer)
{
  CUpointer_attribute attributes[WORDS] = {[TYPE] = CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                           [DEVICE] = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                           [ID] = CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                           [START] = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                           [SIZE] = CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                           [MANAGED] = CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                           [POOL] = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                           [IPC] = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                           [TYPES] = CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
  uint64_t words[WORDS] = {0};
  void *data[WORDS];
  *pointer = (struct tt_cuda_pointer){0};
  for (int i = 0; i < WORDS; i++) data[i] = &words[i];
  CUresult error = tt_cuda_driver()->cuPointerGetAttributes(WORDS, attributes, data, (CUdeviceptr)ptr);
  if (error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_INVALID_CONTEXT) return ncclSuccess;
  TT_TRY(tt_cuda_driver_check(error, "asking what a pointer points to"));
  if ((uint32_t)words[TYPE] == 0) return ncclSuccess;
  *pointer = (struct tt_cuda_pointer){.type = (uint32_t)words[TYPE],
                                      .device = (int32_t)words[DEVICE],
                                      .start = words[START],
                                      .bytes = words[SIZE],
                                      .id = words[ID],
                                      .managed = (uint32_t)words[MANAGED] != 0,
                                      .pool = words[POOL] != 0,
                                      .ipc = (uint32_t)words[IPC] != 0,
                                      .descriptors = (words[TYPES] & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 &&
                                                     words[POOL] == 0};
  return ncclSuccess;
}

/* The id is that of the physical memory, where the driver has such: another handle at that place has another one. */
ncclResult_t tt_cuda_pointer_piece(const void *ptr, struct tt_cuda_pointer *pointer)
{
  uint64_t id = 0;
  TT_TRY(
      tt_cuda_driver_check(tt_cuda_driver()->cuMemGetAddressRange(&pointer->start, &pointer->bytes, (CUdeviceptr)ptr),
                           "asking where memory is mapped"));
  if (tt_cuda_driver()->cuPointerGetAttribute(&id, MEMORY_BLOCK_ID, (CUdeviceptr)ptr) == CUDA_SUCCESS && id != 0)
    pointer->id = id | BLOCK_BIT;
  return ncclSuccess;
}
