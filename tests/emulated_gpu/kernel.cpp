/* kernels/cuda/kernel.cu of a data type (TT_CUDA_DATATYPE) for the CPU, and what the scheduler must know of it. */
#include "device.h"

namespace EMU_UNIT
{
#include "kernels/cuda/kernel.cu"
}
using namespace EMU_UNIT;

template <typename ARGUMENT> static void call(const void *address, const void *arguments)
{
  ((void (*)(const ARGUMENT))address)(*(const ARGUMENT *)arguments);
}

__attribute__((constructor)) static void register_kernels()
{
  for (int protocol = 0; protocol < TT_NUM_PROTOCOLS; protocol++) {
    for (int form = 0; form < TT_CUDA_FORMS; form++) {
      bool brief = form == TT_CUDA_FORM_BRIEF && protocol != TT_PROTO_SIMPLE;
      const struct emu_kernel kernel = {TT_CUDA_NAME(TT_CUDA_DATATYPE)(protocol, form),
                                        brief ? call<tt_cuda_brief> : call<tt_cuda_launch>,
                                        brief ? sizeof(tt_cuda_brief) : sizeof(tt_cuda_launch),
                                        &block,
                                        sizeof(block),
                                        TT_CUDA_MAX_THREADS};
      if (emu_kernel_find(kernel.address) == NULL) emu_kernel_register(&kernel);
    }
  }
}
