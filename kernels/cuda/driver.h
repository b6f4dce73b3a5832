/* The CUDA driver's own functions, for what the runtime lacks. Found when the library is loaded, since the backend must
 * load where there is no driver. */
#ifndef TT_KERNELS_CUDA_DRIVER_H
#define TT_KERNELS_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"

#define TT_CUDA_DRIVER_FUNCTIONS(X)                                                                                    \
  X(cuGetErrorName)                                                                                                    \
  X(cuGetErrorString)                                                                                                  \
  X(cuDeviceGetAttribute)                                                                                              \
  X(cuCtxGetCurrent)                                                                                                   \
  X(cuCtxSetCurrent)                                                                                                   \
  X(cuCtxGetDevice)                                                                                                    \
  X(cuPointerGetAttribute)                                                                                             \
  X(cuStreamGetCtx)                                                                                                    \
  X(cuStreamIsCapturing)                                                                                               \
  X(cuPointerGetAttributes)                                                                                            \
  X(cuMemGetAddressRange)                                                                                              \
  X(cuMemGetAllocationGranularity)                                                                                     \
  X(cuMemCreate)                                                                                                       \
  X(cuMemRelease)                                                                                                      \
  X(cuMemRetainAllocationHandle)                                                                                       \
  X(cuMemAddressReserve)                                                                                               \
  X(cuMemAddressFree)                                                                                                  \
  X(cuMemMap)                                                                                                          \
  X(cuMemUnmap)                                                                                                        \
  X(cuMemGetAccess)                                                                                                    \
  X(cuMemSetAccess)                                                                                                    \
  X(cuMemExportToShareableHandle)                                                                                      \
  X(cuMemImportFromShareableHandle)

/* NULL in drivers that are older than CUDA 12.1, or 11.7 for the first. */
#define TT_CUDA_DRIVER_LATER_FUNCTIONS(X)                                                                              \
  X(cuMemGetHandleForAddressRange)                                                                                     \
  X(cuMulticastCreate)                                                                                                 \
  X(cuMulticastAddDevice)                                                                                              \
  X(cuMulticastBindMem)                                                                                                \
  X(cuMulticastUnbind)                                                                                                 \
  X(cuMulticastGetGranularity)

struct tt_cuda_driver {
#define TT_CUDA_DRIVER_MEMBER(name) __typeof__(&name) name;
  TT_CUDA_DRIVER_FUNCTIONS(TT_CUDA_DRIVER_MEMBER)
  TT_CUDA_DRIVER_LATER_FUNCTIONS(TT_CUDA_DRIVER_MEMBER)
#undef TT_CUDA_DRIVER_MEMBER
};

/* Finds the functions, once, before any other use. False with the reason if there is no driver, or one without them. */
bool tt_cuda_driver_load(char *why, size_t why_size);
const struct tt_cuda_driver *tt_cuda_driver(void);

/* A call to the driver that failed, as a sentence. */
ncclResult_t tt_cuda_driver_check(CUresult result, const char *doing);

#endif
