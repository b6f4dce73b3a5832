/* Users' pointers: the allocation around one, and its export.
 *
 * Memory of cuMem is what one handle maps at one place; several mapped side by side in one range of addresses, as
 * PyTorch's expandable segments, are several allocations. Memory of cudaMalloc goes to other processes by CUDA IPC, if
 * the user wants that, and to other ranks of this one as it is. Memory of pools and managed memory goes nowhere. */
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
enum { TYPE, DEVICE, ID, START, SIZE, MAPPING_START, MAPPING_SIZE, MANAGED, POOL, IPC, TYPES, BLOCK, WORDS };

static ncclResult_t ask(const void *ptr, uint64_t words[WORDS])
{
  static _Atomic bool no_blocks; /* the driver is too old for MEMORY_BLOCK_ID */
  static const CUpointer_attribute attributes[WORDS] = {[TYPE] = CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                        [DEVICE] = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                        [ID] = CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                                        [START] = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                                        [SIZE] = CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                                        [MAPPING_START] = CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                                        [MAPPING_SIZE] = CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
                                                        [MANAGED] = CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                        [POOL] = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                                        [IPC] = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                                        [TYPES] = CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                                        [BLOCK] = MEMORY_BLOCK_ID};
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUpointer_attribute asked[WORDS];
  void *data[WORDS];
  memset(words, 0, WORDS * sizeof(*words));
  memcpy(asked, attributes, sizeof(asked));
  for (int i = 0; i < WORDS; i++) data[i] = &words[i];
  if (!no_blocks) {
    if (driver->cuPointerGetAttributes(WORDS, asked, data, (CUdeviceptr)ptr) == CUDA_SUCCESS) return ncclSuccess;
    memset(words, 0, WORDS * sizeof(*words));
  }
  TT_TRY(tt_cuda_driver_check(driver->cuPointerGetAttributes(BLOCK, asked, data, (CUdeviceptr)ptr),
                              "asking what a pointer points to"));
  no_blocks = true;
  return ncclSuccess;
}

/* By cuMem, with descriptors: then the mapping is the allocation, as long as it lies there. */
static bool is_mapped(const uint64_t words[WORDS])
{
  return (words[TYPES] & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 && words[POOL] == 0 && words[MAPPING_SIZE] != 0;
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
  if ((uint32_t)words[TYPE] == 0) return TT_FAIL(ncclInvalidArgument, "%p points to no memory that CUDA knows", ptr);
  *mapped = is_mapped(words);
  *buffer = (struct tt_device_buffer){.size = buffer->size,
                                      .base = (void *)words[*mapped ? MAPPING_START : START],
                                      .bytes = words[*mapped ? MAPPING_SIZE : SIZE],
                                      .id = *mapped && words[BLOCK] != 0 ? words[BLOCK] | BLOCK_BIT : words[ID],
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
