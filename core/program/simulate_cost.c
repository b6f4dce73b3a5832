/* How long instructions take, and the costs that need no machine. */
#include "program/simulate_state.h"

size_t tt_sim_bytes(const struct tt_sim *sim, const struct tt_sim_strand *strand, const struct tt_operand *operand)
{
  const struct tt_sim_rank *rank = &sim->ranks[strand->rank];
  const struct tt_geometry *geometry = &sim->input->channels[rank->channel].geometry;
  size_t bytes = 0, offset;
  for (uint32_t p = 0; p < (uint32_t)operand->count; p++) {
    uint32_t part = tt_operand_piece(operand, strand->repetition, p) % rank->program->parts;
    bytes = (bytes + TT_PIECE_ALIGN - 1) / TT_PIECE_ALIGN * TT_PIECE_ALIGN;
    bytes += tt_geometry_part(geometry, rank->program->parts, strand->loop, part, &offset) * sim->input->element_bytes;
  }
  return bytes;
}

bool tt_sim_is_remote(const struct tt_program *program, const struct tt_operand *operand)
{
  bool member = operand->buffer == TT_MEMBER_INPUT || operand->buffer == TT_MEMBER_OUTPUT;
  return member && program->members[operand->peer] != program->rank;
}

double tt_sim_duration(const struct tt_sim *sim, const struct tt_sim_strand *strand,
                       const struct tt_instruction *instruction)
{
  const struct tt_simulate_cost *cost = sim->input->cost;
  const struct tt_program *program = sim->ranks[strand->rank].program;
  if (instruction->opcode != TT_OP_DATA) return cost->semaphore;
  double time = cost->instruction, inputs = 0, multicast = 0, member = 0;
  uint32_t ninputs = 0;
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    double bytes = (double)tt_sim_bytes(sim, strand, operand);
    bool message = operand->kind == TT_SEND || operand->kind == TT_RECV;
    bool input = operand->kind == TT_SRC || (operand->kind == TT_RECV && operand->buffer == TT_RESULT);
    if (message) time += cost->message;
    if (operand->buffer == TT_MULTICAST) {
      multicast = cost->multicast.latency;
      time += cost->multicast.gap + bytes * cost->multicast.byte;
    }
    if (tt_sim_is_remote(program, operand)) {
      member = cost->near.latency;
      time += bytes * cost->near.byte;
    }
    if (input) {
      inputs += bytes;
      ninputs++;
    } else {
      time += bytes * cost->copy_byte;
    }
  }
  return time + multicast + member + inputs * (ninputs > 1 ? cost->reduce_byte : cost->copy_byte);
}

struct tt_simulate_cost tt_simulate_steps(void)
{
  const struct tt_simulate_link one = {.gap = 1};
  return (struct tt_simulate_cost){.near = one, .far = one, .network = one, .multicast = one};
}

struct tt_simulate_cost tt_simulate_instructions(void)
{
  return (struct tt_simulate_cost){.instruction = 1};
}

struct tt_geometry tt_simulate_even(uint32_t parts, uint64_t loops, size_t chunk)
{
  return (struct tt_geometry){.hi = parts * (size_t)loops * chunk, .chunk = chunk, .last_chunk = chunk, .loops = loops};
}
