/* See parts.h. As PyTorch's expandable segments: what lies side by side at its owner does so here too. */
#include "kernels/cuda/parts.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/state.h"

struct part {
  CUmemGenericAllocationHandle handle;
  size_t bytes;
};

struct tt_cuda_parts {
  CUdeviceptr at;
  size_t bytes;
  bool reserved;
  int nhandles, nmapped; /* how far it has come */
  struct part parts[];
};

static ncclResult_t take_handle(const struct tt_device_export *in, CUmemGenericAllocationHandle *handle)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  struct tt_cuda_local theirs;
  memcpy(&theirs, in->handle, sizeof(theirs));
  if (in->kind == TT_EXPORT_FD)
    return tt_cuda_driver_check(driver->cuMemImportFromShareableHandle(handle, (void *)(intptr_t)in->fd,
                                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                                "importing another process's memory from a file descriptor");
  if (in->kind == TT_EXPORT_LOCAL && theirs.mapped)
    return tt_cuda_driver_check(driver->cuMemRetainAllocationHandle(handle, theirs.ptr),
                                "finding another rank's memory");
  return TT_FAIL(ncclInvalidArgument, "only memory of cuMem can be put side by side, and this is of kind %u", in->kind);
}

static ncclResult_t map(const struct tt_device_context *context, const struct tt_device_export *in, int count,
                        struct tt_cuda_parts *parts)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (int i = 0; i < count; i++) {
    TT_TRY(take_handle(&in[i], &parts->parts[i].handle));
    parts->nhandles++;
    parts->parts[i].bytes = in[i].bytes;
    parts->bytes += in[i].bytes;
  }
  TT_TRY(tt_cuda_driver_check(driver->cuMemAddressReserve(&parts->at, parts->bytes, 0, 0, 0),
                              "reserving a range of addresses"));
  parts->reserved = true;
  CUdeviceptr at = parts->at;
  for (int i = 0; i < count; at += parts->parts[i++].bytes) {
    TT_TRY(tt_cuda_driver_check(driver->cuMemMap(at, parts->parts[i].bytes, 0, parts->parts[i].handle, 0),
                                "mapping memory"));
    parts->nmapped++;
  }
  return tt_cuda_driver_check(driver->cuMemSetAccess(parts->at, parts->bytes, &access, 1),
                              "giving a GPU access to memory");
}

ncclResult_t tt_cuda_parts_map(const struct tt_device_context *context, const struct tt_device_export *in, int count,
                               struct tt_cuda_parts **out, void **at, size_t *bytes)
{
  struct tt_cuda_parts *parts = calloc(1, sizeof(*parts) + (size_t)count * sizeof(*parts->parts));
  if (parts == NULL) return TT_FAIL(ncclSystemError, "no memory for %d handles of memory", count);
  ncclResult_t result = map(context, in, count, parts);
  if (result != ncclSuccess) {
    tt_cuda_parts_unmap(parts);
    return result;
  }
  *out = parts;
  *at = (void *)parts->at;
  *bytes = parts->bytes;
  return ncclSuccess;
}

void tt_cuda_parts_unmap(struct tt_cuda_parts *parts)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUdeviceptr at = parts->at;
  for (int i = 0; i < parts->nmapped; at += parts->parts[i++].bytes)
    tt_cuda_driver_check(driver->cuMemUnmap(at, parts->parts[i].bytes), "unmapping memory");
  if (parts->reserved)
    tt_cuda_driver_check(driver->cuMemAddressFree(parts->at, parts->bytes), "freeing an address range");
  for (int i = 0; i < parts->nhandles; i++)
    tt_cuda_driver_check(driver->cuMemRelease(parts->parts[i].handle), "releasing memory");
  free(parts);
}
