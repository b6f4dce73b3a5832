/* Prints programs; see dump.h for the notation. */
#include <inttypes.h>
#include <stdbool.h>
#include "program/dump.h"
#include "program/emit.h"

/* (start + stride * i), or the number itself where it does not change. */
static void print_number(const struct tt_operand *operand, uint32_t repeat, uint32_t piece, FILE *out)
{
  if (repeat == 1 || !operand->stride) {
    fprintf(out, "%" PRIu32, tt_operand_piece(operand, 0, piece));
    return;
  }
  int64_t step = operand->stride < 0 ? -(int64_t)operand->stride : operand->stride;
  fprintf(out, "%" PRId64 "%c", operand->start + (int64_t)piece * operand->step, operand->stride < 0 ? '-' : '+');
  if (step != 1) fprintf(out, "%" PRId64, step);
  fputc('i', out);
}

static void print_buffer(const struct tt_program *program, const struct tt_operand *operand, FILE *out)
{
  if (operand->buffer == TT_SHARED || operand->buffer == TT_MULTICAST)
    fputs(operand->buffer == TT_SHARED ? "shared" : "multicast", out);
  else if (operand->buffer == TT_MEMBER_INPUT || operand->buffer == TT_MEMBER_OUTPUT)
    fprintf(out, "%s of %" PRId32, operand->buffer == TT_MEMBER_INPUT ? "input" : "output",
            program->members[operand->peer]);
  else if (operand->buffer >= TT_SCRATCH)
    fprintf(out, "scratch%d", operand->buffer - TT_SCRATCH);
  else
    fputs(operand->buffer == TT_INPUT ? "input" : "output", out);
}

static void print_chunk(const struct tt_program *program, const struct tt_operand *operand, uint32_t repeat, FILE *out)
{
  if (!operand->count) {
    fputs("nothing", out);
    return;
  }
  print_buffer(program, operand, out);
  fputc('[', out);
  print_number(operand, repeat, 0, out);
  if (operand->count > 1) {
    fputs("..", out);
    print_number(operand, repeat, (uint32_t)operand->count - 1, out);
    if (operand->step != 1) fprintf(out, " step %" PRId32, operand->step);
  }
  if (operand->count > 1 || (repeat > 1 && operand->stride)) fprintf(out, " mod %" PRId32, operand->modulo);
  fputc(']', out);
}

static void print_peer(const struct tt_program *program, const struct tt_operand *operand, FILE *out)
{
  int32_t peer = program->peers[operand->peer];
  fprintf(out, "%s %s%" PRId32, operand->kind == TT_SEND ? "send" : "recv", peer < 0 ? "network " : "",
          peer < 0 ? TT_PEER_NETWORK - peer : peer);
}

static bool is_move(const struct tt_operand *operand)
{
  return (operand->kind == TT_SEND || operand->kind == TT_RECV) && operand->buffer != TT_RESULT;
}

/* One side of the reduction. Returns whether there was anything. */
static bool print_side(const struct tt_program *program, const struct tt_instruction *instruction, bool inputs,
                       FILE *out)
{
  const char *between = "";
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    bool is_input = operand->kind == TT_SRC || operand->kind == TT_RECV;
    if (is_move(operand) || is_input != inputs) continue;
    fputs(between, out);
    between = inputs ? " + " : ", ";
    if (operand->buffer == TT_RESULT)
      print_peer(program, operand, out);
    else
      print_chunk(program, operand, instruction->repeat, out);
  }
  return *between != '\0';
}

static void print_moves(const struct tt_program *program, const struct tt_instruction *instruction, const char *between,
                        FILE *out)
{
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    if (!is_move(operand)) continue;
    fputs(between, out);
    between = ", ";
    if (operand->kind == TT_SEND) print_peer(program, operand, out);
    if (operand->kind == TT_RECV) print_chunk(program, operand, instruction->repeat, out);
    fputs(" <- ", out);
    if (operand->kind == TT_SEND) print_chunk(program, operand, instruction->repeat, out);
    if (operand->kind == TT_RECV) print_peer(program, operand, out);
  }
}

static void print_instruction(const struct tt_program *program, uint32_t index, FILE *out)
{
  const struct tt_instruction *instruction = &program->instructions[index];
  char repeat[16] = "";
  if (instruction->repeat > 1) snprintf(repeat, sizeof(repeat), "x%" PRIu32, instruction->repeat);
  fprintf(out, "  %-3" PRIu32 "%-5s", index, repeat);
  if (instruction->opcode == TT_OP_DATA) {
    bool reduces = print_side(program, instruction, true, out);
    if (reduces) {
      fputs(" -> ", out);
      print_side(program, instruction, false, out);
    }
    print_moves(program, instruction, reduces ? "; " : "", out);
    if (instruction->flags & TT_FLAG_FINAL) fputs("  final", out);
  } else {
    fprintf(out, "%s %d", instruction->opcode == TT_OP_SIGNAL ? "signal" : "wait", instruction->semaphore);
  }
  fputc('\n', out);
}

void tt_program_print(const struct tt_program *program, FILE *out)
{
  fprintf(out, "%s %s: rank %" PRId32 " of %" PRId32, tt_collective_name(program->collective),
          tt_algorithm_name(program->algorithm), program->rank, program->nranks);
  if (tt_collective_has_root(program->collective)) fprintf(out, ", root %" PRId32, program->root);
  fprintf(out, ", parts %" PRIu32 ", input %" PRIu32 ", output %" PRIu32 "\n", program->parts, program->input_blocks,
          program->output_blocks);
  if (program->nmembers) {
    if (program->shared_blocks)
      fprintf(out, "shared %" PRIu32 " by", program->shared_blocks);
    else
      fputs("members", out);
    for (uint32_t i = 0; i < program->nmembers; i++) fprintf(out, " %" PRId32, program->members[i]);
    fputc('\n', out);
  }
  for (uint32_t strand = 0; strand < program->nstrands; strand++) {
    fprintf(out, "strand %" PRIu32 "\n", strand);
    for (uint32_t i = 0; i < program->strands[strand].ninstructions; i++)
      print_instruction(program, program->strands[strand].first_instruction + i, out);
  }
}
