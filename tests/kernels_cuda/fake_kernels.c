/* What the executor finds of kernels and launches where there are none: kernels that are addresses, and nothing that a
 * context's end would have to free. */
#include "fake_hints.h"
#include "fake_internal.h"

#include "kernels/cuda/descriptor.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/multicast.h"
#include "kernels/cuda/stream.h"

static char kernels[12][TT_NUM_PROTOCOLS][TT_CUDA_FORMS];

#define KERNEL(type)                                                                                                   \
  const void *tt_cuda_kernel_##type(int protocol, int form);                                                           \
  const void *tt_cuda_kernel_##type(int protocol, int form)                                                            \
  {                                                                                                                    \
    return &kernels[type][protocol][form];                                                                             \
  }                                                                                                                    \
  _Static_assert(type <= ncclFloat8e5m2, "a data type")

KERNEL(0);
KERNEL(1);
KERNEL(2);
KERNEL(3);
KERNEL(4);
KERNEL(5);
KERNEL(6);
KERNEL(7);
KERNEL(8);
KERNEL(9);
KERNEL(10);
KERNEL(11);

const void *tt_cuda_nvls_kernel(int datatype)
{
  static char sharing_kernels[12];
  return datatype >= ncclUint8 && datatype <= ncclBfloat16 ? &sharing_kernels[datatype] : NULL;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
  const char *at = kernel, *first = &kernels[0][0][0];
  MAY_FAIL;
  if (at < first || at >= first + sizeof(kernels)) return cudaErrorInvalidDeviceFunction;
  *attributes = (struct cudaFuncAttributes){.ptxVersion = fake_hints.ptx};
  return cudaSuccess;
}

void tt_cuda_repeats_free(struct tt_device_context *context)
{
  (void)context;
}

void tt_cuda_blobs_free(struct tt_device_context *context)
{
  (void)context;
}

void tt_cuda_seconds_close(struct tt_device_context *context)
{
  (void)context;
}

void tt_cuda_graphs_forget(struct tt_device_context *context)
{
  (void)context;
}
