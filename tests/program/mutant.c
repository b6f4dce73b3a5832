/* See mutant.h. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "mutant.h"

static void *copy_of(const void *array, size_t bytes, size_t room)
{
  void *copy = calloc(1, bytes + room + 1);
  ck_assert_ptr_nonnull(copy);
  if (bytes) memcpy(copy, array, bytes);
  return copy;
}

struct mutant *mutant_new(const struct tt_program *original)
{
  struct mutant *mutant = calloc(1, sizeof(*mutant));
  ck_assert_ptr_nonnull(mutant);
  mutant->program = *original;
  struct tt_program *program = &mutant->program;
  size_t operands = program->noperands * sizeof(struct tt_operand);
  program->strands = mutant->strands =
      copy_of(original->strands, program->nstrands * sizeof(struct tt_strand), sizeof(struct tt_strand));
  program->instructions = mutant->instructions = copy_of(
      original->instructions, program->ninstructions * sizeof(struct tt_instruction), sizeof(struct tt_instruction));
  program->operands = mutant->operands = copy_of(original->operands, operands, operands + sizeof(struct tt_operand));
  program->peers = mutant->peers = copy_of(original->peers, program->npeers * sizeof(int32_t), sizeof(int32_t));
  program->members = mutant->members = copy_of(original->members, program->nmembers * sizeof(int32_t), sizeof(int32_t));
  return mutant;
}

void mutant_free(struct mutant *mutant)
{
  free(mutant->strands);
  free(mutant->instructions);
  free(mutant->operands);
  free(mutant->peers);
  free(mutant->members);
  free(mutant);
}

static uint32_t strand_of(const struct mutant *mutant, uint32_t instruction)
{
  uint32_t strand = 0;
  while (instruction >= mutant->strands[strand].first_instruction + mutant->strands[strand].ninstructions) strand++;
  return strand;
}

/* Moves the instructions behind by one, forth or back, and their strands with them. */
static void shift(struct mutant *mutant, uint32_t instruction, int by)
{
  uint32_t from = by > 0 ? instruction : instruction + 1;
  memmove(&mutant->instructions[(int64_t)from + by], &mutant->instructions[from],
          (mutant->program.ninstructions - from) * sizeof(*mutant->instructions));
  uint32_t strand = strand_of(mutant, instruction);
  mutant->strands[strand].ninstructions += (uint32_t)by;
  for (strand++; strand < mutant->program.nstrands; strand++) mutant->strands[strand].first_instruction += (uint32_t)by;
  mutant->program.ninstructions += (uint32_t)by;
}

void mutant_drop_instruction(struct mutant *mutant, uint32_t instruction)
{
  shift(mutant, instruction, -1);
}

void mutant_double_instruction(struct mutant *mutant, uint32_t instruction)
{
  shift(mutant, instruction, 1);
}

bool mutant_swap_instructions(struct mutant *mutant, uint32_t instruction)
{
  if (instruction + 1 >= mutant->program.ninstructions) return false;
  if (strand_of(mutant, instruction) != strand_of(mutant, instruction + 1)) return false;
  struct tt_instruction first = mutant->instructions[instruction];
  mutant->instructions[instruction] = mutant->instructions[instruction + 1];
  mutant->instructions[instruction + 1] = first;
  return true;
}

bool mutant_split_strand(struct mutant *mutant, uint32_t instruction)
{
  uint32_t strand = strand_of(mutant, instruction);
  struct tt_strand *first = &mutant->strands[strand];
  if (first->first_instruction == instruction) return false;
  memmove(first + 1, first, (mutant->program.nstrands - strand) * sizeof(*first));
  mutant->program.nstrands++;
  first[1].ninstructions = first->first_instruction + first->ninstructions - instruction;
  first[1].first_instruction = instruction;
  first->ninstructions = instruction - first->first_instruction;
  return true;
}

void mutant_drop_operand(struct mutant *mutant, uint32_t instruction, uint32_t operand)
{
  struct tt_instruction *changed = &mutant->instructions[instruction];
  struct tt_operand *at = &mutant->operands[changed->first_operand + operand];
  memmove(at, at + 1, (changed->noperands - operand - 1) * sizeof(*at));
  changed->noperands--;
}

void mutant_double_operand(struct mutant *mutant, uint32_t instruction, uint32_t operand)
{
  struct tt_instruction *changed = &mutant->instructions[instruction];
  uint32_t end = mutant->program.noperands;
  memcpy(&mutant->operands[end], &mutant->operands[changed->first_operand],
         changed->noperands * sizeof(*mutant->operands));
  mutant->operands[end + changed->noperands] = mutant->operands[end + operand];
  changed->first_operand = end;
  changed->noperands++;
  mutant->program.noperands += changed->noperands;
}
