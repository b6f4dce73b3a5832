/* ncclMemAlloc's memory: by cuMem where that is used (NCCL_CUMEM_ENABLE), else of cudaMalloc.
 *
 * Memory of cuMem can be exported in each way that the device has, is open to NICs where the device can do that, and is
 * mapped for all GPUs of the process that reach it, so that they may use a pointer to it as it is. To free it waits for
 * no kernel, as cudaFree does: the user has waited. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"
#include "base/timer.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/state.h"

struct block {
  struct block *next;
  void *ptr;
  int device;
  bool mapped; /* by cuMem, with the handle, and so many bytes */
  CUmemGenericAllocationHandle handle;
  size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;

/* ---- By cuMem ---- */

/* Fabric handles and NICs come where they are supported: who has no right to a fabric (no IMEX channel) does without.
 */
static ncclResult_t create(struct block *block, size_t *granularity, size_t bytes)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = block->device}};
  bool fabric, nics;
  char doing[96];
  TT_TRY(tt_cuda_can(block->device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, &nics));
  TT_TRY(tt_cuda_can(block->device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, &fabric));
  wanted.allocFlags.gpuDirectRDMACapable = nics;
  TT_TRY(tt_cuda_driver_check(
      driver->cuMemGetAllocationGranularity(granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "asking for the granularity of memory"));
  if (bytes > SIZE_MAX - *granularity) return TT_FAIL(ncclInvalidArgument, "there are no %zu bytes anywhere", bytes);
  block->bytes = (bytes + *granularity - 1) / *granularity * *granularity;
  if (fabric) {
    CUmemAllocationProp both = wanted;
    both.requestedHandleTypes =
        (CUmemAllocationHandleType)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC);
    if (driver->cuMemCreate(&block->handle, block->bytes, &both, 0) == CUDA_SUCCESS) return ncclSuccess;
  }
  snprintf(doing, sizeof(doing), "allocating %zu bytes on GPU %d", block->bytes, block->device);
  return tt_cuda_driver_check(driver->cuMemCreate(&block->handle, block->bytes, &wanted, 0), doing);
}

static ncclResult_t give_access(const struct block *block, CUdeviceptr at, int device)
{
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return tt_cuda_driver_check(tt_cuda_driver()->cuMemSetAccess(at, block->bytes, &access, 1),
                              "giving a GPU access to memory");
}

static ncclResult_t give_all_access(const struct block *block, CUdeviceptr at)
{
  int devices = 0;
  TT_TRY(give_access(block, at, block->device));
  TT_CUDA_TRY(cudaGetDeviceCount(&devices), "counting GPUs");
  for (int other = 0; other < devices; other++) {
    int can = 0;
    if (other == block->device) continue;
    TT_CUDA_TRY(cudaDeviceCanAccessPeer(&can, other, block->device), "asking whether a GPU reaches another");
    if (can) TT_TRY(give_access(block, at, other));
  }
  return ncclSuccess;
}

static ncclResult_t map(struct block *block, size_t granularity)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUdeviceptr at;
  ncclResult_t result;
  TT_TRY(tt_cuda_driver_check(driver->cuMemAddressReserve(&at, block->bytes, granularity, 0, 0),
                              "reserving a range of addresses"));
  TT_TRY_GOTO(tt_cuda_driver_check(driver->cuMemMap(at, block->bytes, 0, block->handle, 0), "mapping memory"), result,
              free_range);
  TT_TRY_GOTO(give_all_access(block, at), result, unmap);
  block->ptr = (void *)at;
  return ncclSuccess;
unmap:
  driver->cuMemUnmap(at, block->bytes);
free_range:
  driver->cuMemAddressFree(at, block->bytes);
  return result;
}

static ncclResult_t alloc_mapped(struct block *block, size_t bytes)
{
  size_t granularity;
  block->mapped = true;
  TT_TRY(create(block, &granularity, bytes));
  ncclResult_t result = map(block, granularity);
  if (result != ncclSuccess) tt_cuda_driver()->cuMemRelease(block->handle);
  return result;
}

static ncclResult_t release_mapped(const struct block *block)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUdeviceptr at = (CUdeviceptr)block->ptr;
  TT_TRY(tt_cuda_driver_check(driver->cuMemUnmap(at, block->bytes), "unmapping memory"));
  TT_TRY(tt_cuda_driver_check(driver->cuMemAddressFree(at, block->bytes), "freeing an address range"));
  return tt_cuda_driver_check(driver->cuMemRelease(block->handle), "releasing memory");
}

/* ---- Either way ---- */

static ncclResult_t alloc_entered(struct block *block, size_t bytes)
{
  bool vmm;
  char doing[96];
  TT_TRY(tt_cuda_memory_choose(block->device, &vmm));
  if (vmm) return alloc_mapped(block, bytes);
  snprintf(doing, sizeof(doing), "allocating %zu bytes on GPU %d", bytes, block->device);
  block->bytes = bytes;
  TT_CUDA_TRY(cudaMalloc(&block->ptr, bytes), doing);
  return ncclSuccess;
}

static ncclResult_t release_entered(const struct block *block)
{
  if (block->mapped) return release_mapped(block);
  TT_CUDA_TRY(cudaFree(block->ptr), "freeing memory of a GPU");
  return ncclSuccess;
}

/* Zeroes on a stream of its own, since the thread's own may be captured, or wait for its peers. */
static ncclResult_t zero_on(cudaStream_t stream, const struct block *block)
{
  tt_deadline deadline = tt_deadline_in_ms(TT_CUDA_SIDE_MS);
  TT_CUDA_TRY(cudaMemsetAsync(block->ptr, 0, block->bytes, stream), "zeroing memory of a GPU");
  cudaError_t error;
  while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
    cudaGetLastError();
    if (tt_deadline_passed(deadline))
      return TT_FAIL(ncclSystemError,
                     "GPU %d did not zero %zu bytes in %d ms. Kernels that do not end seem to occupy all of it",
                     block->device, block->bytes, TT_CUDA_SIDE_MS);
    sched_yield();
  }
  return tt_cuda_check(error, "zeroing memory of a GPU");
}

static ncclResult_t zero(const struct block *block, bool *stuck)
{
  cudaStream_t stream;
  int least, greatest;
  TT_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for the priorities of streams");
  TT_CUDA_TRY(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "making a stream");
  ncclResult_t result = zero_on(stream, block);
  *stuck = result == ncclSystemError;
  cudaStreamDestroy(stream); /* what it still has to do goes on */
  return result;
}

static ncclResult_t fill(struct block *block, size_t bytes)
{
  bool stuck = false;
  TT_TRY(alloc_entered(block, bytes));
  ncclResult_t result = zero(block, &stuck);
  if (result != ncclSuccess && !stuck) release_entered(block); /* else it is left, as the GPU may still write to it */
  return result;
}

ncclResult_t tt_cuda_user_alloc(int index, size_t bytes, void **ptr)
{
  struct tt_cuda_enter enter;
  struct block *block;
  *ptr = NULL;
  TT_TRY(TT_CALLOC(&block, 1));
  block->device = index;
  ncclResult_t result = tt_cuda_enter_device(index, &enter);
  if (result == ncclSuccess) {
    result = fill(block, bytes);
    tt_cuda_leave(&enter);
  }
  if (result != ncclSuccess) {
    free(block);
    return result;
  }
  *ptr = block->ptr;
  pthread_mutex_lock(&lock);
  block->next = blocks;
  blocks = block;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

static struct block *take(const void *ptr)
{
  pthread_mutex_lock(&lock);
  struct block **place = &blocks;
  while (*place != NULL && (*place)->ptr != ptr) place = &(*place)->next;
  struct block *block = *place;
  if (block != NULL) *place = block->next;
  pthread_mutex_unlock(&lock);
  return block;
}

ncclResult_t tt_cuda_user_free(void *ptr)
{
  struct tt_cuda_enter enter;
  struct block *block = take(ptr);
  if (block == NULL) return TT_FAIL(ncclInvalidArgument, "%p is no memory that was allocated here", ptr);
  ncclResult_t result = tt_cuda_enter_device(block->device, &enter);
  if (result == ncclSuccess) {
    result = release_entered(block);
    tt_cuda_leave(&enter);
  }
  free(block);
  return result;
}
