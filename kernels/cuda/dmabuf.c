/* Memory of a GPU as dma-bufs, for NICs: the driver makes a descriptor of a range, which the kernel's drivers of NICs
 * then map by themselves. That takes a GPU, a driver and a kernel that can do it (the open kernel modules of NVIDIA),
 * and memory that was allocated for NICs, as all of a context's is where the GPU lets them. */
#include <fcntl.h>
#include "base/check.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/state.h"

/* CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, which headers before CUDA 12.8 lack. Older drivers take no flags. */
#define BY_PCIE 1u

ncclResult_t tt_cuda_export_dmabuf(struct tt_device_context *context, const void *ptr, size_t bytes, int pci, int *fd)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  struct tt_cuda_enter enter;
  bool is;
  int made = -1;
  *fd = -1;
  if (driver->cuMemGetHandleForAddressRange == NULL)
    return TT_FAIL(ncclSystemError, "the CUDA driver makes no dma-bufs of memory: it is older than 11.7");
  TT_TRY(tt_cuda_can(context->device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, &is));
  if (!is)
    return TT_FAIL(ncclSystemError,
                   "GPU %d has no dma-bufs: its kernel driver does not support them (NVIDIA's open kernel modules do)",
                   context->device);
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result =
      tt_cuda_driver_check(driver->cuMemGetHandleForAddressRange(
                               &made, (CUdeviceptr)ptr, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, pci ? BY_PCIE : 0),
                           pci ? "making a dma-buf with addresses on the PCI bus for memory of a GPU"
                               : "making a dma-buf for memory of a GPU");
  tt_cuda_leave(&enter);
  TT_TRY(result);
  fcntl(made, F_SETFD, FD_CLOEXEC);
  *fd = made;
  return ncclSuccess;
}
