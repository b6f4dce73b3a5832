/* The kernels that use multicast memory (nvls.cu), by data type. */
#include "base/check.h"
#include "kernels/cuda/multicast.h"

#ifdef TUTTI_CUDA_NVLS

typedef const void *get_kernel(void);
get_kernel tt_cuda_nvls_1, tt_cuda_nvls_2, tt_cuda_nvls_3, tt_cuda_nvls_4, tt_cuda_nvls_5, tt_cuda_nvls_6,
    tt_cuda_nvls_7, tt_cuda_nvls_8, tt_cuda_nvls_9;

/* ncclUint8 only moves. */
static get_kernel *const kernels[] = {
    [ncclUint8] = tt_cuda_nvls_1,   [ncclInt32] = tt_cuda_nvls_2,   [ncclUint32] = tt_cuda_nvls_3,
    [ncclInt64] = tt_cuda_nvls_4,   [ncclUint64] = tt_cuda_nvls_5,  [ncclFloat16] = tt_cuda_nvls_6,
    [ncclFloat32] = tt_cuda_nvls_7, [ncclFloat64] = tt_cuda_nvls_8, [ncclBfloat16] = tt_cuda_nvls_9,
};

bool tt_cuda_nvls_is_built(void)
{
  return true;
}

const void *tt_cuda_nvls_kernel(int datatype)
{
  return datatype < 0 || datatype >= (int)TT_COUNT(kernels) || kernels[datatype] == NULL ? NULL : kernels[datatype]();
}

#else

bool tt_cuda_nvls_is_built(void)
{
  return false;
}

const void *tt_cuda_nvls_kernel(int datatype)
{
  (void)datatype;
  return NULL;
}

#endif

ncclResult_t tt_cuda_nvls_load(void)
{
  for (int type = 0; type < ncclNumTypes; type++) {
    struct cudaFuncAttributes attributes;
    const void *kernel = tt_cuda_nvls_kernel(type);
    if (kernel != NULL) TT_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel");
  }
  return ncclSuccess;
}
