/* See progress.h. */
#include "plan/progress.h"

#include "base/check.h"

/* The end that an operand uses; NULL for local ones. */
static struct tt_progress_end *end_of(const struct tt_program *program, const struct tt_operand *operand,
                                      struct tt_progress_end *ends)
{
  if (operand->kind == TT_SEND) return &ends[operand->peer];
  if (operand->kind == TT_RECV) return &ends[program->npeers + operand->peer];
  return NULL;
}

void tt_progress_count(const struct tt_program *program, struct tt_progress_end *ends)
{
  for (uint32_t e = 0; e < 2 * program->npeers; e++) ends[e] = (struct tt_progress_end){0};
  for (uint32_t i = 0; i < program->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[i];
    if (instruction->opcode != TT_OP_DATA) continue;
    for (uint32_t k = 0; k < instruction->noperands; k++) {
      struct tt_progress_end *end = end_of(program, &program->operands[instruction->first_operand + k], ends);
      if (end != NULL) end->per_loop += instruction->repeat;
    }
  }
}

/* The loops that the strand has ended: those that all its connections are through. */
static uint64_t ended_loops(const struct tt_program *program, const struct tt_strand *strand, uint64_t loops,
                            struct tt_progress_end *ends)
{
  uint64_t ended = loops;
  for (uint32_t i = 0; i < strand->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[strand->first_instruction + i];
    for (uint32_t k = 0; instruction->opcode == TT_OP_DATA && k < instruction->noperands; k++) {
      struct tt_progress_end *end = end_of(program, &program->operands[instruction->first_operand + k], ends);
      if (end != NULL) ended = TT_MIN(ended, end->done / end->per_loop);
    }
  }
  return ended;
}

/* One repetition of an instruction. Whether it is not over. */
static bool is_at(const struct tt_program *program, const struct tt_instruction *instruction,
                  struct tt_progress_end *ends)
{
  bool at = false;
  for (uint32_t k = 0; k < instruction->noperands; k++) {
    struct tt_progress_end *end = end_of(program, &program->operands[instruction->first_operand + k], ends);
    if (end == NULL || end->seen++ < end->done) continue;
    end->current = true;
    at = true;
  }
  return at;
}

static void find_in_strand(const struct tt_program *program, const struct tt_strand *strand, uint64_t loops,
                           struct tt_progress_end *ends)
{
  uint64_t ended = ended_loops(program, strand, loops, ends);
  if (ended == loops) return;
  for (uint32_t i = 0; i < strand->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[strand->first_instruction + i];
    for (uint32_t k = 0; instruction->opcode == TT_OP_DATA && k < instruction->noperands; k++) {
      struct tt_progress_end *end = end_of(program, &program->operands[instruction->first_operand + k], ends);
      if (end != NULL) end->seen = ended * end->per_loop;
    }
  }
  for (uint32_t i = 0; i < strand->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[strand->first_instruction + i];
    for (uint32_t r = 0; instruction->opcode == TT_OP_DATA && r < instruction->repeat; r++)
      if (is_at(program, instruction, ends)) return;
  }
}

void tt_progress_find(const struct tt_program *program, uint64_t loops, struct tt_progress_end *ends)
{
  for (uint32_t e = 0; e < 2 * program->npeers; e++) ends[e].current = false;
  for (uint32_t s = 0; s < program->nstrands; s++) find_in_strand(program, &program->strands[s], loops, ends);
}
