/* kernels/cuda/nvls.cu of a data type (TT_CUDA_DATATYPE) for the CPU; see kernel.cpp. */
#include "device.h"

#undef EMU_UNIT_OF
#define EMU_UNIT_OF(type) EMU_PASTE(nvls_unit_, type)
namespace EMU_UNIT
{
#include "kernels/cuda/nvls.cu"
}
using namespace EMU_UNIT;

static void call(const void *address, const void *arguments)
{
  ((void (*)(const tt_cuda_launch))address)(*(const tt_cuda_launch *)arguments);
}

__attribute__((constructor)) static void register_kernel()
{
  const struct emu_kernel kernel = {(const void *)tt_run_shared, call, sizeof(tt_cuda_launch), &block, sizeof(block),
                                    TT_CUDA_MAX_THREADS};
  emu_kernel_register(&kernel);
}
