/* The kernel that runs works with multicast memory, of a data type (TT_CUDA_DATATYPE): as tt_run_programs of kernel.cu,
 * in Simple, so that what it needs costs the others nothing. For architectures from 9.0 on. */
#define TT_CUDA_TELLS 1
#include "kernels/cuda/nvls.cuh"

static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_shared(const __grid_constant__ tt_cuda_launch launch)
{
  tt_await_grid_before();
  run_items<TT_PROTO_SIMPLE, tt_nvls>(launch);
  tt_let_next_grid_begin();
}

#define TT_CUDA_PASTE(a, b) a##b
#define TT_CUDA_NAME(number) TT_CUDA_PASTE(tt_cuda_nvls_, number)
extern "C" const void *TT_CUDA_NAME(TT_CUDA_DATATYPE)()
{
  return (const void *)tt_run_shared;
}
