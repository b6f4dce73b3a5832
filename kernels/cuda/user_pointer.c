/* Users' pointers: the allocation around one, and its export.
 *
 * Memory of cuMem is what one handle maps at one place; several mapped side by side in one range of addresses, as
 * PyTorch's expandable segments, are several allocations. Memory of cudaMalloc goes to other processes by CUDA IPC, if
 * the user wants that, and to other ranks of this one as it is. Memory of pools and managed memory goes nowhere.
 *
 * GPUs of one process may also use it where it lies: that is a right which they are given, and holds nothing. */
#include "base/check.h"
#include "base/param.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/pointer.h"
#include "kernels/cuda/state.h"

static uint32_t exports_of(const struct tt_cuda_pointer *pointer)
{
  uint32_t local = 1u << TT_EXPORT_LOCAL;
  if (pointer->type != CU_MEMORYTYPE_DEVICE || pointer->managed || pointer->pool) return 0;
  if (pointer->descriptors) return local | 1u << TT_EXPORT_FD;
  if (!pointer->ipc) return 0;
  return tt_param_int(TT_PARAM_NCCL_LEGACY_CUDA_REGISTER) ? local | 1u << TT_EXPORT_HANDLE : local;
}

static ncclResult_t find(const void *ptr, struct tt_device_buffer *buffer, bool *mapped)
{
  struct tt_cuda_pointer pointer;
  TT_TRY(tt_cuda_pointer_ask(ptr, &pointer));
  if (pointer.type == 0) return TT_FAIL(ncclInvalidArgument, "%p points to no memory that CUDA knows", ptr);
  *mapped = pointer.descriptors;
  if (*mapped) TT_TRY(tt_cuda_pointer_piece(ptr, &pointer));
  *buffer = (struct tt_device_buffer){.size = buffer->size,
                                      .base = (void *)pointer.start,
                                      .bytes = pointer.bytes,
                                      .id = pointer.id,
                                      .device = pointer.type == CU_MEMORYTYPE_HOST ? -1 : pointer.device,
                                      .exports = exports_of(&pointer)};
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
