/* From an instruction's operands to memory and connections. */
#include "kernels/host/executor.h"

#include <string.h>

/* So that a line's words are whole when they are stored, and headers aligned. */
#define SLOT_ALIGN 16

static const struct tt_instruction *current(const struct tt_host_strand *strand)
{
  return &strand->channel->work->program->instructions[strand->strand->first_instruction + strand->instruction];
}

static ncclResult_t bad_program(const struct tt_host_strand *strand, uint32_t operand, const char *why)
{
  char text[256];
  tt_host_describe(strand->run->work, text, sizeof(text));
  return TT_FAIL(ncclInternalError, "rank %d: instruction %u, operand %u of the program: %s; in %s",
                 strand->run->work->rank, strand->strand->first_instruction + strand->instruction, operand, why, text);
}

static size_t stride_of(const struct tt_geometry *geometry, uint8_t buffer)
{
  if (buffer == TT_INPUT) return geometry->input_stride;
  return buffer == TT_OUTPUT ? geometry->output_stride : geometry->scratch_stride;
}

/* The first byte of a local chunk that lies `elements` into its buffer. */
static ncclResult_t locate(const struct tt_host_strand *strand, uint32_t number, uint8_t buffer, size_t elements,
                           unsigned char **local)
{
  const struct tt_work *work = strand->run->work;
  unsigned char *base = work->output;
  if (buffer == TT_INPUT) base = (unsigned char *)(uintptr_t)work->input; /* only ever read */
  if (buffer >= TT_SCRATCH) base = work->scratch[buffer - TT_SCRATCH];
  if (base == NULL) return bad_program(strand, number, "the buffer it names is NULL on this rank");
  *local = base + elements * strand->run->element_bytes;
  return ncclSuccess;
}

/* The operand's connection, its step there, and its place behind earlier uses in the same instruction. */
static ncclResult_t connect(struct tt_host_strand *strand, uint32_t number, uint16_t peer)
{
  struct tt_host_channel *channel = strand->channel;
  const struct tt_work *work = strand->run->work;
  struct tt_host_operand *operand = &strand->operands[number];
  int direction = operand->kind == TT_SEND ? TT_HOST_SEND : TT_HOST_RECV;
  struct tt_conn *conn = (direction == TT_HOST_SEND ? channel->work->send : channel->work->recv)[peer];
  if (conn == NULL || conn->slots[work->protocol] == NULL)
    return bad_program(strand, number, "there is no connection of this protocol to its peer");
  if ((((uintptr_t)conn->slots[work->protocol] | conn->slot_bytes[work->protocol]) & (SLOT_ALIGN - 1)) != 0)
    return bad_program(strand, number, "the slots of its connection do not begin at multiples of 16 bytes");
  if (operand->bytes > tt_conn_capacity(conn->slot_bytes[work->protocol], work->protocol))
    return bad_program(strand, number, "the chunk is larger than a slot of its connection");
  operand->conn = conn;
  operand->step = conn->step;
  operand->after = channel->last_use[direction][peer];
  channel->last_use[direction][peer] = number + 1;
  if (operand->after != 0) {
    const struct tt_host_operand *before = &strand->operands[operand->after - 1];
    operand->step = before->step + 1;
    operand->after_result = before->result || before->after_result;
    if (operand->result && !before->result && before->after_result)
      return bad_program(strand, number, "its reduction uses a connection before and after a move");
  }
  operand->first = operand->step == channel->first_step[direction][peer];
  return ncclSuccess;
}

static ncclResult_t resolve_one(struct tt_host_strand *strand, uint32_t number, const struct tt_operand *source)
{
  const struct tt_host_run *run = strand->run;
  const struct tt_program *program = strand->channel->work->program;
  const struct tt_geometry *geometry = &strand->channel->work->geometry;
  struct tt_host_operand *operand = &strand->operands[number];
  uint32_t chunk = tt_operand_chunk(source, strand->repetition);
  size_t offset;
  size_t elements = tt_geometry_part(geometry, program->parts, strand->loop, chunk % program->parts, &offset);
  memset(operand, 0, sizeof(*operand));
  operand->kind = source->kind;
  operand->result = source->kind == TT_SRC || source->kind == TT_DST || source->buffer == TT_RESULT;
  operand->bytes = elements * run->element_bytes;
  if (source->buffer != TT_RESULT && elements > 0) {
    offset += chunk / program->parts * stride_of(geometry, source->buffer);
    TT_TRY(locate(strand, number, source->buffer, offset, &operand->local));
  }
  operand->scaled = run->scale && source->buffer == TT_INPUT && (source->kind == TT_SRC || source->kind == TT_SEND);
  if (source->kind == TT_SEND || source->kind == TT_RECV) TT_TRY(connect(strand, number, source->peer));
  if (operand->result) {
    strand->reduced = false;
  } else {
    strand->pending++;
    operand->data = operand->local;
  }
  return ncclSuccess;
}

/* Gives each input of the reduction that comes by LL a place to be unpacked to. */
static ncclResult_t place_unpacked(struct tt_host_strand *strand, uint32_t noperands)
{
  size_t needed = 0;
  for (uint32_t k = 0; k < noperands; k++) {
    const struct tt_host_operand *operand = &strand->operands[k];
    if (operand->kind == TT_RECV && operand->result) needed += (operand->bytes + 63) / 64 * 64;
  }
  if (needed > strand->unpacked_bytes) {
    tt_host_strand_clear(strand);
    TT_TRY(TT_CALLOC(&strand->unpacked, needed));
    strand->unpacked_bytes = needed;
  }
  size_t used = 0;
  for (uint32_t k = 0; k < noperands; k++) {
    struct tt_host_operand *operand = &strand->operands[k];
    if (operand->kind != TT_RECV || !operand->result) continue;
    operand->data = strand->unpacked + used;
    used += (operand->bytes + 63) / 64 * 64;
  }
  return ncclSuccess;
}

ncclResult_t tt_host_resolve(struct tt_host_strand *strand)
{
  const struct tt_instruction *instruction = current(strand);
  const struct tt_operand *sources = strand->channel->work->program->operands + instruction->first_operand;
  strand->reduced = true;
  strand->pending = 0;
  for (uint32_t k = 0; k < instruction->noperands; k++) TT_TRY(resolve_one(strand, k, &sources[k]));
  for (uint32_t k = 0; k < instruction->noperands; k++) {
    if (sources[k].kind == TT_SEND) strand->channel->last_use[TT_HOST_SEND][sources[k].peer] = 0;
    if (sources[k].kind == TT_RECV) strand->channel->last_use[TT_HOST_RECV][sources[k].peer] = 0;
  }
  if (strand->run->work->protocol == TT_PROTO_LL && !strand->reduced)
    TT_TRY(place_unpacked(strand, instruction->noperands));
  strand->resolved = true;
  return ncclSuccess;
}
