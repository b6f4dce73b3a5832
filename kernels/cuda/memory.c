/* Memory of a GPU, and its way to the other ranks of the host.
 *
 * By cuMem an allocation is a piece of physical memory, mapped at an address of its own in each context that uses it.
 * It lives until the last mapping is gone, so that owner and importers may release it in any order; other processes get
 * it by a file descriptor. To map and unmap waits for no kernel.
 *
 * Where that is not supported or not wanted, memory comes from cudaMalloc and goes to other processes by CUDA IPC.
 * There importers must release first, and cudaMalloc and cudaFree may wait for kernels. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "kernels/cuda/mapping.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/state.h"

/* CUDA IPC hands over whole blocks of this size, with all that cudaMalloc has put there. */
#define IPC_BLOCK ((size_t)2 << 20)

enum kind { MAPPED, MALLOCED, OPENED, BORROWED, SIDE_BY_SIDE };

/* What tt_device_memory.resource points to. */
struct resource {
  enum kind kind;
  CUmemGenericAllocationHandle handle; /* MAPPED: one reference */
  size_t bytes;                        /* MAPPED: of the address range */
  struct tt_cuda_parts *parts;         /* SIDE_BY_SIDE */
};

ncclResult_t tt_cuda_can(int device, CUdevice_attribute attribute, bool *is)
{
  int value = 0;
  CUresult error = tt_cuda_driver()->cuDeviceGetAttribute(&value, attribute, device);
  *is = error == CUDA_SUCCESS && value != 0;
  if (error == CUDA_ERROR_INVALID_VALUE) return ncclSuccess; /* the driver is older than what is asked for */
  return tt_cuda_driver_check(error, "asking for what a GPU can do");
}

ncclResult_t tt_cuda_memory_choose(int device, bool *vmm)
{
  int64_t wanted = tt_param_int(TT_PARAM_NCCL_CUMEM_ENABLE);
  bool addresses, fds;
  *vmm = false;
  if (wanted == 0) return ncclSuccess;
  TT_TRY(tt_cuda_can(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &addresses));
  TT_TRY(tt_cuda_can(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &fds));
  *vmm = addresses && fds;
  if (wanted == 1 && !*vmm)
    return TT_FAIL(ncclInvalidUsage,
                   "NCCL_CUMEM_ENABLE=1, but GPU %d cannot share memory of cuMem by file descriptors. "
                   "Unset it, or set it to 0",
                   device);
  return ncclSuccess;
}

/* ---- By cuMem ---- */

static CUmemLocation location(const struct tt_device_context *context)
{
  return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->device};
}

static CUmemAllocationProp properties(const struct tt_device_context *context)
{
  const int near = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, far = near | CU_MEM_HANDLE_TYPE_FABRIC;
  return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .requestedHandleTypes = (CUmemAllocationHandleType)(context->state->fabric ? far : near),
                               .location = location(context),
                               .allocFlags.gpuDirectRDMACapable = context->state->nics};
}

void tt_cuda_unmap_handle(void *ptr, size_t bytes)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUdeviceptr at = (CUdeviceptr)ptr;
  tt_cuda_driver_check(driver->cuMemUnmap(at, bytes), "unmapping memory");
  tt_cuda_driver_check(driver->cuMemAddressFree(at, bytes), "freeing an address range");
}

static void unmap(struct tt_device_memory *memory)
{
  struct resource *resource = memory->resource;
  if (memory->ptr != NULL) tt_cuda_unmap_handle(memory->ptr, resource->bytes);
  tt_cuda_driver_check(tt_cuda_driver()->cuMemRelease(resource->handle), "releasing memory");
}

ncclResult_t tt_cuda_map_handle(const struct tt_device_context *context, CUmemGenericAllocationHandle handle,
                                size_t bytes, size_t granularity, void **ptr)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUmemAccessDesc access = {.location = location(context), .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr at;
  ncclResult_t result;
  TT_TRY(tt_cuda_driver_check(driver->cuMemAddressReserve(&at, bytes, granularity, 0, 0),
                              "reserving a range of addresses"));
  TT_TRY_GOTO(tt_cuda_driver_check(driver->cuMemMap(at, bytes, 0, handle, 0), "mapping memory"), result, free_range);
  TT_TRY_GOTO(tt_cuda_driver_check(driver->cuMemSetAccess(at, bytes, &access, 1), "giving a GPU access to memory"),
              result, unmap);
  *ptr = (void *)at;
  return ncclSuccess;
unmap:
  driver->cuMemUnmap(at, bytes);
free_range:
  driver->cuMemAddressFree(at, bytes);
  return result;
}

/* Gives resource->handle an address in the context. On failure memory->ptr is NULL. */
static ncclResult_t map(struct tt_device_context *context, size_t granularity, struct tt_device_memory *memory)
{
  const struct resource *resource = memory->resource;
  TT_TRY(tt_cuda_map_handle(context, resource->handle, resource->bytes, granularity, &memory->ptr));
  memory->bytes = resource->bytes;
  return ncclSuccess;
}

static ncclResult_t granularity_of(const CUmemAllocationProp *properties, size_t *granularity)
{
  return tt_cuda_driver_check(
      tt_cuda_driver()->cuMemGetAllocationGranularity(granularity, properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "asking for the granularity of memory");
}

/* A process that has no right to the fabric (no IMEX channel) does without; the core finds out, and says so. */
static CUresult create(struct tt_device_context *context, struct resource *resource)
{
  CUmemAllocationProp wanted = properties(context);
  CUresult result = tt_cuda_driver()->cuMemCreate(&resource->handle, resource->bytes, &wanted, 0);
  if (!context->state->fabric || result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY) return result;
  context->state->fabric = false;
  return create(context, resource);
}

static ncclResult_t alloc_mapped(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory)
{
  struct resource *resource = memory->resource;
  CUmemAllocationProp wanted = properties(context);
  size_t granularity;
  char doing[96];
  TT_TRY(granularity_of(&wanted, &granularity));
  resource->bytes = (bytes + granularity - 1) / granularity * granularity;
  snprintf(doing, sizeof(doing), "allocating %zu bytes on GPU %d", resource->bytes, context->device);
  TT_TRY(tt_cuda_driver_check(create(context, resource), doing));
  ncclResult_t result = map(context, granularity, memory);
  if (result != ncclSuccess) unmap(memory);
  return result;
}

/* Maps a handle that carries a reference, which it takes over. */
static ncclResult_t import_mapped(struct tt_device_context *context, CUmemGenericAllocationHandle handle, size_t bytes,
                                  struct tt_device_memory *memory)
{
  struct resource *resource = memory->resource;
  CUmemAllocationProp here = properties(context);
  size_t granularity;
  *resource = (struct resource){.kind = MAPPED, .handle = handle, .bytes = bytes};
  ncclResult_t result = granularity_of(&here, &granularity);
  if (result == ncclSuccess) result = map(context, granularity, memory);
  if (result != ncclSuccess) unmap(memory);
  return result;
}

/* ---- By cudaMalloc ---- */

static ncclResult_t alloc_malloced(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory)
{
  char doing[96];
  memory->bytes = (bytes + IPC_BLOCK - 1) / IPC_BLOCK * IPC_BLOCK;
  snprintf(doing, sizeof(doing), "allocating %zu bytes on GPU %d", memory->bytes, context->device);
  TT_CUDA_TRY(cudaMalloc(&memory->ptr, memory->bytes), doing);
  return ncclSuccess;
}

ncclResult_t tt_cuda_enable_peer(const struct tt_device_context *context, int device)
{
  char doing[96];
  if (device == context->device) return ncclSuccess;
  cudaError_t error = cudaDeviceEnablePeerAccess(device, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return ncclSuccess;
  }
  snprintf(doing, sizeof(doing), "giving GPU %d access to GPU %d", context->device, device);
  return tt_cuda_check(error, doing);
}

/* ---- Alloc and release ---- */

ncclResult_t tt_cuda_zero(struct tt_device_context *context, void *ptr, size_t bytes)
{
  pthread_mutex_lock(&context->lock);
  cudaError_t started = cudaMemsetAsync(ptr, 0, bytes, context->side);
  ncclResult_t result = tt_cuda_side_wait(context, started, "zeroing memory of a GPU");
  pthread_mutex_unlock(&context->lock);
  return result;
}

static void release_entered(struct tt_device_memory *memory)
{
  struct resource *resource = memory->resource;
  if (resource->kind == MAPPED) unmap(memory);
  if (resource->kind == MALLOCED) tt_cuda_check(cudaFree(memory->ptr), "freeing memory of a GPU");
  if (resource->kind == OPENED) tt_cuda_check(cudaIpcCloseMemHandle(memory->ptr), "closing another process's memory");
  if (resource->kind == SIDE_BY_SIDE) tt_cuda_parts_unmap(resource->parts);
  free(resource);
}

ncclResult_t tt_cuda_alloc(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory)
{
  struct tt_cuda_enter enter;
  struct resource *resource;
  bool vmm = context->state->vmm;
  *memory = (struct tt_device_memory){0};
  TT_TRY(TT_CALLOC(&resource, 1));
  resource->kind = vmm ? MAPPED : MALLOCED;
  memory->resource = resource;
  ncclResult_t result = tt_cuda_enter(context, &enter);
  if (result != ncclSuccess) goto out;
  bytes = TT_MAX(bytes, (size_t)1);
  result = vmm ? alloc_mapped(context, bytes, memory) : alloc_malloced(context, bytes, memory);
  if (result == ncclSuccess) {
    result = tt_cuda_zero(context, memory->ptr, memory->bytes);
    if (result != ncclSuccess && !context->state->side_stuck) {
      release_entered(memory);
      resource = NULL;
    }
  }
  tt_cuda_leave(&enter);
out:
  if (result != ncclSuccess) {
    free(resource);
    *memory = (struct tt_device_memory){0};
  }
  return result;
}

void tt_cuda_release(struct tt_device_context *context, struct tt_device_memory *memory)
{
  struct tt_cuda_enter enter;
  if (memory->resource != NULL && tt_cuda_enter(context, &enter) == ncclSuccess) {
    release_entered(memory);
    tt_cuda_leave(&enter);
  }
  *memory = (struct tt_device_memory){0};
}

/* ---- Export and import ---- */

ncclResult_t tt_cuda_export_fd(CUmemGenericAllocationHandle handle, struct tt_device_export *out)
{
  int fd = -1;
  TT_TRY(tt_cuda_driver_check(
      tt_cuda_driver()->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "making a file descriptor for memory of a GPU"));
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  out->kind = TT_EXPORT_FD;
  out->fd = fd;
  return ncclSuccess;
}

ncclResult_t tt_cuda_export_ipc(void *ptr, struct tt_device_export *out)
{
  _Static_assert(sizeof(cudaIpcMemHandle_t) <= sizeof(out->handle), "the handle fits");
  TT_CUDA_TRY(cudaIpcGetMemHandle((cudaIpcMemHandle_t *)out->handle, ptr), "making a handle for memory of a GPU");
  out->kind = TT_EXPORT_HANDLE;
  return ncclSuccess;
}

static ncclResult_t export_far(const struct tt_device_context *context, const struct resource *resource,
                               struct tt_device_export *out)
{
  _Static_assert(sizeof(CUmemFabricHandle) <= sizeof(out->handle), "the handle fits");
  if (resource->kind != MAPPED || !context->state->fabric)
    return TT_FAIL(
        ncclSystemError,
        "rank %d: memory of GPU %d cannot be exported to other hosts: it was allocated without fabric handles",
        context->rank, context->device);
  TT_TRY(tt_cuda_driver_check(
      tt_cuda_driver()->cuMemExportToShareableHandle(out->handle, resource->handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
      "making a fabric handle for memory of a GPU"));
  out->kind = TT_EXPORT_FABRIC;
  return ncclSuccess;
}

void tt_cuda_export_local(const struct tt_cuda_local *mine, struct tt_device_export *out)
{
  out->kind = TT_EXPORT_LOCAL;
  memcpy(out->handle, mine, sizeof(*mine));
}

ncclResult_t tt_cuda_export(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                            struct tt_device_export *out)
{
  const struct resource *resource = memory->resource;
  struct tt_cuda_enter enter;
  *out = (struct tt_device_export){.kind = TT_EXPORT_NONE, .fd = -1, .bytes = memory->bytes};
  if (resource == NULL || resource->kind == OPENED || resource->kind == BORROWED || resource->kind == SIDE_BY_SIDE)
    return TT_FAIL(ncclInternalError, "rank %d: only memory that was allocated can be exported", context->rank);
  if (local == TT_EXPORT_HERE) {
    struct tt_cuda_local mine = {.ptr = memory->ptr, .device = context->device, .mapped = resource->kind == MAPPED};
    tt_cuda_export_local(&mine, out);
    return ncclSuccess;
  }
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result = local == TT_EXPORT_FAR     ? export_far(context, resource, out)
                        : resource->kind == MAPPED ? tt_cuda_export_fd(resource->handle, out)
                                                   : tt_cuda_export_ipc(memory->ptr, out);
  tt_cuda_leave(&enter);
  return result;
}

static ncclResult_t import_local(struct tt_device_context *context, const struct tt_device_export *in,
                                 struct tt_device_memory *memory)
{
  struct resource *resource = memory->resource;
  struct tt_cuda_local theirs;
  memcpy(&theirs, in->handle, sizeof(theirs));
  if (theirs.mapped) {
    CUmemGenericAllocationHandle handle;
    TT_TRY(tt_cuda_driver_check(tt_cuda_driver()->cuMemRetainAllocationHandle(&handle, theirs.ptr),
                                "finding another rank's memory"));
    return import_mapped(context, handle, in->bytes, memory);
  }
  resource->kind = BORROWED;
  memory->ptr = theirs.ptr;
  memory->bytes = in->bytes;
  return tt_cuda_enable_peer(context, theirs.device);
}

static ncclResult_t import_entered(struct tt_device_context *context, const struct tt_device_export *in,
                                   struct tt_device_memory *memory)
{
  struct resource *resource = memory->resource;
  CUmemGenericAllocationHandle handle;
  cudaIpcMemHandle_t ipc;
  switch (in->kind) {
  case TT_EXPORT_LOCAL:
    return import_local(context, in, memory);
  case TT_EXPORT_FD:
    TT_TRY(tt_cuda_driver_check(tt_cuda_driver()->cuMemImportFromShareableHandle(
                                    &handle, (void *)(intptr_t)in->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                                "importing another process's memory from a file descriptor"));
    return import_mapped(context, handle, in->bytes, memory);
  case TT_EXPORT_FABRIC:
    TT_TRY(tt_cuda_driver_check(tt_cuda_driver()->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)in->handle,
                                                                                 CU_MEM_HANDLE_TYPE_FABRIC),
                                "importing another host's memory from a fabric handle"));
    return import_mapped(context, handle, in->bytes, memory);
  case TT_EXPORT_HANDLE:
    memcpy(&ipc, in->handle, sizeof(ipc));
    resource->kind = OPENED;
    TT_CUDA_TRY(cudaIpcOpenMemHandle(&memory->ptr, ipc, cudaIpcMemLazyEnablePeerAccess),
                "opening another process's memory");
    memory->bytes = in->bytes;
    return ncclSuccess;
  default:
    return TT_FAIL(ncclInternalError, "rank %d: memory was exported as kind %u, which is none of CUDA's", context->rank,
                   in->kind);
  }
}

ncclResult_t tt_cuda_import(struct tt_device_context *context, const struct tt_device_export *in,
                            struct tt_device_memory *memory)
{
  struct tt_cuda_enter enter;
  struct resource *resource;
  *memory = (struct tt_device_memory){0};
  TT_TRY(TT_CALLOC(&resource, 1));
  memory->resource = resource;
  ncclResult_t result = tt_cuda_enter(context, &enter);
  if (result == ncclSuccess) {
    result = import_entered(context, in, memory);
    tt_cuda_leave(&enter);
  }
  if (result != ncclSuccess) {
    free(resource);
    *memory = (struct tt_device_memory){0};
  }
  return result;
}

ncclResult_t tt_cuda_import_parts(struct tt_device_context *context, const struct tt_device_export *in, int count,
                                  struct tt_device_memory *memory)
{
  struct tt_cuda_enter enter;
  struct resource *resource;
  *memory = (struct tt_device_memory){0};
  TT_TRY(TT_CALLOC(&resource, 1));
  resource->kind = SIDE_BY_SIDE;
  memory->resource = resource;
  ncclResult_t result = tt_cuda_enter(context, &enter);
  if (result == ncclSuccess) {
    result = tt_cuda_parts_map(context, in, count, &resource->parts, &memory->ptr, &memory->bytes);
    tt_cuda_leave(&enter);
  }
  if (result != ncclSuccess) {
    free(resource);
    *memory = (struct tt_device_memory){0};
  }
  return result;
}
