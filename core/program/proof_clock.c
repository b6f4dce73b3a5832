/* What happened before what, by vector clocks with an entry for each strand of each watched rank. Ranks with a single
 * strand need no watching, since program order is all they have. Above MAX_WATCHED ranks a sample is watched, drawn by
 * the seed and smaller where ranks have many strands, with all ranks that use semaphores if those are not too many: a
 * clock goes with each message, so its length matters.
 *
 * A strand's events are numbered e = 1, 2, ...; its entry is 2e once the inputs of its e-th reduction have been read,
 * which is what a message that carries the result proves, and 2e + 1 once all of the instruction is done. That a slot
 * was freed proves nothing here: a program must be right for any number of slots. */
#include <stdlib.h>
#include <string.h>
#include "program/proof.h"

enum { MAX_WATCHED = 64, SAMPLED_STRANDS = 2 * MAX_WATCHED };

static uint32_t most_strands(const struct tt_proof *proof, int32_t rank, bool *semaphores)
{
  uint32_t most = 0;
  *semaphores = false;
  for (int step = 0; step < proof->nsteps; step++) {
    const struct tt_program *program = proof->steps[step].programs[rank];
    if (!program) continue;
    if (program->nstrands > most) most = program->nstrands;
    if (program->nmembers && most < 2) most = 2; /* it races with the strands of other ranks */
    *semaphores |= program->nsemaphores > 0;
  }
  return most;
}

static void choose_watched(struct tt_proof *proof)
{
  bool semaphores;
  int candidates = 0, with_semaphores = 0;
  uint64_t sample = SAMPLED_STRANDS / proof->max_strands;
  sample = sample > MAX_WATCHED ? MAX_WATCHED : sample ? sample : 1;
  for (int32_t rank = 0; rank < proof->nranks; rank++) {
    candidates += most_strands(proof, rank, &semaphores) > 1;
    with_semaphores += semaphores;
  }
  for (int32_t rank = 0; rank < proof->nranks; rank++) {
    uint32_t strands = most_strands(proof, rank, &semaphores);
    proof->ranks[rank].watch = -1;
    if (strands < 2) continue;
    bool drawn = tt_proof_mix(proof->seed ^ tt_proof_mix((uint64_t)rank)) % (uint64_t)candidates < sample;
    bool special = semaphores && with_semaphores <= MAX_WATCHED;
    if (candidates > MAX_WATCHED && !special && !drawn) continue;
    proof->ranks[rank].watch = proof->width;
    proof->width += strands;
  }
}

bool tt_proof_clocks_start(struct tt_proof *proof)
{
  choose_watched(proof);
  if (!proof->width) return true;
  size_t nstrands = (size_t)proof->nranks * proof->max_strands;
  proof->clocks = calloc((nstrands + 3) * proof->width, sizeof(*proof->clocks));
  if (!proof->clocks) return tt_proof_out_of_memory(proof);
  for (size_t i = 0; i < nstrands; i++) proof->strands[i].clock = proof->clocks + i * proof->width;
  proof->reduced_clock = proof->clocks + nstrands * proof->width;
  proof->moved_clock = proof->reduced_clock + proof->width;
  proof->network_clock = proof->moved_clock + proof->width;
  return true;
}

void tt_proof_clock_copy(const struct tt_proof *proof, uint32_t *to, const uint32_t *from)
{
  if (proof->width) memcpy(to, from, proof->width * sizeof(*to));
}

void tt_proof_clock_join(const struct tt_proof *proof, uint32_t *to, const uint32_t *from)
{
  for (uint32_t i = 0; i < proof->width; i++) {
    if (from[i] > to[i]) to[i] = from[i];
  }
}

uint32_t *tt_proof_clock_own(const struct tt_proof *proof, const struct tt_proof_strand *strand, uint32_t *clock)
{
  int64_t watch = proof->ranks[strand->rank].watch;
  return watch < 0 ? NULL : clock + watch + strand->index;
}

void tt_proof_clock_barrier(struct tt_proof *proof, int32_t rank)
{
  struct tt_proof_strand *strands = proof->strands + (size_t)rank * proof->max_strands;
  if (!proof->width) return;
  for (uint32_t i = 1; i < proof->max_strands; i++) tt_proof_clock_join(proof, strands[0].clock, strands[i].clock);
  for (uint32_t i = 1; i < proof->max_strands; i++) tt_proof_clock_copy(proof, strands[i].clock, strands[0].clock);
}
