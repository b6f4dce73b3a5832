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
  if (buffer == TT_SHARED || buffer == TT_MULTICAST) return geometry->shared_stride;
  if (buffer == TT_MEMBER_INPUT) return geometry->input_stride;
  if (buffer == TT_MEMBER_OUTPUT) return geometry->output_stride;
  return buffer == TT_OUTPUT ? geometry->output_stride : geometry->scratch_stride;
}

/* Start of an operand's buffer; NULL if there is none. For all copies of shared memory it is that of the first. */
static unsigned char *base_of(const struct tt_work *work, const struct tt_operand *operand)
{
  uint8_t buffer = operand->buffer;
  if (buffer == TT_MEMBER_INPUT)
    return (unsigned char *)(uintptr_t)work->member_inputs[operand->peer]; /* only ever read */
  if (buffer == TT_MEMBER_OUTPUT) return work->member_outputs[operand->peer];
  if (buffer == TT_SHARED) return work->shared;
  if (buffer == TT_MULTICAST) return work->copies[0];
  if (buffer >= TT_SCRATCH) return work->scratch == NULL ? NULL : work->scratch[buffer - TT_SCRATCH];
  return buffer == TT_INPUT ? (unsigned char *)(uintptr_t)work->input /* only ever read */ : work->output;
}

/* A chunk of an operand's buffer, or of TT_RESULT, in the strand's loop. */
static struct tt_host_piece find_chunk(const struct tt_host_strand *strand, const struct tt_operand *operand,
                                       uint32_t chunk)
{
  uint8_t buffer = operand->buffer;
  const struct tt_work_channel *channel = strand->channel->work;
  const struct tt_geometry *geometry = &channel->geometry;
  uint32_t parts = channel->program->parts, part = chunk % parts;
  size_t element_bytes = strand->run->element_bytes, offset;
  size_t elements = tt_geometry_part(geometry, parts, strand->loop, part, &offset);
  struct tt_host_piece piece = {.bytes = elements * element_bytes};
  if (buffer == TT_RESULT || elements == 0) return piece;
  unsigned char *base = base_of(strand->run->work, operand);
  if (base == NULL) return piece;
  bool shared = buffer == TT_SHARED || buffer == TT_MULTICAST;
  bool users = buffer == TT_MEMBER_INPUT || buffer == TT_MEMBER_OUTPUT;
  if (buffer >= TT_SCRATCH && !users)
    offset = (shared ? geometry->shared_lo : geometry->scratch_lo) + part * geometry->chunk;
  piece.local = base + (offset + chunk / parts * stride_of(geometry, buffer)) * element_bytes;
  return piece;
}

struct tt_host_piece tt_host_piece(const struct tt_host_strand *strand, const struct tt_host_operand *operand,
                                   uint32_t piece)
{
  if (operand->count == 1) return (struct tt_host_piece){operand->local, operand->bytes};
  return find_chunk(strand, operand->source, tt_operand_piece(operand->source, strand->repetition, piece));
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
  if (operand->count == 0 && work->protocol != TT_PROTO_SIMPLE)
    return bad_program(strand, number, "a message without data needs the protocol SIMPLE");
  if (operand->bytes > tt_conn_capacity(conn->slot_bytes[work->protocol], work->protocol))
    return bad_program(strand, number, "the message is larger than a slot of its connection");
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

/* Finds the operand's memory, and counts its bytes as a message has them. */
static ncclResult_t measure(const struct tt_host_strand *strand, uint32_t number)
{
  struct tt_host_operand *operand = &strand->operands[number];
  const struct tt_operand *source = operand->source;
  bool missing = source->buffer != TT_RESULT && base_of(strand->run->work, source) == NULL;
  size_t next = 0;
  for (uint32_t p = 0; p < operand->count; p++) {
    struct tt_host_piece piece = find_chunk(strand, source, tt_operand_piece(source, strand->repetition, p));
    if (piece.bytes > 0 && missing) return bad_program(strand, number, "the buffer it names is NULL on this rank");
    if (operand->count == 1) operand->local = piece.local;
    operand->bytes = next + piece.bytes;
    next = tt_host_next_piece(next, piece.bytes);
  }
  return ncclSuccess;
}

static ncclResult_t resolve_one(struct tt_host_strand *strand, uint32_t number, const struct tt_operand *source)
{
  const struct tt_host_run *run = strand->run;
  struct tt_host_operand *operand = &strand->operands[number];
  memset(operand, 0, sizeof(*operand));
  operand->source = source;
  operand->kind = source->kind;
  operand->count = (uint32_t)source->count;
  operand->result = source->kind == TT_SRC || source->kind == TT_DST || source->buffer == TT_RESULT;
  TT_TRY(measure(strand, number));
  operand->scaled = run->scale && (source->buffer == TT_INPUT || source->buffer == TT_MEMBER_INPUT) &&
                    (source->kind == TT_SRC || source->kind == TT_SEND);
  if (source->kind == TT_SEND || source->kind == TT_RECV) TT_TRY(connect(strand, number, source->peer));
  if (operand->result) {
    strand->reduced = false;
  } else {
    strand->pending++;
    operand->data = operand->local;
  }
  return ncclSuccess;
}

/* Whether what the operand receives by LL cannot be unpacked to its place: it is reduced, or a list. */
static bool is_unpacked(const struct tt_host_operand *operand)
{
  return operand->kind == TT_RECV && (operand->result || operand->count > 1);
}

/* Gives each of those a place. */
static ncclResult_t place_unpacked(struct tt_host_strand *strand, uint32_t noperands)
{
  size_t needed = 0;
  for (uint32_t k = 0; k < noperands; k++) {
    const struct tt_host_operand *operand = &strand->operands[k];
    if (is_unpacked(operand)) needed += (operand->bytes + 63) / 64 * 64;
  }
  if (needed > strand->unpacked_bytes) {
    tt_host_strand_clear(strand);
    TT_TRY(TT_POOL_NEW(strand->run->work->pool, &strand->unpacked, needed));
    strand->unpacked_bytes = needed;
  }
  size_t used = 0;
  for (uint32_t k = 0; k < noperands; k++) {
    struct tt_host_operand *operand = &strand->operands[k];
    if (!is_unpacked(operand)) continue;
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
  if (strand->run->work->protocol == TT_PROTO_LL) TT_TRY(place_unpacked(strand, instruction->noperands));
  strand->resolved = true;
  return ncclSuccess;
}
