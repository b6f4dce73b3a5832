/* Failures of CUDA as sentences. */
#include "base/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/driver.h"

ncclResult_t tt_cuda_check(cudaError_t error, const char *doing)
{
  if (error == cudaSuccess) return ncclSuccess;
  cudaGetLastError(); /* else the next call that asks for it would report this one's failure once more */
  return TT_FAIL(ncclUnhandledCudaError, "CUDA: %s failed: %s (%s)", doing, cudaGetErrorString(error),
                 cudaGetErrorName(error));
}

ncclResult_t tt_cuda_driver_check(CUresult result, const char *doing)
{
  if (result == CUDA_SUCCESS) return ncclSuccess;
  const char *name = NULL, *text = NULL;
  tt_cuda_driver()->cuGetErrorName(result, &name);
  tt_cuda_driver()->cuGetErrorString(result, &text);
  return TT_FAIL(ncclUnhandledCudaError, "CUDA: %s failed: %s (%s, %d)", doing, text ? text : "unknown error",
                 name ? name : "no name", (int)result);
}
