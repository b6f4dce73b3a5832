/* One repetition of one instruction. It waits until all its receives have a message and all its sends have room, and
 * then happens at once. An executor may do parts of it earlier; since each direction of a connection has one owner,
 * that can only let others go on sooner, so what does not deadlock here does not there. */
#include <stdlib.h>
#include <string.h>
#include "program/proof.h"

static const struct tt_instruction *current(const struct tt_proof *proof, const struct tt_proof_strand *strand)
{
  const struct tt_program *program = proof->ranks[strand->rank].program;
  return &program->instructions[program->strands[strand->index].first_instruction + strand->instruction];
}

/* Piece p of a message. */
static struct tt_value *piece_of(struct tt_message *message, uint32_t piece)
{
  return piece == 0 ? &message->value : &message->more[piece - 1];
}

static struct tt_message new_message(struct tt_proof *proof, const struct tt_proof_strand *strand,
                                     const struct tt_operand *operand)
{
  const struct tt_proof_rank *rank = &proof->ranks[strand->rank];
  struct tt_message message = {
      .count = (uint32_t)operand->count, .step = (uint32_t)rank->step, .parts = rank->program->parts};
  if (message.count <= 1) return message;
  message.more = calloc(message.count - 1, sizeof(*message.more));
  if (!message.more) {
    message.count = 0;
    tt_proof_out_of_memory(proof);
  }
  return message;
}

static bool check_message(struct tt_proof *proof, const struct tt_proof_strand *strand,
                          const struct tt_operand *operand, struct tt_message *message)
{
  const struct tt_proof_rank *rank = &proof->ranks[strand->rank];
  char name[32];
  const char *from = tt_proof_peer_name(rank->program->peers[operand->peer], name);
  if (message->count != (uint32_t)operand->count) {
    return tt_proof_fail(proof, strand, "receives a list of %u chunks from %s where it expects %d", message->count,
                         from, operand->count);
  }
  if (!message->count && message->step != (uint32_t)rank->step)
    return tt_proof_fail(proof, strand, "receives a message without data of step %u from %s", message->step, from);
  for (uint32_t p = 0; p < message->count; p++) {
    uint32_t part = tt_operand_piece(operand, strand->repetition, p) % rank->program->parts;
    const struct tt_value *value = piece_of(message, p);
    if (message->step == (uint32_t)rank->step && message->parts == rank->program->parts && value->part == part &&
        value->loop == strand->loop)
      continue;
    return tt_proof_fail(proof, strand,
                         "receives part %u of %u in loop %u of step %u from %s where it expects part %u of %u",
                         value->part, message->parts, value->loop, message->step, from, part, rank->program->parts);
  }
  return true;
}

/* Folds what has arrived into the results, or stores it. */
static bool take_message(struct tt_proof *proof, struct tt_proof_strand *strand, const struct tt_operand *operand,
                         struct tt_message *message, const uint32_t *clock)
{
  if (!check_message(proof, strand, operand, message)) return false;
  bool result = operand->buffer == TT_RESULT;
  if (result) {
    tt_proof_clock_join(proof, proof->reduced_clock, clock);
  } else {
    tt_proof_clock_copy(proof, proof->moved_clock, strand->clock);
    tt_proof_clock_join(proof, proof->moved_clock, clock);
  }
  for (uint32_t p = 0; p < message->count; p++) {
    uint32_t chunk = tt_operand_piece(operand, strand->repetition, p);
    const struct tt_value *value = piece_of(message, p);
    if (result ? !tt_proof_fold(proof, strand, &proof->results[p], value)
               : !tt_proof_write(proof, strand, operand, chunk, proof->moved_clock, value))
      return false;
  }
  return true;
}

static bool do_receive(struct tt_proof *proof, struct tt_proof_strand *strand, const struct tt_operand *operand)
{
  const uint32_t *clock;
  struct tt_message message = tt_proof_pop(proof, tt_proof_link(proof, strand, operand), &clock);
  bool good = take_message(proof, strand, operand, &message, clock);
  free(message.more);
  return good;
}

static bool do_source(struct tt_proof *proof, struct tt_proof_strand *strand, const struct tt_operand *operand)
{
  struct tt_value value;
  for (uint32_t p = 0; p < (uint32_t)operand->count; p++) {
    uint32_t chunk = tt_operand_piece(operand, strand->repetition, p);
    if (!tt_proof_read(proof, strand, operand, chunk, strand->clock, &value)) return false;
    if (!tt_proof_fold(proof, strand, &proof->results[p], &value)) return false;
  }
  return true;
}

/* A send of local chunks. */
static bool do_move(struct tt_proof *proof, struct tt_proof_strand *strand, const struct tt_operand *operand)
{
  struct tt_message message = new_message(proof, strand, operand);
  if (operand->count && !message.count) return false;
  for (uint32_t p = 0; p < message.count; p++) {
    uint32_t chunk = tt_operand_piece(operand, strand->repetition, p);
    if (tt_proof_read(proof, strand, operand, chunk, strand->clock, piece_of(&message, p))) continue;
    free(message.more);
    return false;
  }
  tt_proof_push(proof, tt_proof_link(proof, strand, operand), &message, strand->clock);
  return true;
}

/* Inputs of the reduction are folded, and moves are done. */
static bool do_inputs(struct tt_proof *proof, struct tt_proof_strand *strand, const struct tt_instruction *instruction)
{
  const struct tt_program *program = proof->ranks[strand->rank].program;
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    bool good = true;
    if (operand->kind == TT_RECV)
      good = do_receive(proof, strand, operand);
    else if (operand->kind == TT_SRC)
      good = do_source(proof, strand, operand);
    else if (operand->kind == TT_SEND && operand->buffer != TT_RESULT)
      good = do_move(proof, strand, operand);
    if (!good) return false;
  }
  return true;
}

static bool send_result(struct tt_proof *proof, struct tt_proof_strand *strand, const struct tt_operand *operand)
{
  struct tt_message message = new_message(proof, strand, operand);
  if (!message.count) return false;
  for (uint32_t p = 0; p < message.count; p++) *piece_of(&message, p) = proof->results[p];
  tt_proof_push(proof, tt_proof_link(proof, strand, operand), &message, proof->reduced_clock);
  return true;
}

static bool do_outputs(struct tt_proof *proof, struct tt_proof_strand *strand, const struct tt_instruction *instruction)
{
  const struct tt_program *program = proof->ranks[strand->rank].program;
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    if (operand->kind == TT_SEND && operand->buffer == TT_RESULT && !send_result(proof, strand, operand)) return false;
    for (uint32_t p = 0; operand->kind == TT_DST && p < (uint32_t)operand->count; p++) {
      uint32_t chunk = tt_operand_piece(operand, strand->repetition, p);
      if (!tt_proof_write(proof, strand, operand, chunk, proof->reduced_clock, &proof->results[p])) return false;
    }
  }
  return true;
}

static bool mark_writes(struct tt_proof *proof, const struct tt_proof_strand *strand,
                        const struct tt_instruction *instruction)
{
  const struct tt_program *program = proof->ranks[strand->rank].program;
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    bool stores = operand->kind == TT_DST || (operand->kind == TT_RECV && operand->buffer != TT_RESULT);
    for (uint32_t p = 0; stores && p < (uint32_t)operand->count; p++)
      if (!tt_proof_mark_write(proof, strand, operand, tt_operand_piece(operand, strand->repetition, p))) return false;
  }
  return true;
}

/* What follows the instruction follows everything it received, whether reduced or moved. */
static void join_received(struct tt_proof *proof, const struct tt_proof_strand *strand,
                          const struct tt_instruction *instruction)
{
  const struct tt_program *program = proof->ranks[strand->rank].program;
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    if (operand->kind != TT_RECV) continue;
    const struct tt_connection *link = tt_proof_link(proof, strand, operand);
    uint32_t popped = (link->first + proof->slots - 1) % proof->slots;
    tt_proof_clock_join(proof, strand->clock, link->clocks + (size_t)popped * proof->width);
  }
}

static bool do_data(struct tt_proof *proof, struct tt_proof_strand *strand, const struct tt_instruction *instruction)
{
  memset(proof->results, 0, proof->most_pieces * sizeof(*proof->results));
  proof->event++;
  strand->time++;
  if (!mark_writes(proof, strand, instruction)) return false;
  uint32_t *own = NULL;
  if (proof->width) {
    tt_proof_clock_copy(proof, proof->reduced_clock, strand->clock);
    own = tt_proof_clock_own(proof, strand, proof->reduced_clock);
    if (own) *own = 2 * strand->time;
  }
  if (!do_inputs(proof, strand, instruction)) return false;
  for (uint32_t p = 0; instruction->flags & TT_FLAG_FINAL && p < proof->most_pieces; p++) proof->results[p].final++;
  if (!do_outputs(proof, strand, instruction)) return false;
  if (proof->width) {
    join_received(proof, strand, instruction);
    own = tt_proof_clock_own(proof, strand, strand->clock);
    if (own) *own = 2 * strand->time + 1;
  }
  return true;
}

/* Looks for the first operand that cannot go on, and waits at its connection. */
static enum tt_progress wait_for_operands(struct tt_proof *proof, struct tt_proof_strand *strand,
                                          const struct tt_instruction *instruction)
{
  const struct tt_program *program = proof->ranks[strand->rank].program;
  for (; strand->satisfied < instruction->noperands; strand->satisfied++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + strand->satisfied];
    if (operand->kind != TT_RECV && operand->kind != TT_SEND) continue;
    struct tt_connection *link = tt_proof_link(proof, strand, operand);
    if (!link) return TT_FAILED;
    bool receives = operand->kind == TT_RECV;
    if (receives ? link->count > 0 : link->count < proof->slots) continue;
    *(receives ? &link->receiver : &link->sender) = tt_proof_strand_id(proof, strand);
    return TT_BLOCKED;
  }
  return TT_MOVED;
}

static bool do_signal(struct tt_proof *proof, struct tt_proof_strand *strand, struct tt_semaphore *semaphore)
{
  if (proof->width) {
    if (semaphore->signals == semaphore->room) {
      size_t room = semaphore->room ? 2 * semaphore->room : 4;
      uint32_t *clocks = realloc(semaphore->clocks, room * proof->width * sizeof(*clocks));
      if (!clocks) return tt_proof_out_of_memory(proof);
      semaphore->clocks = clocks;
      semaphore->room = room;
    }
    tt_proof_clock_copy(proof, semaphore->clocks + semaphore->signals * proof->width, strand->clock);
  }
  semaphore->signals++;
  semaphore->value++;
  tt_proof_wake(proof, &semaphore->waiter);
  return true;
}

/* One strand signals and one waits, so the k-th wait follows the k-th signal. */
static enum tt_progress do_wait(struct tt_proof *proof, struct tt_proof_strand *strand, struct tt_semaphore *semaphore)
{
  if (!semaphore->value) {
    semaphore->waiter = tt_proof_strand_id(proof, strand);
    return TT_BLOCKED;
  }
  semaphore->value--;
  if (proof->width) tt_proof_clock_join(proof, strand->clock, semaphore->clocks + semaphore->waits * proof->width);
  semaphore->waits++;
  return TT_MOVED;
}

static enum tt_progress execute(struct tt_proof *proof, struct tt_proof_strand *strand,
                                const struct tt_instruction *instruction)
{
  struct tt_proof_rank *rank = &proof->ranks[strand->rank];
  if (instruction->opcode == TT_OP_SIGNAL)
    return do_signal(proof, strand, &rank->semaphores[instruction->semaphore]) ? TT_MOVED : TT_FAILED;
  if (instruction->opcode == TT_OP_WAIT) return do_wait(proof, strand, &rank->semaphores[instruction->semaphore]);
  enum tt_progress progress = wait_for_operands(proof, strand, instruction);
  if (progress != TT_MOVED) return progress;
  strand->satisfied = 0;
  bool good = do_data(proof, strand, instruction) && tt_proof_networks_advance(proof, strand, instruction);
  return good ? TT_MOVED : TT_FAILED;
}

enum tt_progress tt_proof_advance(struct tt_proof *proof, struct tt_proof_strand *strand)
{
  const struct tt_proof_rank *rank = &proof->ranks[strand->rank];
  const struct tt_strand *list = &rank->program->strands[strand->index];
  uint64_t loops = proof->steps[rank->step].loops;
  if (strand->loop == loops || !list->ninstructions) return TT_FINISHED;
  const struct tt_instruction *instruction = current(proof, strand);
  enum tt_progress progress = execute(proof, strand, instruction);
  if (progress != TT_MOVED) return progress;
  if (++strand->repetition < instruction->repeat) return TT_MOVED;
  strand->repetition = 0;
  if (++strand->instruction < list->ninstructions) return TT_MOVED;
  strand->instruction = 0;
  return ++strand->loop < loops ? TT_MOVED : TT_FINISHED;
}
