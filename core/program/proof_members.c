/* User buffers of members: whose an operand means, and which ranks' buffers others reach. Such buffers are the same
 * cells as their owner sees, in proof_memory.c; when others may touch them is the rule of proof_shared.c. */
#include "program/proof.h"

bool tt_proof_is_members(const struct tt_operand *operand)
{
  return operand->buffer == TT_MEMBER_INPUT || operand->buffer == TT_MEMBER_OUTPUT;
}

bool tt_proof_uses_members(const struct tt_program *program)
{
  for (uint32_t i = 0; program->nmembers && i < program->noperands; i++)
    if (tt_proof_is_members(&program->operands[i])) return true;
  return false;
}

bool tt_proof_is_reached(const struct tt_proof *proof, int step, int32_t rank)
{
  const struct tt_program *program = proof->steps[step].programs[rank];
  for (uint32_t i = 0; i < program->nmembers; i++) {
    const struct tt_program *member = proof->steps[step].programs[program->members[i]];
    if (member && tt_proof_uses_members(member)) return true;
  }
  return false;
}

int32_t tt_proof_owner(const struct tt_proof *proof, const struct tt_proof_strand *strand,
                       const struct tt_operand *operand, uint8_t *buffer)
{
  *buffer = operand->buffer;
  if (!tt_proof_is_members(operand)) return strand->rank;
  *buffer = operand->buffer == TT_MEMBER_INPUT ? TT_INPUT : TT_OUTPUT;
  return proof->ranks[strand->rank].program->members[operand->peer];
}
