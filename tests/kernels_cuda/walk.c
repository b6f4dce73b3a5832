/* See walk.h. */
#include "walk.h"

#include <check.h>
#include <stdlib.h>

static uint32_t conn_of(const struct tt_program *program, const struct tt_operand *operand)
{
  if (operand->kind == TT_SEND) return operand->peer;
  return operand->kind == TT_RECV ? program->npeers + operand->peer : UINT32_MAX;
}

static enum walk_kind kind_of(const struct tt_operand *operand)
{
  bool move = operand->buffer != TT_RESULT;
  if (operand->kind == TT_SEND && move) return WALK_SEND;
  if (operand->kind == TT_RECV && move) return WALK_RECEIVE;
  return operand->kind == TT_SRC || operand->kind == TT_RECV ? WALK_INPUT : WALK_OUTPUT;
}

static void add_operand(const struct tt_program *program, const struct tt_operand *source, uint32_t *uses,
                        struct walk_step *step)
{
  struct walk_operand *operand = &step->operands[step->noperands++];
  *operand = (struct walk_operand){
      .source = source, .kind = kind_of(source), .local = source->buffer != TT_RESULT && source->count > 0};
  operand->conn = conn_of(program, source);
  operand->message = operand->conn != UINT32_MAX;
  operand->chunk = tt_operand_piece(source, step->repetition, 0);
  if (operand->message) operand->use = uses[operand->conn]++;
  step->counts[operand->kind]++;
}

static void fill(const struct tt_program *program, uint32_t *uses, struct walk_step *step)
{
  step->noperands = 0;
  for (int kind = 0; kind < WALK_KINDS; kind++) {
    step->counts[kind] = 0;
    for (uint32_t k = 0; step->instruction->opcode == TT_OP_DATA && k < step->instruction->noperands; k++) {
      const struct tt_operand *source = &program->operands[step->instruction->first_operand + k];
      if ((int)kind_of(source) == kind) add_operand(program, source, uses, step);
    }
  }
}

static void pass(const struct tt_program *program, uint32_t *uses, const uint32_t *all, walk_visit *visit,
                 void *context)
{
  struct walk_step *step = calloc(1, sizeof(*step));
  ck_assert_ptr_nonnull(step);
  for (step->strand = 0; step->strand < program->nstrands; step->strand++) {
    const struct tt_strand *strand = &program->strands[step->strand];
    step->number = 0;
    for (uint32_t i = 0; i < strand->ninstructions; i++) {
      step->index = strand->first_instruction + i;
      step->instruction = &program->instructions[step->index];
      for (step->repetition = 0; step->repetition < step->instruction->repeat; step->repetition++, step->number++) {
        fill(program, uses, step);
        for (uint32_t k = 0; all && k < step->noperands; k++)
          if (step->operands[k].message) step->operands[k].uses = all[step->operands[k].conn];
        if (visit) visit(context, step);
      }
    }
  }
  free(step);
}

void walk(const struct tt_program *program, walk_visit *visit, void *context)
{
  uint32_t *all = calloc(2 * (size_t)program->npeers + 1, sizeof(*all));
  uint32_t *uses = calloc(2 * (size_t)program->npeers + 1, sizeof(*uses));
  ck_assert(all && uses);
  pass(program, all, NULL, NULL, NULL);
  pass(program, uses, all, visit, context);
  free(all);
  free(uses);
}
