/* Works whose copies copy engines do (tt_work.engines): on the stream between two kernels, of which the first exchanges
 * the messages that come before, and the second those that come after.
 *
 * What comes from another GPU and goes to several (a broadcast) crosses the wire to this one once: it is copied to this
 * rank's own destination, and from there to the others, in pieces, so that one piece comes while the one before it goes
 * on. The copies that go on have a stream of their own, the second one (second.c). So has a large block that stays on
 * this GPU, which takes no wire, while the others cross theirs. */
#include <stddef.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/state.h"

/* Estimate: 10 us at 391 bytes a nanosecond, several times as long as a copy takes to begin. */
#define PIECE_BYTES ((size_t)4 << 20)
/* Estimate: a GPU copies this in itself in about the time that two events take. */
#define APART_BYTES ((size_t)1 << 20)

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

/* ---- The second stream ---- */

/* What comes next on `stream` waits for what is on `leader` now; also where they are captured. */
static ncclResult_t follow(struct tt_device_context *context, cudaStream_t stream, cudaStream_t leader)
{
  TT_CUDA_TRY(cudaEventRecord(context->state->engines.event, leader), "recording an event between copies");
  TT_CUDA_TRY(cudaStreamWaitEvent(stream, context->state->engines.event, 0), "waiting for a copy");
  return ncclSuccess;
}

/* The same behind copies on `leader` that ended with `result`, which is returned if it is a failure: also then
 * `stream`, which the user knows, waits for what was begun. */
static ncclResult_t follow_anyway(struct tt_device_context *context, cudaStream_t stream, cudaStream_t leader,
                                  ncclResult_t result)
{
  ncclResult_t joined = follow(context, stream, leader);
  return result != ncclSuccess ? result : joined;
}

/* ---- On its way to others ---- */

static struct place piece_of(struct place place, size_t at)
{
  return (struct place){.at = place.at + at, .bytes = TT_MIN(place.bytes - at, PIECE_BYTES)};
}

/* `tos` without `own`, which is one of them. */
static ncclResult_t pass_pieces(struct tt_device_context *context, struct place from, struct place own,
                                const struct place *tos, int ntos, cudaStream_t stream, cudaStream_t second)
{
  for (size_t at = 0; at < from.bytes; at += PIECE_BYTES) {
    TT_TRY(copy_one(piece_of(from, at), piece_of(own, at), stream));
    TT_TRY(follow(context, second, stream));
    for (int t = 0; t < ntos; t++)
      if (tos[t].at != own.at && tos[t].at != from.at)
        TT_TRY(copy_one(piece_of(own, at), piece_of(tos[t], at), second));
  }
  return ncclSuccess;
}

static ncclResult_t pass_on(struct tt_device_context *context, struct place from, struct place own,
                            const struct place *tos, int ntos, cudaStream_t stream, const struct tt_cuda_graph *graph)
{
  cudaStream_t second;
  if (from.bytes == 0) return ncclSuccess;
  TT_TRY(tt_cuda_second_get(context, graph, &second));
  return follow_anyway(context, stream, second, pass_pieces(context, from, own, tos, ntos, stream, second));
}

/* ---- Instructions ---- */

/* The destination that is this rank's own buffer; -1: none. */
static int find_own(const struct tt_work *work, const struct tt_cuda_operand *outputs, int noutputs)
{
  int own = noutputs - 1;
  while (own >= 0 &&
         (outputs[own].buffer != TT_MEMBER_OUTPUT || work->member_outputs[outputs[own].conn] != work->output))
    own--;
  return own;
}

/* What a pass over the instructions does. */
enum pass { COUNT_BYTES, COPY_ALL, COPY_OWN, COPY_OTHERS };

struct passing {
  enum pass pass;
  cudaStream_t stream;
  const struct tt_cuda_graph *graph; /* that the stream is captured into, or NULL */
  size_t own, others;                /* bytes that stay on this GPU, and that do not */
};

/* Copies from this rank's memory. */
static ncclResult_t copy_own_source(const struct passing *passing, struct place from, const struct place *tos, int ntos,
                                    int own)
{
  for (int k = 0; k < ntos; k++) {
    if (passing->pass == COPY_OWN && k != own) continue;
    if (passing->pass == COPY_OTHERS && k == own) continue;
    TT_TRY(copy_one(from, tos[k], passing->stream));
  }
  return ncclSuccess;
}

static ncclResult_t pass_repetition(struct tt_device_context *context, const struct tt_work *work,
                                    const struct tt_cuda_program *packed, const struct tt_cuda_instruction *instruction,
                                    uint32_t repetition, struct passing *passing)
{
  int first = instruction->first_operand + instruction->nsends, noutputs = instruction->noutputs;
  const struct tt_cuda_operand *source = tt_cuda_operand_of(packed, first);
  struct place from = place_of(work, packed, source, repetition), tos[TT_CUDA_MAX_CONNS];
  if (noutputs > (int)TT_COUNT(tos))
    return TT_FAIL(ncclInternalError, "rank %d: copy engines are to copy to %d places", context->rank, noutputs);
  for (int k = 0; k < noutputs; k++) tos[k] = place_of(work, packed, source + 1 + k, repetition);
  bool remote = source->buffer == TT_MEMBER_INPUT || source->buffer == TT_MEMBER_OUTPUT;
  int own = find_own(work, source + 1, noutputs);
  if (passing->pass == COUNT_BYTES) {
    for (int k = 0; k < noutputs; k++)
      if (tos[k].at != from.at) *(k == own && !remote ? &passing->own : &passing->others) += from.bytes;
    return ncclSuccess;
  }
  if (!remote) return copy_own_source(passing, from, tos, noutputs, own);
  if (passing->pass == COPY_OWN) return ncclSuccess;
  if (own >= 0 && noutputs > 1) return pass_on(context, from, tos[own], tos, noutputs, passing->stream, passing->graph);
  for (int k = 0; k < noutputs; k++) TT_TRY(copy_one(from, tos[k], passing->stream));
  return ncclSuccess;
}

static ncclResult_t pass_over(struct tt_device_context *context, const struct tt_work *work,
                              const struct tt_cuda_program *packed, struct passing *passing)
{
  for (int i = 0; i < tt_cuda_strand_of(packed, 0)->ninstructions; i++) {
    const struct tt_cuda_instruction *instruction =
        tt_cuda_instruction_of(packed, tt_cuda_strand_of(packed, 0)->first_instruction + i);
    if (instruction->ninputs == 0) continue;
    if (instruction->ninputs > 1)
      return TT_FAIL(ncclInternalError, "rank %d: copy engines are to do a work that reduces", context->rank);
    for (uint32_t r = 0; r < instruction->repeat; r++)
      TT_TRY(pass_repetition(context, work, packed, instruction, r, passing));
  }
  return ncclSuccess;
}

/* ---- Copies of a group beside its messages ---- */

bool tt_cuda_only_copies(const struct tt_work *work)
{
  const struct tt_program *program = work->channels[0].program;
  return work->signature.collective == TT_FUNC_SEND_RECV && program->npeers == 0 && program->nmembers == 0;
}

/* In place there is nothing to copy, and the second stream would be left with what it waited for. */
static size_t bytes_of(const struct tt_work *work)
{
  size_t elements = 0;
  if (work->input == work->output) return 0;
  for (uint32_t c = 0; c < work->nchannels; c++) elements = TT_MAX(elements, work->channels[c].geometry.hi);
  return elements * tt_datatype_bytes(work->reduction.datatype);
}

bool tt_cuda_are_large(struct tt_work *const *copies, int ncopies)
{
  size_t bytes = 0;
  for (int w = 0; w < ncopies; w++) bytes += bytes_of(copies[w]);
  return bytes >= APART_BYTES;
}

ncclResult_t tt_cuda_copies_begin(struct tt_device_context *context, struct tt_work *const *copies, int ncopies,
                                  cudaStream_t stream, const struct tt_cuda_graph *graph, cudaStream_t *second)
{
  ncclResult_t result = ncclSuccess;
  TT_TRY(tt_cuda_second_get(context, graph, second));
  TT_TRY(follow(context, *second, stream));
  for (int w = 0; w < ncopies && result == ncclSuccess; w++) {
    size_t bytes = bytes_of(copies[w]);
    result = copy_one((struct place){(unsigned char *)copies[w]->input, bytes},
                      (struct place){copies[w]->output, bytes}, *second);
  }
  return result == ncclSuccess ? ncclSuccess : follow_anyway(context, stream, *second, result);
}

ncclResult_t tt_cuda_copies_end(struct tt_device_context *context, cudaStream_t second, cudaStream_t stream,
                                ncclResult_t result)
{
  return follow_anyway(context, stream, second, result);
}

/* ---- Works ---- */

ncclResult_t tt_cuda_copy_by_engines(struct tt_device_context *context, const struct tt_work *work, cudaStream_t stream,
                                     const struct tt_cuda_graph *graph)
{
  const struct tt_cuda_program *packed, *on_device;
  struct passing passing = {.pass = COUNT_BYTES, .stream = stream, .graph = graph};
  TT_TRY(tt_cuda_program_get(context, work->channels[0].program, &packed, &on_device));
  TT_TRY(pass_over(context, work, packed, &passing));
  if (passing.own < APART_BYTES || passing.others == 0) {
    passing.pass = COPY_ALL;
    return pass_over(context, work, packed, &passing);
  }
  struct passing own = {.pass = COPY_OWN};
  TT_TRY(tt_cuda_second_get(context, graph, &own.stream));
  TT_TRY(follow(context, own.stream, stream));
  ncclResult_t result = pass_over(context, work, packed, &own);
  passing.pass = COPY_OTHERS;
  if (result == ncclSuccess) result = pass_over(context, work, packed, &passing);
  return follow_anyway(context, stream, own.stream, result);
}
