/* From a program to what kernels read (descriptor.h). No device is needed for it. */
#ifndef TT_KERNELS_CUDA_PACK_H
#define TT_KERNELS_CUDA_PACK_H

#include "kernels/cuda/descriptor.h"

/* Packs into one allocation, of packed->bytes bytes, that the caller frees. ncclInvalidUsage, saying what, for programs
 * that kernels cannot run: messages of several pieces, shared memory beside scratch memory, more strands, connections
 * or operands than fit. */
ncclResult_t tt_cuda_pack(const struct tt_program *program, struct tt_cuda_program **packed);

#endif
