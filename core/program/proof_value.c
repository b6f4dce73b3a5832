/* Symbolic values: where they begin, and how they are reduced. */
#include "program/proof.h"

/* The finalizer of splitmix64 (Steele, Lea and Flood, 2014): a bijection that mixes all bits. */
uint64_t tt_proof_mix(uint64_t bits)
{
  bits += 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

uint64_t tt_proof_leaf_sum(int step, int32_t rank, uint32_t block, uint32_t part, uint32_t loop)
{
  uint64_t hash = tt_proof_mix(((uint64_t)(uint32_t)rank << 32) | block);
  hash = tt_proof_mix(hash ^ (((uint64_t)part << 32) | loop));
  return tt_proof_mix(hash ^ (uint64_t)step);
}

struct tt_value tt_proof_leaf(int step, int32_t rank, uint32_t block, uint32_t part, uint32_t loop)
{
  uint64_t sum = tt_proof_leaf_sum(step, rank, block, part, loop);
  return (struct tt_value){.order = tt_proof_mix(sum), .sum = sum, .count = 1, .part = part, .loop = loop};
}

bool tt_proof_fold(struct tt_proof *proof, const struct tt_proof_strand *strand, struct tt_value *value,
                   const struct tt_value *input)
{
  if (value->count == 0) {
    *value = *input;
    return true;
  }
  if (value->final || input->final) return tt_proof_fail(proof, strand, "reduces a value that was already final");
  if (value->scaled != input->scaled) {
    return tt_proof_fail(proof, strand, "reduces a value scaled %d times with one scaled %d times", value->scaled,
                         input->scaled);
  }
  value->order = tt_proof_mix(tt_proof_mix(value->order) + input->order);
  value->sum += input->sum;
  value->count += input->count;
  return true;
}
