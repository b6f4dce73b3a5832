/* From a program to what kernels read (descriptor.h). No device is needed for it. */
#ifndef TT_KERNELS_CUDA_PACK_H
#define TT_KERNELS_CUDA_PACK_H

#include "kernels/cuda/descriptor.h"

/* Packs into one allocation, of packed->bytes bytes, that the caller frees. ncclInvalidUsage, saying what, for programs
 * that kernels cannot run: messages of several pieces, shared memory beside scratch memory, more strands, connections
 * or operands than fit. */
ncclResult_t tt_cuda_pack(const struct tt_program *program, struct tt_cuda_program **packed);

static inline const struct tt_cuda_strand *tt_cuda_strand_of(const struct tt_cuda_program *packed, int s)
{
  return (const struct tt_cuda_strand *)(packed + 1) + s;
}

static inline const struct tt_cuda_instruction *tt_cuda_instruction_of(const struct tt_cuda_program *packed, int i)
{
  return (const struct tt_cuda_instruction *)((const char *)packed + packed->instructions) + i;
}

static inline const struct tt_cuda_operand *tt_cuda_operand_of(const struct tt_cuda_program *packed, int k)
{
  return (const struct tt_cuda_operand *)((const char *)packed + packed->operands) + k;
}

#endif
