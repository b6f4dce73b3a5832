/* See pack.h. Operands are sorted by their role, and counted by connection, so that a thread finds the step of a
 * message by arithmetic. */
#include "kernels/cuda/pack.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/traits.h"

/* Products of repetitions and strides stay within 32 bits below this. */
#define MOST 65535

struct packer {
  const struct tt_program *program;
  struct tt_cuda_program *packed;
  struct tt_cuda_strand *strands;
  struct tt_cuda_instruction *instructions;
  struct tt_cuda_operand *operands;
  uint32_t *uses; /* of each end of a connection, in the instructions packed so far */
};

static bool is_message(const struct tt_operand *operand)
{
  return operand->kind == TT_SEND || operand->kind == TT_RECV;
}

static int role_of(const struct tt_operand *operand)
{
  bool result = operand->buffer == TT_RESULT;
  switch (operand->kind) {
  case TT_SRC:
    return TT_CUDA_IN_LOCAL;
  case TT_RECV:
    return result ? TT_CUDA_IN_RECV : TT_CUDA_MOVE_RECV;
  case TT_DST:
    return TT_CUDA_OUT_LOCAL;
  default:
    return result ? TT_CUDA_OUT_SEND : TT_CUDA_MOVE_SEND;
  }
}

/* Where roles stand among an instruction's operands: sends, inputs, outputs, receives. */
static int place_of(int role)
{
  static const int places[] = {[TT_CUDA_MOVE_SEND] = 0, [TT_CUDA_IN_LOCAL] = 1, [TT_CUDA_IN_RECV] = 1,
                               [TT_CUDA_OUT_LOCAL] = 2, [TT_CUDA_OUT_SEND] = 2, [TT_CUDA_MOVE_RECV] = 3};
  return places[role];
}

static ncclResult_t too_much(const char *what, uint64_t has, uint64_t most)
{
  return TT_FAIL(ncclInvalidUsage, "a program has %llu %s; the CUDA device can run %llu", (unsigned long long)has, what,
                 (unsigned long long)most);
}

static bool is_shared(const struct tt_operand *operand)
{
  return operand->buffer == TT_SHARED || operand->buffer == TT_MULTICAST;
}

/* A single repetition of local lists of equal length is as many repetitions, of a piece each. 0: no such lists. */
static uint32_t pieces_of(const struct tt_program *program, const struct tt_instruction *instruction)
{
  const struct tt_operand *first = &program->operands[instruction->first_operand];
  if (instruction->opcode != TT_OP_DATA || instruction->noperands == 0 || instruction->repeat != 1) return 0;
  for (uint32_t k = 0; k < instruction->noperands; k++)
    if (is_message(&first[k]) || first[k].count != first->count || first[k].count < 2) return 0;
  return (uint32_t)first->count;
}

static uint32_t repetitions_of(const struct tt_program *program, const struct tt_instruction *instruction)
{
  return TT_MAX(pieces_of(program, instruction), instruction->repeat);
}

static bool is_members(const struct tt_operand *operand)
{
  return operand->buffer == TT_MEMBER_INPUT || operand->buffer == TT_MEMBER_OUTPUT;
}

bool tt_cuda_is_mapped(const struct tt_program *program)
{
  return program->nmembers > 0 && program->shared_blocks == 0;
}

/* Messages without data are run where members' buffers are what they are about. */
static bool is_empty(const struct tt_operand *operand)
{
  return operand->count == 0 && is_message(operand);
}

/* `list`: it is one of an instruction's local lists. Kernels for shared memory know messages of no pieces too. */
static ncclResult_t check_operand(const struct tt_program *program, const struct tt_operand *operand, bool list)
{
  uint32_t nscratch = program->nscratch;
  bool shares = program->shared_blocks > 0;
  if (tt_cuda_is_mapped(program)) {
    if (is_empty(operand)) return ncclSuccess;
    if (is_message(operand))
      return TT_FAIL(ncclInvalidUsage, "a program with members' buffers has messages with data, which the CUDA device "
                                       "cannot run");
    if (is_members(operand) && operand->count == 1 && operand->modulo <= MOST) return ncclSuccess;
  }
  if (shares && is_empty(operand)) return ncclSuccess;
  if (operand->count != 1 && is_message(operand))
    return TT_FAIL(ncclInvalidUsage, "a program has a message of %d pieces; the CUDA device can run those of one",
                   operand->count);
  if (operand->count != 1 && !list)
    return TT_FAIL(ncclInvalidUsage, "a program has an operand of %d pieces; the CUDA device can run those of one",
                   operand->count);
  if (is_members(operand)) return TT_FAIL(ncclInternalError, "a program uses members' buffers, and has no members");
  if (is_shared(operand) && !shares)
    return TT_FAIL(ncclInternalError, "a program uses shared memory and has no blocks of it");
  if (!is_shared(operand) && operand->buffer != TT_RESULT && operand->buffer >= TT_SCRATCH + nscratch)
    return TT_FAIL(ncclInternalError, "a program uses buffer %u of %u", operand->buffer, TT_SCRATCH + nscratch);
  if (operand->modulo > MOST) return too_much("chunks", (uint64_t)operand->modulo, MOST);
  return ncclSuccess;
}

_Static_assert(2 * TT_CUDA_PEERS <= TT_CUDA_MAX_CONNS, "the core is told of no more peers than there is room for");

static ncclResult_t check(const struct tt_program *program)
{
  if (program->nstrands > TT_CUDA_MAX_STRANDS / 2)
    return too_much("strands", program->nstrands, TT_CUDA_MAX_STRANDS / 2);
  if (2 * program->npeers > TT_CUDA_MAX_CONNS)
    return too_much("connections", 2ull * program->npeers, TT_CUDA_MAX_CONNS);
  if (program->nsemaphores > TT_CUDA_MAX_SEMAPHORES)
    return too_much("semaphores", program->nsemaphores, TT_CUDA_MAX_SEMAPHORES);
  if (program->nscratch > TT_CUDA_MAX_SCRATCH)
    return too_much("scratch buffers", program->nscratch, TT_CUDA_MAX_SCRATCH);
  if (program->nmembers > TT_CUDA_MAX_CONNS) return too_much("members", program->nmembers, TT_CUDA_MAX_CONNS);
  if (tt_cuda_is_mapped(program) && program->nstrands != 1)
    return TT_FAIL(ncclInvalidUsage,
                   "a program with members' buffers has %u strands; the CUDA device can run those of "
                   "one",
                   program->nstrands);
  if (program->noperands > MOST || program->ninstructions > MOST)
    return too_much("operands", TT_MAX(program->noperands, program->ninstructions), MOST);
  for (uint32_t i = 0; i < program->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[i];
    if (instruction->repeat > MOST) return too_much("repetitions", instruction->repeat, MOST);
    if (instruction->opcode == TT_OP_DATA && instruction->noperands > UINT8_MAX)
      return too_much("operands in an instruction", instruction->noperands, UINT8_MAX);
  }
  bool shares = program->shared_blocks > 0;
  if (shares && program->nscratch > 0)
    return TT_FAIL(ncclInvalidUsage, "a program uses shared and scratch memory; the CUDA device can run only one");
  for (uint32_t i = 0; i < program->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[i];
    const bool lists = pieces_of(program, instruction) > 0;
    for (uint32_t k = 0; instruction->opcode == TT_OP_DATA && k < instruction->noperands; k++)
      TT_TRY(check_operand(program, &program->operands[instruction->first_operand + k], lists));
  }
  return ncclSuccess;
}

static uint32_t below(int64_t value, int32_t modulo)
{
  int64_t rest = value % modulo;
  return (uint32_t)(rest < 0 ? rest + modulo : rest);
}

static uint8_t buffer_of(const struct tt_operand *operand)
{
  if (operand->buffer == TT_SHARED) return TT_CUDA_SHARED;
  return operand->buffer == TT_MULTICAST ? TT_CUDA_MULTICAST : operand->buffer;
}

static void pack_operand(struct packer *packer, const struct tt_operand *from, bool list, struct tt_cuda_operand *to)
{
  *to = (struct tt_cuda_operand){
      .role = (uint8_t)role_of(from),
      .buffer = buffer_of(from),
      .conn = from->buffer == TT_MULTICAST ? TT_CUDA_OF_MULTICAST
              : is_members(from)           ? from->peer
                                           : 0,
  };
  if (from->count > 0) {
    to->start = below(from->start, from->modulo);
    to->stride = below(list ? from->step : from->stride, from->modulo);
    to->modulo = (uint32_t)from->modulo;
  }
  if (!is_message(from)) return;
  to->conn = (uint16_t)(from->kind == TT_SEND ? from->peer : packer->program->npeers + from->peer);
  to->uses_before = packer->uses[to->conn];
}

static void count_roles(const struct tt_cuda_operand *operand, struct tt_cuda_instruction *instruction)
{
  uint8_t *counts[] = {&instruction->nsends, &instruction->ninputs, &instruction->noutputs, &instruction->nreceives};
  ++*counts[place_of(operand->role)];
}

static void pack_instruction(struct packer *packer, const struct tt_instruction *from, struct tt_cuda_instruction *to)
{
  *to = (struct tt_cuda_instruction){.opcode = from->opcode,
                                     .flags = from->flags,
                                     .semaphore = from->semaphore,
                                     .repeat = repetitions_of(packer->program, from),
                                     .first_operand = (uint16_t)from->first_operand};
  if (from->opcode != TT_OP_DATA) return;
  struct tt_cuda_operand *out = packer->operands + from->first_operand;
  const struct tt_operand *in = packer->program->operands + from->first_operand;
  for (int place = 0; place < 4; place++)
    for (uint32_t k = 0; k < from->noperands; k++) {
      if (place_of(role_of(&in[k])) != place) continue;
      pack_operand(packer, &in[k], pieces_of(packer->program, from) > 0, out);
      count_roles(out++, to);
    }
  for (uint32_t k = 0; k < from->noperands; k++)
    if (is_message(&in[k]))
      packer->uses[in[k].kind == TT_SEND ? in[k].peer : packer->program->npeers + in[k].peer] += from->repeat;
}

static ncclResult_t pack_strand(struct packer *packer, const struct tt_strand *from, struct tt_cuda_strand *to)
{
  *to = (struct tt_cuda_strand){.first_instruction = (uint16_t)from->first_instruction,
                                .ninstructions = (uint16_t)from->ninstructions};
  for (uint32_t i = 0; i < from->ninstructions; i++) {
    const struct tt_instruction *instruction = &packer->program->instructions[from->first_instruction + i];
    struct tt_cuda_instruction *packed = &packer->instructions[from->first_instruction + i];
    pack_instruction(packer, instruction, packed);
    packed->first_repetition = to->repetitions;
    to->repetitions += packed->repeat;
    if (instruction->opcode == TT_OP_DATA)
      to->most_operands = (uint16_t)TT_MAX(to->most_operands, instruction->noperands);
  }
  uint32_t room = TT_CUDA_ENTRIES / packer->program->nstrands;
  return to->most_operands > room ? too_much("operands in an instruction", to->most_operands, room) : ncclSuccess;
}

static size_t round_up(size_t bytes)
{
  return (bytes + 15) / 16 * 16;
}

ncclResult_t tt_cuda_pack(const struct tt_program *program, struct tt_cuda_program **out)
{
  struct packer packer = {.program = program};
  ncclResult_t result;
  *out = NULL;
  TT_TRY(check(program));
  size_t strands = sizeof(struct tt_cuda_program);
  size_t instructions = round_up(strands + program->nstrands * sizeof(struct tt_cuda_strand));
  size_t operands = round_up(instructions + program->ninstructions * sizeof(struct tt_cuda_instruction));
  size_t bytes = round_up(operands + program->noperands * sizeof(struct tt_cuda_operand));
  if (bytes > TT_CUDA_PROGRAM_BYTES) return too_much("bytes in its packed form", bytes, TT_CUDA_PROGRAM_BYTES);
  TT_TRY_GOTO(TT_CALLOC(&packer.uses, 2 * (size_t)program->npeers + 1), result, out);
  packer.packed = calloc(1, bytes);
  if (packer.packed == NULL) {
    result = TT_FAIL(ncclSystemError, "no memory for a program of %zu bytes", bytes);
    goto out;
  }
  *packer.packed = (struct tt_cuda_program){.bytes = (uint32_t)bytes,
                                            .parts = program->parts,
                                            .nstrands = (uint16_t)program->nstrands,
                                            .npeers = (uint16_t)program->npeers,
                                            .nsemaphores = (uint16_t)program->nsemaphores,
                                            .instructions = (uint32_t)instructions,
                                            .operands = (uint32_t)operands};
  packer.strands = (struct tt_cuda_strand *)((char *)packer.packed + strands);
  packer.instructions = (struct tt_cuda_instruction *)((char *)packer.packed + instructions);
  packer.operands = (struct tt_cuda_operand *)((char *)packer.packed + operands);
  for (uint32_t s = 0; s < program->nstrands; s++)
    TT_TRY_GOTO(pack_strand(&packer, &program->strands[s], &packer.strands[s]), result, out);
  for (uint32_t k = 0; k < program->noperands; k++)
    if (packer.operands[k].role != TT_CUDA_IN_LOCAL && packer.operands[k].role != TT_CUDA_OUT_LOCAL)
      packer.operands[k].uses_a_loop = packer.uses[packer.operands[k].conn];
  *out = packer.packed;
  packer.packed = NULL;
out:
  free(packer.uses);
  free(packer.packed);
  return result;
}
