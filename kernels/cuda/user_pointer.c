/* Users' pointers: the allocation around one, and its export.
 *
 * Memory of cuMem is what one handle maps at one place; several mapped side by side in one range of addresses, as
 * PyTorch's expandable segments, are several allocations. Memory of cudaMalloc goes to other processes by CUDA IPC, if
 * the user wants that, and to other ranks of this one as it is. Memory of pools and managed memory goes nowhere.
 *
 * GPUs of one process may also use it where it lies: that is a right which they are given, and holds nothing. */
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/state.h"

/* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, which older headers and drivers do not have. */
#define MEMORY_BLOCK_ID ((CUpointer_attribute)20)
/* Ids of cuMem's physical memory and of cudaMalloc's allocations are different sets of numbers. */
#define BLOCK_BIT ((uint64_t)1 << 63)

/* What the driver knows of a pointer. Words that it does not fill stay 0. */
enum { TYPE, DEVICE, ID, START, SIZE, MANAGED, POOL, IPC, TYPES, WORDS };

static ncclResult_t ask(const void *ptr, uint64_t words[WORDS])
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
  void *data[WORDS];
  memset(words, 0, WORDS * sizeof(*words));
  for (int i = 0; i < WORDS; i++) data[i] = &words[i];
  CUresult error = tt_cuda_driver()->cuPointerGetAttributes(WORDS, attributes, data, (CUdeviceptr)ptr);
  if (error != CUDA_ERROR_INVALID_VALUE && error != CUDA_ERROR_INVALID_CONTEXT)
    TT_TRY(tt_cuda_driver_check(error, "asking what a pointer points to"));
  if (error == CUDA_SUCCESS && (uint32_t)words[TYPE] != 0) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument, "%p points to no memory that CUDA knows", ptr);
}

/* By cuMem, with descriptors. */
static bool is_mapped(const uint64_t words[WORDS])
{
  return (words[TYPES] & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 && words[POOL] == 0;
}

/* Of cuMem the words are those of the whole range of addresses. An allocation is what one handle maps there, and its id
 * is that of the physical memory, where the driver has such: another handle at that place has another one. */
static ncclResult_t find_mapping(const void *ptr, uint64_t words[WORDS])
{
  CUdeviceptr start;
  size_t size;
  uint64_t id = 0;
  TT_TRY(tt_cuda_driver_check(tt_cuda_driver()->cuMemGetAddressRange(&start, &size, (CUdeviceptr)ptr),
                              "asking where memory is mapped"));
  words[START] = start;
  words[SIZE] = size;
  if (tt_cuda_driver()->cuPointerGetAttribute(&id, MEMORY_BLOCK_ID, (CUdeviceptr)ptr) == CUDA_SUCCESS && id != 0)
    words[ID] = id | BLOCK_BIT;
  return ncclSuccess;
}

static uint32_t exports_of(const uint64_t words[WORDS])
{
  uint32_t local = 1u << TT_EXPORT_LOCAL;
  if ((uint32_t)words[TYPE] != CU_MEMORYTYPE_DEVICE || (uint32_t)words[MANAGED] != 0 || words[POOL] != 0) return 0;
  if (is_mapped(words)) return local | 1u << TT_EXPORT_FD;
  if ((uint32_t)words[IPC] == 0) return 0;
  return tt_param_int(TT_PARAM_NCCL_LEGACY_CUDA_REGISTER) ? local | 1u << TT_EXPORT_HANDLE : local;
}

static ncclResult_t find(const void *ptr, struct tt_device_buffer *buffer, bool *mapped)
{
  uint64_t words[WORDS];
  TT_TRY(ask(ptr, words));
  *mapped = is_mapped(words);
  if (*mapped) TT_TRY(find_mapping(ptr, words));
  *buffer = (struct tt_device_buffer){.size = buffer->size,
                                      .base = (void *)words[START],
                                      .bytes = words[SIZE],
                                      .id = words[ID],
                                      .device = (int32_t)words[DEVICE],
                                      .exports = exports_of(words)};
  if ((uint32_t)words[TYPE] == CU_MEMORYTYPE_HOST) buffer->device = -1;
  return ncclSuccess;
}

ncclResult_t tt_cuda_find_buffer(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer)
{
  struct tt_cuda_enter enter;
  bool mapped;
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result = find(ptr, buffer, &mapped);
  tt_cuda_leave(&enter);
  return result;
}

/* ---- Other GPUs of this process ---- */

/* By cuMem each GPU needs a right to each mapping. What is set a second time stays as it is. */
static ncclResult_t give_access(const struct tt_device_context *context, const struct tt_device_buffer *buffer)
{
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return tt_cuda_driver_check(tt_cuda_driver()->cuMemSetAccess((CUdeviceptr)buffer->base, buffer->bytes, &access, 1),
                              "giving a GPU access to memory of another one");
}

static ncclResult_t reach_entered(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer)
{
  bool mapped;
  int can = 0;
  TT_TRY(find(ptr, buffer, &mapped));
  if (!(buffer->exports & 1u << TT_EXPORT_LOCAL))
    return TT_FAIL(ncclInvalidArgument, "memory at %p cannot be used by other GPUs of the process", ptr);
  if (buffer->device == context->device) return ncclSuccess;
  TT_CUDA_TRY(cudaDeviceCanAccessPeer(&can, context->device, buffer->device), "asking whether a GPU reaches another");
  if (!can)
    return TT_FAIL(ncclInvalidArgument, "memory at %p is of GPU %d, which GPU %d does not reach", ptr, buffer->device,
                   context->device);
  return mapped ? give_access(context, buffer) : tt_cuda_enable_peer(context, buffer->device);
}

ncclResult_t tt_cuda_reach_buffer(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer)
{
  struct tt_cuda_enter enter;
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result = reach_entered(context, ptr, buffer);
  tt_cuda_leave(&enter);
  return result;
}

/* ---- Other processes ---- */

static ncclResult_t export_mapped(void *base, struct tt_device_export *out)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUmemGenericAllocationHandle handle;
  TT_TRY(tt_cuda_driver_check(driver->cuMemRetainAllocationHandle(&handle, base), "finding memory of a user"));
  ncclResult_t result = tt_cuda_export_fd(handle, out);
  driver->cuMemRelease(handle);
  return result;
}

static ncclResult_t export_entered(const void *ptr, int local, struct tt_device_export *out)
{
  struct tt_device_buffer buffer = {.size = sizeof(buffer)};
  bool mapped;
  TT_TRY(find(ptr, &buffer, &mapped));
  out->bytes = buffer.bytes;
  uint32_t kind = local ? TT_EXPORT_LOCAL : mapped ? TT_EXPORT_FD : TT_EXPORT_HANDLE;
  if (!(buffer.exports & 1u << kind))
    return TT_FAIL(ncclInvalidArgument, "memory at %p cannot be exported as kind %u", ptr, kind);
  if (!local) return mapped ? export_mapped(buffer.base, out) : tt_cuda_export_ipc(buffer.base, out);
  struct tt_cuda_local mine = {.ptr = buffer.base, .device = buffer.device, .mapped = mapped};
  tt_cuda_export_local(&mine, out);
  return ncclSuccess;
}

ncclResult_t tt_cuda_export_buffer(struct tt_device_context *context, const void *ptr, int local,
                                   struct tt_device_export *out)
{
  struct tt_cuda_enter enter;
  *out = (struct tt_device_export){.kind = TT_EXPORT_NONE, .fd = -1};
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result = export_entered(ptr, local, out);
  tt_cuda_leave(&enter);
  return result;
}
