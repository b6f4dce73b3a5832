/* What can be said about one program by itself: indices are in range, a direction of a connection has one owner, and
 * the operands of a reduction are of one length. An executor may trust a program that passed. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "program/proof.h"

struct checker {
  const struct tt_program *program;
  char *why;
  size_t why_size;
  uint32_t strand, instruction; /* where it is */
};

static bool fail(const struct checker *checker, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail_at(const struct checker *checker, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(const struct checker *checker, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  if (checker->why_size) vsnprintf(checker->why, checker->why_size, format, arguments);
  va_end(arguments);
  return false;
}

static bool fail_at(const struct checker *checker, const char *format, ...)
{
  char reason[160];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof(reason), format, arguments);
  va_end(arguments);
  return fail(checker, "strand %u, instruction %u: %s", checker->strand, checker->instruction, reason);
}

static bool check_head(const struct checker *checker)
{
  const struct tt_program *program = checker->program;
  uint32_t input_blocks, output_blocks;
  if (program->size < sizeof(*program) || program->version != TT_PROGRAM_VERSION)
    return fail(checker, "size %zu, version %u: written for another version than %d", program->size, program->version,
                TT_PROGRAM_VERSION);
  if (program->algorithm < 0 || program->algorithm >= TT_NUM_ALGORITHMS)
    return fail(checker, "algorithm %d is unknown", program->algorithm);
  if (program->nranks < 1 || program->rank < 0 || program->rank >= program->nranks || program->root < 0 ||
      program->root >= program->nranks)
    return fail(checker, "rank %d, root %d of %d ranks", program->rank, program->root, program->nranks);
  if (program->parts < 1) return fail(checker, "a block has no parts");
  if (program->npeers > 2 * (uint32_t)program->nranks || program->nscratch > TT_MEMBER_INPUT - TT_SCRATCH)
    return fail(checker, "%u peers and %u scratch buffers are too many", program->npeers, program->nscratch);
  if (!tt_definition_blocks(program, &input_blocks, &output_blocks))
    return fail(checker, "collective %d has no definition", program->collective);
  if (program->input_blocks == input_blocks && program->output_blocks == output_blocks) return true;
  return fail(checker, "%u input and %u output blocks; the collective has %u and %u here", program->input_blocks,
              program->output_blocks, input_blocks, output_blocks);
}

static bool check_peers(const struct checker *checker)
{
  const struct tt_program *program = checker->program;
  unsigned char *seen = calloc(2 * (size_t)program->nranks, 1); /* networks behind the ranks */
  bool good = seen || fail(checker, "out of memory");
  for (uint32_t i = 0; good && i < program->npeers; i++) {
    int32_t peer = program->peers[i];
    bool network = peer < 0, in_range = network ? peer > TT_PEER_NETWORK - program->nranks : peer < program->nranks;
    if (network) peer = program->nranks + TT_PEER_NETWORK - peer;
    if (!in_range || peer == program->rank || seen[peer])
      good = fail(checker, "peer %u is rank %d: out of range, itself, or named twice", i, program->peers[i]);
    else if (network && !tt_definition_reduces(program->collective))
      good = fail(checker, "peer %u is a network that reduces, but the collective does not", i);
    else
      seen[peer] = 1;
  }
  free(seen);
  return good;
}

/* Memory that is shared has members, this rank among them. Members without such memory use each other's buffers. */
static bool check_members(const struct checker *checker)
{
  const struct tt_program *program = checker->program;
  bool own = false;
  if ((program->shared_blocks && !program->nmembers) || program->nmembers > (uint32_t)program->nranks)
    return fail(checker, "%u blocks are shared by %u members", program->shared_blocks, program->nmembers);
  for (uint32_t i = 0; i < program->nmembers; i++) {
    int32_t member = program->members[i];
    if (member < 0 || member >= program->nranks || (i && member <= program->members[i - 1]))
      return fail(checker, "member %u is rank %d: out of range or order", i, member);
    own |= member == program->rank;
  }
  return own || !program->nmembers || fail(checker, "the rank itself is not among its members");
}

static bool is_members(const struct tt_operand *operand)
{
  return operand->buffer == TT_MEMBER_INPUT || operand->buffer == TT_MEMBER_OUTPUT;
}

/* Chunks that a member's buffer has. */
static uint64_t chunks_of_member(const struct tt_program *program, const struct tt_operand *operand)
{
  uint32_t input_blocks, output_blocks;
  struct tt_program member = *program;
  member.rank = program->members[operand->peer];
  /* Who is sent to has the output of a receive. */
  bool sends = program->collective == TT_FUNC_SEND || program->collective == TT_FUNC_SEND_RECV;
  if (sends && member.rank != program->rank) member.collective = TT_FUNC_RECV;
  if (!tt_definition_blocks(&member, &input_blocks, &output_blocks)) return 0;
  return (uint64_t)(operand->buffer == TT_MEMBER_INPUT ? input_blocks : output_blocks) * program->parts;
}

/* Chunks that a buffer has; 0 for a buffer that this rank has not. */
static uint64_t chunks_of(const struct tt_program *program, const struct tt_operand *operand)
{
  uint8_t buffer = operand->buffer;
  if (is_members(operand)) return chunks_of_member(program, operand);
  uint64_t blocks = buffer == TT_INPUT                                    ? program->input_blocks
                    : buffer == TT_SHARED || buffer == TT_MULTICAST       ? program->shared_blocks
                    : buffer == TT_OUTPUT                                 ? program->output_blocks
                    : (uint32_t)(buffer - TT_SCRATCH) < program->nscratch ? program->scratch_blocks
                                                                          : 0;
  return blocks * program->parts;
}

static bool is_local(const struct tt_operand *operand)
{
  return operand->kind == TT_SRC || operand->kind == TT_DST;
}

static bool check_operand(const struct checker *checker, const struct tt_operand *operand)
{
  const struct tt_program *program = checker->program;
  if (operand->kind > TT_SEND) return fail_at(checker, "operand kind %d is unknown", operand->kind);
  if (is_members(operand) && !is_local(operand))
    return fail_at(checker, "a message names a member's buffer, %d", operand->buffer);
  if (is_members(operand) && operand->peer >= program->nmembers)
    return fail_at(checker, "member index %d of %u", operand->peer, program->nmembers);
  if (is_local(operand) ? operand->peer != 0 && !is_members(operand) : operand->peer >= program->npeers)
    return fail_at(checker, "peer index %d of %u", operand->peer, program->npeers);
  if (operand->modulo < 1) return fail_at(checker, "modulo %d is below 1", operand->modulo);
  bool empty = operand->count == 0 && !is_local(operand) && program->peers[operand->peer] >= 0;
  if (empty && operand->buffer != TT_INPUT)
    return fail_at(checker, "a message without data names buffer %d", operand->buffer);
  if (empty) return true;
  if (operand->count < 1 || (operand->buffer != TT_RESULT && operand->count > operand->modulo))
    return fail_at(checker, "a list of %d out of %d chunks", operand->count, operand->modulo);
  if (!is_local(operand) && program->peers[operand->peer] < 0 && operand->count != 1)
    return fail_at(checker, "a list of %d chunks in a message with a network", operand->count);
  if (operand->buffer == TT_RESULT)
    return is_local(operand) ? fail_at(checker, "a source or destination names the result") : true;
  if (operand->buffer == TT_MULTICAST && !is_local(operand)) return fail_at(checker, "a message to or from all copies");
  bool stores = operand->kind == TT_DST || operand->kind == TT_RECV;
  if (stores && (operand->buffer == TT_INPUT || operand->buffer == TT_MEMBER_INPUT))
    return fail_at(checker, "the user's input would be written");
  uint64_t chunks = chunks_of(program, operand);
  if ((uint64_t)operand->modulo > chunks) {
    return fail_at(checker, "chunks up to %d of buffer %d, which has %llu", operand->modulo - 1, operand->buffer,
                   (unsigned long long)chunks);
  }
  return true;
}

/* Operands with the same chunks agree at once; others are compared piece by piece, at each repetition. */
static bool check_parts(const struct checker *checker, const struct tt_instruction *instruction,
                        const struct tt_operand *one, const struct tt_operand *other)
{
  uint32_t parts = checker->program->parts;
  if (one->count != other->count)
    return fail_at(checker, "reduces a list of %d chunks with one of %d", one->count, other->count);
  bool same = one->start == other->start && one->stride == other->stride && one->modulo == other->modulo &&
              one->step == other->step;
  if (same || parts == 1) return true;
  for (uint32_t i = 0; i < instruction->repeat; i++) {
    for (uint32_t piece = 0; piece < (uint32_t)one->count; piece++) {
      if (tt_operand_piece(one, i, piece) % parts == tt_operand_piece(other, i, piece) % parts) continue;
      return fail_at(checker, "repetition %u reduces chunks of different parts", i);
    }
  }
  return true;
}

static bool check_data(const struct checker *checker, const struct tt_instruction *instruction)
{
  const struct tt_program *program = checker->program;
  const struct tt_operand *first = NULL;
  bool inputs = false, outputs = false;
  if (instruction->first_operand > program->noperands ||
      instruction->noperands > program->noperands - instruction->first_operand || !instruction->noperands)
    return fail_at(checker, "operands %u + %u of %u", instruction->first_operand, instruction->noperands,
                   program->noperands);
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    if (!check_operand(checker, operand)) return false;
    if (!is_local(operand) && operand->buffer != TT_RESULT) continue; /* a move */
    inputs |= operand->kind == TT_SRC || operand->kind == TT_RECV;
    outputs |= operand->kind == TT_DST || operand->kind == TT_SEND;
    if (!first)
      first = operand;
    else if (!check_parts(checker, instruction, first, operand))
      return false;
  }
  if (inputs != outputs) return fail_at(checker, inputs ? "a result goes nowhere" : "a result comes from nowhere");
  if (!(instruction->flags & TT_FLAG_FINAL)) return true;
  if (!inputs || !tt_definition_reduces(program->collective)) return fail_at(checker, "final, but nothing is reduced");
  return true;
}

static bool check_instruction(const struct checker *checker, const struct tt_instruction *instruction)
{
  if (instruction->flags & ~TT_FLAG_FINAL) return fail_at(checker, "flags %#x are unknown", instruction->flags);
  if (!instruction->repeat) return fail_at(checker, "it is repeated zero times");
  switch (instruction->opcode) {
  case TT_OP_DATA:
    return check_data(checker, instruction);
  case TT_OP_SIGNAL:
  case TT_OP_WAIT:
    if (instruction->semaphore >= checker->program->nsemaphores)
      return fail_at(checker, "semaphore %d of %u", instruction->semaphore, checker->program->nsemaphores);
    if (instruction->noperands || instruction->flags) return fail_at(checker, "a semaphore takes no operands or flags");
    return true;
  default:
    return fail_at(checker, "opcode %d is unknown", instruction->opcode);
  }
}

/* Who owns the two sides of a peer's connections or of a semaphore: strand + 1, and the instruction + 1 that used it
 * last; 0: nobody. Side 0: receives, waits; side 1: sends, signals. */
struct owner {
  uint32_t strand[2], instruction[2];
};

static bool take(const struct checker *checker, struct owner *owner, int side, const char *what, uint32_t index,
                 bool once)
{
  if (owner->strand[side] && owner->strand[side] != checker->strand + 1)
    return fail_at(checker, "%s %u is used by strand %u too", what, index, owner->strand[side] - 1);
  /* Within an instruction nothing is ordered, so two messages to one peer could change places. */
  if (once && owner->instruction[side] == checker->instruction + 1)
    return fail_at(checker, "%s %u is used twice in one instruction", what, index);
  owner->strand[side] = checker->strand + 1;
  owner->instruction[side] = checker->instruction + 1;
  return true;
}

static bool take_owners(const struct checker *checker, const struct tt_instruction *instruction, struct owner *owners)
{
  const struct tt_program *program = checker->program;
  if (instruction->opcode != TT_OP_DATA) {
    return take(checker, &owners[program->npeers + instruction->semaphore], instruction->opcode == TT_OP_SIGNAL,
                "semaphore", instruction->semaphore, false);
  }
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    if (is_local(operand)) continue;
    if (!take(checker, &owners[operand->peer], operand->kind == TT_SEND, "a direction of peer", operand->peer, true))
      return false;
  }
  return true;
}

static bool check_strands(struct checker *checker)
{
  const struct tt_program *program = checker->program;
  struct owner *owners = calloc((size_t)program->npeers + program->nsemaphores + 1, sizeof(*owners));
  bool good = owners || fail(checker, "out of memory");
  uint32_t next = 0;
  for (uint32_t i = 0; good && i < program->nstrands; i++) {
    const struct tt_strand *strand = &program->strands[i];
    if (strand->first_instruction != next || strand->ninstructions > program->ninstructions - next)
      good = fail(checker, "strand %u: instructions %u + %u of %u, where %u should come next", i,
                  strand->first_instruction, strand->ninstructions, program->ninstructions, next);
    checker->strand = i;
    for (uint32_t j = 0; good && j < strand->ninstructions; j++) {
      checker->instruction = next + j;
      const struct tt_instruction *instruction = &program->instructions[next + j];
      good = check_instruction(checker, instruction) && take_owners(checker, instruction, owners);
    }
    next += good ? strand->ninstructions : 0;
  }
  if (good && next != program->ninstructions)
    good = fail(checker, "instructions from %u of %u on belong to no strand", next, program->ninstructions);
  if (good && !program->nstrands) good = fail(checker, "there are no strands");
  free(owners);
  return good;
}

ncclResult_t tt_program_check(const struct tt_program *program, char *why, size_t why_size)
{
  struct checker checker = {.program = program, .why = why, .why_size = why_size};
  if (why_size) why[0] = '\0';
  bool good = check_head(&checker) && check_peers(&checker) && check_members(&checker) && check_strands(&checker);
  return good ? ncclSuccess : ncclInternalError;
}
