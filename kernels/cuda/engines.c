/* Works whose copies copy engines do (tt_work.engines): on the stream between two kernels, of which the first exchanges
 * the messages that come before, and the second those that come after. */
#include <stddef.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/pack.h"

bool tt_cuda_has_engines(const struct tt_work *work)
{
  return work->size >= offsetof(struct tt_work, engines) + sizeof(work->engines) && work->engines != 0 &&
         work->nchannels == 1;
}

/* A chunk where it lies. */
struct place {
  unsigned char *at;
  size_t bytes;
};

static struct place place_of(const struct tt_work *work, const struct tt_cuda_program *packed,
                             const struct tt_cuda_operand *operand, uint32_t repetition)
{
  const struct tt_geometry *geometry = &work->channels[0].geometry;
  size_t element = tt_datatype_bytes(work->reduction.datatype);
  uint32_t chunk = (operand->start + repetition * operand->stride) % operand->modulo;
  size_t share = geometry->hi - geometry->lo, part = chunk % packed->parts, row = chunk / packed->parts;
  size_t at = TT_MIN(part * geometry->last_chunk, share), stride = geometry->output_stride;
  const unsigned char *base = work->output;
  if (operand->buffer == TT_INPUT || operand->buffer == TT_MEMBER_INPUT) {
    base = operand->buffer == TT_INPUT ? work->input : work->member_inputs[operand->conn];
    stride = geometry->input_stride;
  } else if (operand->buffer == TT_MEMBER_OUTPUT) {
    base = work->member_outputs[operand->conn];
  }
  return (struct place){.at = (unsigned char *)base + (geometry->lo + at + row * stride) * element,
                        .bytes = TT_MIN(share - at, geometry->last_chunk) * element};
}

static ncclResult_t copy_one(struct place from, struct place to, cudaStream_t stream)
{
  if (from.at == to.at || from.bytes == 0) return ncclSuccess;
  TT_CUDA_TRY(cudaMemcpyAsync(to.at, from.at, from.bytes, cudaMemcpyDefault, stream), "copying by a copy engine");
  return ncclSuccess;
}

static ncclResult_t copy_instruction(const struct tt_work *work, const struct tt_cuda_program *packed,
                                     const struct tt_cuda_instruction *instruction, cudaStream_t stream)
{
  int first = instruction->first_operand + instruction->nsends;
  for (uint32_t r = 0; r < instruction->repeat; r++) {
    struct place from = place_of(work, packed, tt_cuda_operand_of(packed, first), r);
    for (int k = 0; k < instruction->noutputs; k++)
      TT_TRY(copy_one(from, place_of(work, packed, tt_cuda_operand_of(packed, first + 1 + k), r), stream));
  }
  return ncclSuccess;
}

ncclResult_t tt_cuda_copy_by_engines(struct tt_device_context *context, const struct tt_work *work, cudaStream_t stream)
{
  const struct tt_cuda_program *packed, *on_device;
  TT_TRY(tt_cuda_program_get(context, work->channels[0].program, &packed, &on_device));
  for (int i = 0; i < tt_cuda_strand_of(packed, 0)->ninstructions; i++) {
    const struct tt_cuda_instruction *instruction =
        tt_cuda_instruction_of(packed, tt_cuda_strand_of(packed, 0)->first_instruction + i);
    if (instruction->ninputs == 0) continue;
    if (instruction->ninputs > 1)
      return TT_FAIL(ncclInternalError, "rank %d: copy engines are to do a work that reduces", context->rank);
    TT_TRY(copy_instruction(work, packed, instruction, stream));
  }
  return ncclSuccess;
}
