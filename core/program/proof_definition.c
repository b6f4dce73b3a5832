/* The collectives' definitions: what buffers a rank has, what is the same memory when in place, and what the output
 * must hold in the end. Everything here follows from nccl.h, nothing from an emitter. */
#include "program/proof.h"

bool tt_definition_is_message(int collective)
{
  return collective == TT_FUNC_SEND || collective == TT_FUNC_RECV || collective == TT_FUNC_SEND_RECV;
}

bool tt_definition_reduces(int collective)
{
  return collective == TT_FUNC_ALL_REDUCE || collective == TT_FUNC_REDUCE || collective == TT_FUNC_REDUCE_SCATTER;
}

bool tt_definition_blocks(const struct tt_program *program, uint32_t *input_blocks, uint32_t *output_blocks)
{
  bool root = program->rank == program->root;
  *input_blocks = *output_blocks = 1;
  switch (program->collective) {
  case TT_FUNC_ALL_REDUCE:
  case TT_FUNC_SEND_RECV: /* from the first peer, to the last one */
    return true;
  case TT_FUNC_BROADCAST:
    *input_blocks = root ? 1 : 0;
    return true;
  case TT_FUNC_REDUCE:
    *output_blocks = root ? 1 : 0;
    return true;
  case TT_FUNC_ALL_GATHER:
    *output_blocks = (uint32_t)program->nranks;
    return true;
  case TT_FUNC_REDUCE_SCATTER:
    *input_blocks = (uint32_t)program->nranks;
    return true;
  case TT_FUNC_ALL_TO_ALL:
    *input_blocks = *output_blocks = (uint32_t)program->nranks;
    return true;
  case TT_FUNC_SCATTER:
    *input_blocks = root ? (uint32_t)program->nranks : 0;
    return true;
  case TT_FUNC_GATHER:
    *output_blocks = root ? (uint32_t)program->nranks : 0;
    return true;
  case TT_FUNC_SEND: /* without a peer: to itself, a copy */
    *output_blocks = program->npeers ? 0 : 1;
    return true;
  case TT_FUNC_RECV:
    *input_blocks = program->npeers ? 0 : 1;
    return true;
  default:
    return false;
  }
}

uint32_t tt_definition_in_place_block(const struct tt_program *program, bool *inside_output)
{
  *inside_output = program->collective == TT_FUNC_ALL_GATHER || program->collective == TT_FUNC_GATHER;
  bool blocks =
      *inside_output || program->collective == TT_FUNC_REDUCE_SCATTER || program->collective == TT_FUNC_SCATTER;
  return blocks ? (uint32_t)program->rank : 0;
}

static uint64_t sum_of_all(const struct tt_proof *proof, int step, uint32_t block, uint32_t part, uint32_t loop)
{
  uint64_t sum = 0;
  for (int32_t rank = 0; rank < proof->nranks; rank++) sum += tt_proof_leaf_sum(step, rank, block, part, loop);
  return sum;
}

/* The sum of hashes that an output chunk must have. */
static uint64_t wanted_sum(struct tt_proof *proof, const struct tt_program *program, int step, uint32_t chunk,
                           uint32_t loop)
{
  uint32_t block = chunk / program->parts, part = chunk % program->parts;
  struct tt_reference *reference;
  switch (program->collective) {
  case TT_FUNC_ALL_REDUCE:
    reference = &proof->references[step][(size_t)part * proof->steps[step].loops + loop];
    if (!reference->summed) reference->sum = sum_of_all(proof, step, 0, part, loop);
    reference->summed = true;
    return reference->sum;
  case TT_FUNC_REDUCE:
    return sum_of_all(proof, step, 0, part, loop);
  case TT_FUNC_REDUCE_SCATTER:
    return sum_of_all(proof, step, (uint32_t)program->rank, part, loop);
  case TT_FUNC_ALL_TO_ALL:
    return tt_proof_leaf_sum(step, (int32_t)block, (uint32_t)program->rank, part, loop);
  case TT_FUNC_SCATTER:
    return tt_proof_leaf_sum(step, program->root, (uint32_t)program->rank, part, loop);
  case TT_FUNC_GATHER:
  case TT_FUNC_ALL_GATHER:
    return tt_proof_leaf_sum(step, (int32_t)block, 0, part, loop);
  case TT_FUNC_BROADCAST:
    return tt_proof_leaf_sum(step, program->root, 0, part, loop);
  default: /* point to point */
    return tt_proof_leaf_sum(step, program->npeers ? program->peers[0] : program->rank, 0, part, loop);
  }
}

static bool check_chunk(struct tt_proof *proof, int32_t rank, uint32_t chunk, uint32_t loop)
{
  int step = proof->ranks[rank].step;
  const struct tt_program *program = proof->ranks[rank].program;
  bool reduces = tt_definition_reduces(program->collective);
  uint32_t wanted = reduces ? (uint32_t)proof->nranks : 1;
  struct tt_value value;
  const char *wrong = NULL;
  if (!tt_proof_output(proof, rank, chunk, loop, &value))
    wrong = "was never written";
  else if (value.count != wanted)
    wrong = "has too many or too few contributions";
  else if (value.sum != wanted_sum(proof, program, step, chunk, loop))
    wrong = "has wrong contributions";
  else if (value.scaled != reduces)
    wrong = "was not scaled once a contribution";
  else if (value.final != reduces)
    wrong = "did not become final once";
  else if (value.part != chunk % program->parts || value.loop != loop)
    wrong = "has another part's length";
  if (wrong) {
    return tt_proof_fail(proof, NULL, "step %d, rank %d, loop %u: output chunk %u %s", step, rank, loop, chunk, wrong);
  }
  if (!proof->same_everywhere || program->collective != TT_FUNC_ALL_REDUCE) return true;
  struct tt_reference *reference = &proof->references[step][(size_t)value.part * proof->steps[step].loops + loop];
  if (!reference->ordered) reference->order = value.order;
  reference->ordered = true;
  if (reference->order == value.order) return true;
  return tt_proof_fail(proof, NULL,
                       "step %d, rank %d, loop %u: output chunk %u was reduced in another order than on "
                       "other ranks",
                       step, rank, loop, chunk);
}

bool tt_definition_met(struct tt_proof *proof, int32_t rank)
{
  const struct tt_proof_rank *state = &proof->ranks[rank];
  const struct tt_program *program = state->program;
  for (uint32_t loop = 0; loop < proof->steps[state->step].loops; loop++) {
    for (uint32_t chunk = 0; chunk < program->output_blocks * program->parts; chunk++) {
      if (!check_chunk(proof, rank, chunk, loop)) return false;
    }
  }
  for (uint32_t i = 0; i < program->nsemaphores; i++) {
    if (!state->semaphores[i].value) continue;
    return tt_proof_fail(proof, NULL, "step %d, rank %d: semaphore %u is left at %llu", state->step, rank, i,
                         (unsigned long long)state->semaphores[i].value);
  }
  return true;
}
