/* Drives a proof: lets strands of all ranks advance in a seeded order until all steps are done or none can go on. The
 * rules are in the other proof_ files. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tutti/device.h"
#include "program/proof.h"

/* Of the ranks that a seed makes slow, one in this many picks goes on while others could. */
enum { SLOW_PICKS = 16 };

bool tt_proof_fail(struct tt_proof *proof, const struct tt_proof_strand *strand, const char *format, ...)
{
  va_list arguments;
  size_t used = 0;
  if (!proof->why_size) return false;
  if (strand) {
    const struct tt_proof_rank *rank = &proof->ranks[strand->rank];
    int printed =
        snprintf(proof->why, proof->why_size,
                 "step %d, rank %d, strand %u, loop %llu, instruction %u, repetition %u: ", rank->step, strand->rank,
                 strand->index, (unsigned long long)strand->loop,
                 rank->program->strands[strand->index].first_instruction + strand->instruction, strand->repetition);
    used = printed < 0 ? 0 : (size_t)printed;
    if (used >= proof->why_size) return false;
  }
  va_start(arguments, format);
  vsnprintf(proof->why + used, proof->why_size - used, format, arguments);
  va_end(arguments);
  return false;
}

bool tt_proof_out_of_memory(struct tt_proof *proof)
{
  return tt_proof_fail(proof, NULL, "the validator is out of memory");
}

static uint64_t draw(struct tt_proof *proof)
{
  return proof->random = tt_proof_mix(proof->random);
}

void tt_proof_wake(struct tt_proof *proof, int64_t *waiter)
{
  if (*waiter < 0) return;
  proof->ready[proof->nready++] = (uint32_t)*waiter;
  *waiter = -1;
}

static void leave_step(struct tt_proof_rank *state)
{
  tt_proof_memory_end(&state->memory);
  tt_proof_shared_free(state);
  free(state->links);
  state->links = NULL;
  for (uint32_t i = 0; state->semaphores && i < state->program->nsemaphores; i++) free(state->semaphores[i].clocks);
  free(state->semaphores);
  state->semaphores = NULL;
}

/* Starts the rank's next step that it takes part in, if any is left. */
static bool enter_step(struct tt_proof *proof, int32_t rank)
{
  struct tt_proof_rank *state = &proof->ranks[rank];
  while (state->step < proof->nsteps && !proof->steps[state->step].programs[rank]) state->step++;
  if (state->step == proof->nsteps) {
    proof->unfinished--;
    return true;
  }
  const struct tt_program *program = state->program = proof->steps[state->step].programs[rank];
  state->links = calloc(2 * (size_t)program->npeers + 1, sizeof(*state->links));
  state->semaphores = calloc((size_t)program->nsemaphores + 1, sizeof(*state->semaphores));
  if (!state->links || !state->semaphores) return tt_proof_out_of_memory(proof);
  for (uint32_t i = 0; i < program->nsemaphores; i++) state->semaphores[i].waiter = -1;
  if (!tt_proof_memory_start(proof, rank)) return false;
  tt_proof_clock_barrier(proof, rank);
  if (!tt_proof_shared_start(proof, rank)) return false;
  state->live = program->nstrands;
  for (uint32_t i = 0; i < program->nstrands; i++) {
    int64_t id = (int64_t)rank * proof->max_strands + i;
    struct tt_proof_strand *strand = &proof->strands[id];
    strand->loop = strand->instruction = strand->repetition = strand->satisfied = 0;
    tt_proof_wake(proof, &id);
  }
  return true;
}

static bool finish_strand(struct tt_proof *proof, int32_t rank)
{
  struct tt_proof_rank *state = &proof->ranks[rank];
  if (--state->live) return true;
  if (!tt_definition_met(proof, rank) || !tt_proof_shared_end(proof, rank)) return false;
  leave_step(state);
  state->step++;
  return enter_step(proof, rank);
}

/* Takes a strand out of the ready ones. Odd seeds make a quarter of the ranks slow. */
static struct tt_proof_strand *pick(struct tt_proof *proof)
{
  for (int tries = 0;; tries++) {
    uint64_t drawn = draw(proof);
    uint32_t at = (uint32_t)(drawn % proof->nready);
    struct tt_proof_strand *strand = &proof->strands[proof->ready[at]];
    bool slow = proof->seed % 2 && tt_proof_mix(proof->seed + (uint64_t)strand->rank) % 4 == 0;
    if (slow && tries < SLOW_PICKS && (drawn >> 32) % SLOW_PICKS) continue;
    proof->ready[at] = proof->ready[--proof->nready];
    return strand;
  }
}

static bool run(struct tt_proof *proof)
{
  while (proof->nready) {
    struct tt_proof_strand *strand = pick(proof);
    uint32_t burst = 1u << draw(proof) % 6;
    enum tt_progress progress = TT_MOVED;
    while (burst-- && progress == TT_MOVED) progress = tt_proof_advance(proof, strand);
    if (progress == TT_FAILED) return false;
    if (progress == TT_FINISHED && !finish_strand(proof, strand->rank)) return false;
    int64_t id = tt_proof_strand_id(proof, strand);
    if (progress == TT_MOVED) tt_proof_wake(proof, &id);
  }
  return true;
}

/* Names what one of the blocked strands waits for. */
static bool report_deadlock(struct tt_proof *proof)
{
  for (size_t i = 0; i < proof->connections.capacity; i++) {
    const struct tt_connection *connection = proof->connections.table[i];
    if (!connection || (connection->receiver < 0 && connection->sender < 0)) continue;
    bool receives = connection->receiver >= 0;
    const struct tt_proof_strand *strand = &proof->strands[receives ? connection->receiver : connection->sender];
    char name[32];
    return tt_proof_fail(proof, strand, "deadlock: waits %s %s forever",
                         receives ? "for a message from" : "for room in the FIFO to",
                         tt_proof_peer_name(receives ? connection->from : connection->to, name));
  }
  return tt_proof_fail(proof, NULL, "deadlock: %d ranks wait at semaphores forever", proof->unfinished);
}

static bool check_agreement(struct tt_proof *proof, int index, int32_t rank)
{
  const struct tt_program *program = proof->steps[index].programs[rank];
  const struct tt_program *first = proof->steps[index].programs[0];
  if (program && (program->nranks != proof->nranks || program->rank != rank)) {
    return tt_proof_fail(proof, NULL, "step %d, rank %d: the program is for rank %d of %d", index, rank, program->rank,
                         program->nranks);
  }
  bool alone = (!program || tt_definition_is_message(program->collective)) &&
               (!first || tt_definition_is_message(first->collective));
  if (alone) return true;
  if (!program || !first)
    return tt_proof_fail(proof, NULL, "step %d: rank %d has no program", index, program ? 0 : rank);
  if (program->collective == first->collective && program->algorithm == first->algorithm &&
      program->root == first->root && program->parts == first->parts)
    return true;
  return tt_proof_fail(proof, NULL, "step %d: the programs of ranks 0 and %d are for different operations", index,
                       rank);
}

static bool check_programs(struct tt_proof *proof)
{
  char reason[256];
  for (int step = 0; step < proof->nsteps; step++) {
    if (!proof->steps[step].loops) return tt_proof_fail(proof, NULL, "step %d has no loops", step);
    for (int32_t rank = 0; rank < proof->nranks; rank++) {
      const struct tt_program *program = proof->steps[step].programs[rank];
      if (!check_agreement(proof, step, rank)) return false;
      if (!program) continue;
      if (tt_program_check(program, reason, sizeof(reason)) != ncclSuccess)
        return tt_proof_fail(proof, NULL, "step %d, rank %d: %s", step, rank, reason);
      if (program->nstrands > proof->max_strands) proof->max_strands = program->nstrands;
      for (uint32_t i = 0; i < program->noperands; i++) {
        uint32_t count = (uint32_t)program->operands[i].count;
        if (count > proof->most_pieces) proof->most_pieces = count;
      }
    }
    for (int32_t rank = 0; rank < proof->nranks; rank++)
      if (!tt_proof_shared_agree(proof, step, rank)) return false;
  }
  return true;
}

static bool start(struct tt_proof *proof)
{
  size_t nranks = (size_t)proof->nranks, nstrands = nranks * proof->max_strands;
  proof->ranks = calloc(nranks, sizeof(*proof->ranks));
  proof->strands = calloc(nstrands + 1, sizeof(*proof->strands));
  proof->ready = calloc(nstrands + 1, sizeof(*proof->ready));
  proof->references = calloc((size_t)proof->nsteps + 1, sizeof(*proof->references));
  proof->results = calloc(proof->most_pieces, sizeof(*proof->results));
  if (!proof->ranks || !proof->strands || !proof->ready || !proof->references || !proof->results)
    return tt_proof_out_of_memory(proof);
  for (size_t i = 0; i < nstrands; i++) {
    proof->strands[i].rank = (int32_t)(i / proof->max_strands);
    proof->strands[i].index = (uint32_t)(i % proof->max_strands);
  }
  for (int step = 0; step < proof->nsteps; step++) {
    const struct tt_program *program = proof->steps[step].programs[0];
    if (!program || program->collective != TT_FUNC_ALL_REDUCE) continue;
    proof->references[step] = calloc((size_t)program->parts * proof->steps[step].loops, sizeof(**proof->references));
    if (!proof->references[step]) return tt_proof_out_of_memory(proof);
  }
  if (!tt_proof_clocks_start(proof) || !tt_proof_networks_start(proof)) return false;
  proof->unfinished = proof->nranks;
  for (int32_t rank = 0; rank < proof->nranks; rank++) {
    if (!enter_step(proof, rank)) return false;
  }
  return true;
}

static void end(struct tt_proof *proof)
{
  for (int rank = 0; proof->ranks && rank < proof->nranks; rank++) leave_step(&proof->ranks[rank]);
  for (int step = 0; proof->references && step < proof->nsteps; step++) free(proof->references[step]);
  tt_proof_connections_free(&proof->connections);
  tt_proof_networks_free(proof);
  free(proof->references);
  free(proof->results);
  free(proof->clocks);
  free(proof->ready);
  free(proof->strands);
  free(proof->ranks);
}

ncclResult_t tt_program_validate(int nranks, const struct tt_validate_step *steps, int nsteps,
                                 const struct tt_validate_options *options, char *why, size_t why_size)
{
  struct tt_proof proof = {.nranks = nranks,
                           .nsteps = nsteps,
                           .steps = steps,
                           .slots = options->slots ? options->slots : TT_SLOTS,
                           .most_pieces = 1,
                           .same_everywhere = options->same_everywhere,
                           .seed = options->seed,
                           .random = tt_proof_mix(options->seed),
                           .why = why,
                           .why_size = why_size};
  if (why_size) why[0] = '\0';
  bool proved = check_programs(&proof) && start(&proof) && run(&proof);
  if (proved && proof.unfinished) proved = report_deadlock(&proof);
  proved = proved && tt_proof_no_leftover(&proof);
  end(&proof);
  return proved ? ncclSuccess : ncclInternalError;
}
