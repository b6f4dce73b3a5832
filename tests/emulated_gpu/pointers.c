/* What a pointer points to. */
#include "emulated.h"

#include <string.h>

/* Managed memory and that of the host say of which device's context they are. */
static unsigned type_of(const struct emu_range *range)
{
  return emu_range_is_device(range) || range->kind == EMU_MANAGED ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

/* Writes what is asked for; of no range the zeros that CUDA gives. */
static CUresult get_one(void *data, CUpointer_attribute attribute, const struct emu_range *range)
{
  const bool mapped = range != NULL && range->kind == EMU_MAPPED;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext *)data = range == NULL || mapped || range->device < 0 ? NULL : emu_primary(range->device);
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)data = range == NULL ? 0 : type_of(range);
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)data = range == NULL ? -2 : range->device;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    *(unsigned long long *)data = range == NULL ? 0 : range->id;
    return CUDA_SUCCESS;
  /* Of cuMem the whole range of addresses, with all that is mapped in it. */
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr *)data = (CUdeviceptr)(range == NULL ? NULL : mapped ? range->reserved->start : range->start);
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)data = range == NULL ? 0 : mapped ? range->reserved->bytes : range->bytes;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned *)data = range != NULL && range->kind == EMU_MANAGED;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(unsigned *)data = range != NULL && range->kind == EMU_MALLOCED;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    *(unsigned long long *)data = mapped && range->physical->exporting ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(unsigned *)data = range != NULL;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    *(CUmemoryPool *)data = NULL; /* there are none */
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    return CUDA_ERROR_NOT_SUPPORTED;
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    *(unsigned long long *)data = mapped ? range->physical->id : range == NULL ? 0 : range->id;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

static CUresult get(void *data, CUpointer_attribute attribute, const void *at)
{
  const struct emu_range *range = emu_range_find(at);
  return data == NULL || range == NULL ? CUDA_ERROR_INVALID_VALUE : get_one(data, attribute, range);
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr at)
{
  EMU_DRIVER(EMU_CONTEXT, get(data, attribute, (const void *)at));
}

/* Of a pointer that CUDA does not know this is no error. */
static CUresult get_all(unsigned count, const CUpointer_attribute *attributes, void **data, const void *at)
{
  const struct emu_range *range = emu_range_find(at);
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) result = get_one(data[i], attributes[i], range);
  return result;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr at)
{
  if (count == 0 || attributes == NULL || data == NULL) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_CONTEXT, get_all(count, attributes, data, (const void *)at));
}

static CUresult get_range(CUdeviceptr *start, size_t *bytes, const void *at)
{
  const struct emu_range *range = emu_range_find(at);
  if (range == NULL) return CUDA_ERROR_NOT_FOUND;
  if (start != NULL) *start = (CUdeviceptr)range->start;
  if (bytes != NULL) *bytes = range->bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *bytes, CUdeviceptr at)
{
  EMU_DRIVER(EMU_CONTEXT, get_range(start, bytes, (const void *)at));
}

static cudaError_t describe(struct cudaPointerAttributes *attributes, const void *at)
{
  const struct emu_range *range = emu_range_find(at);
  *attributes = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .device = -2};
  if (range == NULL) {
    attributes->hostPointer = (void *)at;
    return cudaSuccess;
  }
  attributes->device = range->device;
  attributes->devicePointer = (void *)at;
  attributes->type = emu_range_is_device(range)   ? cudaMemoryTypeDevice
                     : range->kind == EMU_MANAGED ? cudaMemoryTypeManaged
                                                  : cudaMemoryTypeHost;
  if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = (void *)at;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at)
{
  if (attributes == NULL) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, describe(attributes, at));
}
