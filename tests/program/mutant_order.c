/* When the order of two instructions does not matter; see mutant.h. */
#include <stdlib.h>
#include "mutant.h"

static bool writes(const struct tt_operand *operand)
{
  return operand->kind == TT_DST || (operand->kind == TT_RECV && operand->buffer != TT_RESULT);
}

/* A number for the memory of a user's chunk, so that equal memory has equal numbers when in place. Members' buffers are
 * memory of theirs. */
static uint64_t memory_of(const struct tt_program *program, const struct tt_operand *operand, uint32_t chunk,
                          bool in_place)
{
  int32_t owner = is_of_member(program, operand) ? program->members[operand->peer] : program->rank;
  uint32_t own = (uint32_t)owner * program->parts;
  uint64_t rank = (uint64_t)owner << 48;
  uint8_t buffer = own_buffer(program, operand);
  uint64_t apart = (uint64_t)1 << 32;
  bool gathers = program->collective == TT_FUNC_ALL_GATHER || program->collective == TT_FUNC_GATHER;
  bool scatters = program->collective == TT_FUNC_REDUCE_SCATTER || program->collective == TT_FUNC_SCATTER;
  if (operand->buffer == TT_MULTICAST) return TT_SHARED * apart + chunk;
  if (!in_place || buffer >= TT_SCRATCH) return rank + buffer * apart + chunk;
  if (gathers && buffer == TT_INPUT) return rank + own + chunk;
  if (scatters && buffer == TT_OUTPUT) return rank + own + chunk;
  return rank + chunk;
}

static bool share_memory(const struct tt_program *program, const struct tt_operand *one, uint32_t one_chunk,
                         const struct tt_operand *other, uint32_t other_chunk)
{
  if (one->buffer == TT_RESULT || other->buffer == TT_RESULT || !(writes(one) || writes(other))) return false;
  for (int in_place = 0; in_place < 2; in_place++) {
    if (memory_of(program, one, one_chunk, in_place) == memory_of(program, other, other_chunk, in_place)) return true;
  }
  return false;
}

/* Whether any chunk that the one operand names at any repetition is one that the other names. */
static bool operands_share(const struct tt_program *program, const struct tt_instruction *one_instruction,
                           const struct tt_operand *one, const struct tt_instruction *other_instruction,
                           const struct tt_operand *other)
{
  for (uint32_t i = 0; i < one_instruction->repeat * (uint32_t)one->count; i++) {
    uint32_t chunk = tt_operand_piece(one, i / (uint32_t)one->count, i % (uint32_t)one->count);
    for (uint32_t j = 0; j < other_instruction->repeat * (uint32_t)other->count; j++) {
      uint32_t with = tt_operand_piece(other, j / (uint32_t)other->count, j % (uint32_t)other->count);
      if (share_memory(program, one, chunk, other, with)) return true;
    }
  }
  return false;
}

static bool is_empty(const struct tt_operand *operand)
{
  return (operand->kind == TT_SEND || operand->kind == TT_RECV) && !operand->count;
}

/* One is a message without data, and the other touches the memory that such messages are about. */
static bool is_told_of(const struct tt_program *program, const struct tt_operand *one, const struct tt_operand *other)
{
  bool shared = other->buffer == TT_SHARED || other->buffer == TT_MULTICAST || is_of_other_member(program, other);
  return is_empty(one) && shared;
}

static bool same_direction(const struct tt_operand *one, const struct tt_operand *other)
{
  return one->kind == other->kind && (one->kind == TT_SEND || one->kind == TT_RECV) && one->peer == other->peer;
}

/* Both are data. `connections`: those count too, not memory alone. `scratch_only`: the two are of different loops. */
static bool conflict(const struct tt_program *program, uint32_t one, uint32_t other, bool connections,
                     bool scratch_only)
{
  const struct tt_instruction *first = &program->instructions[one], *second = &program->instructions[other];
  for (uint32_t i = 0; i < first->noperands; i++) {
    for (uint32_t j = 0; j < second->noperands; j++) {
      const struct tt_operand *a = &program->operands[first->first_operand + i];
      const struct tt_operand *b = &program->operands[second->first_operand + j];
      if (connections && same_direction(a, b)) return true;
      if (is_told_of(program, a, b) || is_told_of(program, b, a)) return true;
      if (scratch_only && (a->buffer < TT_SCRATCH || b->buffer < TT_SCRATCH)) continue;
      if (operands_share(program, first, a, second, b)) return true;
    }
  }
  return false;
}

static bool is_data(const struct tt_program *program, uint32_t instruction)
{
  return program->instructions[instruction].opcode == TT_OP_DATA;
}

static bool uses(const struct tt_program *program, uint32_t instruction, uint8_t opcode, uint16_t semaphore)
{
  const struct tt_instruction *at = &program->instructions[instruction];
  return at->opcode == opcode && at->semaphore == semaphore;
}

/* The strand at the other side of a semaphore. */
static const struct tt_strand *other_side(const struct tt_program *program, uint32_t instruction)
{
  const struct tt_instruction *at = &program->instructions[instruction];
  uint8_t opcode = at->opcode == TT_OP_WAIT ? TT_OP_SIGNAL : TT_OP_WAIT;
  for (uint32_t strand = 0; strand < program->nstrands; strand++) {
    const struct tt_strand *list = &program->strands[strand];
    for (uint32_t i = 0; i < list->ninstructions; i++)
      if (uses(program, list->first_instruction + i, opcode, at->semaphore)) return list;
  }
  abort(); /* every semaphore of an emitter has both sides */
}

/* Whether the data shares memory with what the semaphore keeps it from, and nothing else does: with the data of the
 * other side from the k-th wait to the next where it comes before the k-th signal, and from the signal before to the
 * k-th where it comes behind the k-th wait. The first and the last of these stretches reach into another loop. */
static bool is_kept_apart(const struct tt_program *program, uint32_t data, uint32_t semaphore)
{
  const struct tt_instruction *use = &program->instructions[semaphore];
  const struct tt_strand *theirs = other_side(program, semaphore);
  bool signals = use->opcode == TT_OP_SIGNAL;
  uint32_t number = 0, total = 0, seen = 0, own = 0;
  while (program->strands[own].first_instruction + program->strands[own].ninstructions <= semaphore) own++;
  for (uint32_t i = 0; i < program->strands[own].ninstructions; i++) {
    uint32_t at = program->strands[own].first_instruction + i;
    if (!uses(program, at, use->opcode, use->semaphore)) continue;
    total++;
    if (at < semaphore) number++;
  }
  uint32_t begin = signals ? number + 1 : number, wrapped = signals && begin == total ? 0
                                                            : !signals && !begin      ? total
                                                                                      : begin;
  for (uint32_t i = 0; i < theirs->ninstructions; i++) {
    uint32_t at = theirs->first_instruction + i;
    if (uses(program, at, signals ? TT_OP_WAIT : TT_OP_SIGNAL, use->semaphore))
      seen++;
    else if (is_data(program, at) && seen == begin && conflict(program, data, at, false, false))
      return true;
    else if (is_data(program, at) && seen == wrapped && conflict(program, data, at, false, true))
      return true;
  }
  return false;
}

/* How often a strand uses a semaphore before it does so with another for the time numbered `number`, in a loop. */
static uint32_t uses_before(const struct tt_program *program, const struct tt_strand *list, uint8_t opcode,
                            uint16_t semaphore, uint8_t until_opcode, uint16_t until, uint32_t number)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < list->ninstructions; i++) {
    if (uses(program, list->first_instruction + i, until_opcode, until) && number-- == 0) break;
    count += uses(program, list->first_instruction + i, opcode, semaphore);
  }
  return count;
}

static bool may_swap_semaphores(const struct tt_program *program, uint32_t instruction)
{
  const struct tt_instruction *first = &program->instructions[instruction], *second = first + 1;
  if (first->opcode == second->opcode) return true;
  if (first->opcode == TT_OP_WAIT) return false;
  const struct tt_strand *own = &program->strands[0];
  while (own->first_instruction + own->ninstructions <= instruction) own++;
  uint32_t signals = 0, waits = 0;
  for (uint32_t i = own->first_instruction; i < instruction; i++) {
    signals += uses(program, i, TT_OP_SIGNAL, first->semaphore);
    waits += uses(program, i, TT_OP_WAIT, second->semaphore);
  }
  return uses_before(program, other_side(program, instruction + 1), TT_OP_WAIT, first->semaphore, TT_OP_SIGNAL,
                     second->semaphore, waits) <= signals;
}

/* Whether an instruction is nothing but messages without data of one kind. */
static bool is_only(const struct tt_program *program, uint32_t instruction, uint8_t kind)
{
  const struct tt_instruction *at = &program->instructions[instruction];
  bool only = at->noperands > 0;
  for (uint32_t i = 0; i < at->noperands; i++) {
    const struct tt_operand *operand = &program->operands[at->first_operand + i];
    only &= is_empty(operand) && operand->kind == kind;
  }
  return only;
}

/* Whether a rank's buffers are used by others, and it uses none of theirs. */
static bool is_idle(const struct tt_program *program)
{
  bool idle = program->algorithm == TT_ALGO_MAPPED;
  for (uint32_t i = 0; i < program->noperands; i++)
    idle &= program->operands[i].buffer != TT_MEMBER_INPUT && program->operands[i].buffer != TT_MEMBER_OUTPUT;
  return idle;
}

/* One writes what the other says may be read now. */
static bool is_fill_and_tell(const struct tt_program *program, uint32_t one, uint32_t other)
{
  return is_idle(program) && is_only(program, other, TT_SEND) && !is_only(program, one, TT_SEND) &&
         !is_only(program, one, TT_RECV);
}

bool may_swap(const struct tt_program *program, uint32_t instruction)
{
  uint32_t next = instruction + 1;
  bool first = is_data(program, instruction), second = is_data(program, next);
  /* It is answered; and before it tells others to begin, its buffers are as they shall be. */
  if (is_idle(program) && is_only(program, instruction, TT_SEND)) return false;
  if (is_fill_and_tell(program, instruction, next)) return false;
  if (first && second) return !conflict(program, instruction, next, true, false);
  if (!first && !second) return may_swap_semaphores(program, instruction);
  uint32_t semaphore = first ? next : instruction;
  bool wait = program->instructions[semaphore].opcode == TT_OP_WAIT;
  if (wait == first) return true;
  return !is_kept_apart(program, first ? instruction : next, semaphore);
}

static bool pair_is_independent(const struct tt_program *program, uint32_t one, uint32_t other)
{
  bool first = is_data(program, one), second = is_data(program, other);
  if (is_fill_and_tell(program, one, other)) return false;
  if (first && second) return !conflict(program, one, other, true, false);
  if (!first && !second) return false;
  const struct tt_strand *theirs = other_side(program, first ? other : one);
  for (uint32_t i = 0; i < theirs->ninstructions; i++) {
    uint32_t at = theirs->first_instruction + i;
    if (is_data(program, at) && conflict(program, first ? one : other, at, false, false)) return false;
  }
  return true;
}

bool may_split(const struct tt_program *program, uint32_t strand, uint32_t instruction)
{
  uint32_t begin = program->strands[strand].first_instruction, end = begin + program->strands[strand].ninstructions;
  for (uint32_t i = begin; i < instruction; i++) {
    for (uint32_t j = instruction; j < end; j++) {
      if (!pair_is_independent(program, i, j)) return false;
    }
  }
  return true;
}
