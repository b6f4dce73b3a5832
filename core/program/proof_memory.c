/* A rank's buffers during one step: which chunk is which memory, what it holds, and who may touch it when: its own
 * strands, and those of members that use its user buffers. */
#include <stdlib.h>
#include "program/proof.h"

/* Memory is counted in areas of a block each: those of the larger user buffer first, the smaller one inside it when in
 * place, else behind it, then scratch. */
bool tt_proof_memory_start(struct tt_proof *proof, int32_t rank)
{
  struct tt_proof_rank *state = &proof->ranks[rank];
  const struct tt_program *program = state->program;
  const struct tt_validate_step *step = &proof->steps[state->step];
  struct tt_memory *memory = &state->memory;
  bool inside_output = false;
  uint32_t block = tt_definition_in_place_block(program, &inside_output);
  *memory = (struct tt_memory){.output_base = program->input_blocks,
                               .scratch_base = program->input_blocks + program->output_blocks};
  if (step->in_place && program->input_blocks && program->output_blocks) {
    memory->input_base = inside_output ? block : 0;
    memory->output_base = inside_output ? 0 : block;
    memory->scratch_base = inside_output ? program->output_blocks : program->input_blocks;
  }
  size_t ncells = ((size_t)memory->scratch_base * step->loops + (size_t)program->nscratch * program->scratch_blocks) *
                  program->parts;
  memory->cells = calloc(ncells + 1, sizeof(*memory->cells));
  if (!memory->cells) return tt_proof_out_of_memory(proof);
  memory->reached = proof->width && tt_proof_is_reached(proof, state->step, rank);
  if (state->watch < 0 && !memory->reached) return true;
  uint32_t entries = memory->reached ? proof->width : program->nstrands;
  memory->accesses = calloc((ncells + 1) * (2 + entries), sizeof(*memory->accesses));
  return memory->accesses ? true : tt_proof_out_of_memory(proof);
}

void tt_proof_memory_end(struct tt_memory *memory)
{
  free(memory->cells);
  free(memory->accesses);
  *memory = (struct tt_memory){0};
}

static size_t find_cell(const struct tt_proof *proof, int32_t rank, uint8_t buffer, uint32_t chunk, uint64_t loop)
{
  const struct tt_proof_rank *state = &proof->ranks[rank];
  const struct tt_program *program = state->program;
  const struct tt_memory *memory = &state->memory;
  size_t parts = program->parts, loops = proof->steps[state->step].loops;
  if (buffer >= TT_SCRATCH) {
    size_t scratch = (size_t)(buffer - TT_SCRATCH) * program->scratch_blocks * parts;
    return memory->scratch_base * loops * parts + scratch + chunk;
  }
  size_t base = buffer == TT_INPUT ? memory->input_base : memory->output_base;
  return (base * parts + chunk) * loops + loop;
}

/* What a cell holds that nothing was written to: the user's input, if it lies there. */
static bool initial_value(const struct tt_proof *proof, int32_t rank, uint8_t buffer, uint32_t chunk, uint64_t loop,
                          struct tt_value *value)
{
  const struct tt_proof_rank *state = &proof->ranks[rank];
  const struct tt_memory *memory = &state->memory;
  if (buffer >= TT_SCRATCH) return false;
  uint32_t part = chunk % state->program->parts;
  uint32_t area = chunk / state->program->parts + (buffer == TT_INPUT ? memory->input_base : memory->output_base);
  if (area < memory->input_base || area >= memory->input_base + state->program->input_blocks) return false;
  *value = tt_proof_leaf(state->step, rank, area - memory->input_base, part, (uint32_t)loop);
  return true;
}

static bool holds(const struct tt_proof *proof, int32_t rank, uint8_t buffer, uint32_t chunk, uint64_t loop,
                  struct tt_value *value)
{
  const struct tt_cell *cell = &proof->ranks[rank].memory.cells[find_cell(proof, rank, buffer, chunk, loop)];
  if (!cell->value.count) return initial_value(proof, rank, buffer, chunk, loop, value);
  *value = cell->value;
  return true;
}

bool tt_proof_output(const struct tt_proof *proof, int32_t rank, uint32_t chunk, uint64_t loop, struct tt_value *value)
{
  return holds(proof, rank, TT_OUTPUT, chunk, loop, value);
}

static const char *buffer_name(uint8_t buffer)
{
  return buffer == TT_INPUT ? "input" : buffer == TT_OUTPUT ? "output" : "scratch";
}

/* An access of a strand to a chunk of its own rank's memory, or of a member's. */
struct place {
  int32_t owner;
  uint8_t buffer;
  uint32_t chunk;
  size_t cell;
};

static struct place find_place(const struct tt_proof *proof, const struct tt_proof_strand *strand,
                               const struct tt_operand *operand, uint32_t chunk)
{
  struct place place = {.chunk = chunk};
  place.owner = tt_proof_owner(proof, strand, operand, &place.buffer);
  place.cell = find_cell(proof, place.owner, place.buffer, chunk, strand->loop);
  return place;
}

static bool fail_race(struct tt_proof *proof, const struct tt_proof_strand *strand, const struct place *place,
                      bool writes, const char *what)
{
  return tt_proof_fail(proof, strand, "%s %s chunk %u of rank %d, which %s", writes ? "writes" : "reads",
                       buffer_name(place->buffer), place->chunk, place->owner, what);
}

/* Whether another strand's last write, and for a write its last reads, come before what `clock` follows. Strands are
 * numbered as in the clocks where other ranks reach the memory, else from the owner's first. */
static bool check_race(struct tt_proof *proof, const struct tt_proof_strand *strand, const struct place *place,
                       const uint32_t *clock, bool writes, uint32_t time)
{
  const struct tt_proof_rank *owner = &proof->ranks[place->owner];
  bool reached = owner->memory.reached;
  if (!owner->memory.accesses) return true;
  uint32_t entries = reached ? proof->width : owner->program->nstrands;
  uint32_t *access = owner->memory.accesses + place->cell * (2 + entries);
  uint32_t *writer = &access[0], *written = &access[1], *read = &access[2];
  const uint32_t *known = clock + (reached ? 0 : owner->watch);
  int64_t own = strand->index;
  if (reached) own = proof->ranks[strand->rank].watch < 0 ? -1 : proof->ranks[strand->rank].watch + strand->index;
  if (*writer && *writer - 1 != own && *written > known[*writer - 1])
    return fail_race(proof, strand, place, writes, "another strand may be writing");
  if (!writes) {
    if (own >= 0) read[own] = time;
    return true;
  }
  for (uint32_t other = 0; other < entries; other++) {
    if (other == own || read[other] <= known[other]) continue;
    return fail_race(proof, strand, place, writes, "another strand may still have to read");
  }
  *writer = (uint32_t)(own + 1);
  *written = time;
  return true;
}

/* A member's buffer is touched within the operation of its owner. */
static bool is_open(struct tt_proof *proof, const struct tt_proof_strand *strand, const struct tt_operand *operand,
                    uint32_t chunk, const uint32_t *clock)
{
  uint8_t buffer;
  if (!tt_proof_is_members(operand)) return true;
  int32_t owner = tt_proof_owner(proof, strand, operand, &buffer);
  return tt_proof_shared_open(proof, strand, operand, chunk, owner, proof->width ? clock : NULL);
}

bool tt_proof_mark_write(struct tt_proof *proof, const struct tt_proof_strand *strand, const struct tt_operand *operand,
                         uint32_t chunk)
{
  if (tt_proof_is_shared(operand)) return tt_proof_shared_mark(proof, strand, operand, chunk);
  if (!is_open(proof, strand, operand, chunk, NULL)) return false;
  struct place place = find_place(proof, strand, operand, chunk);
  struct tt_cell *cell = &proof->ranks[place.owner].memory.cells[place.cell];
  if (cell->written >> 1 == proof->event) {
    return tt_proof_fail(proof, strand, "writes %s chunk %u twice in one instruction", buffer_name(place.buffer),
                         chunk);
  }
  cell->written = proof->event << 1 | (operand->kind == TT_DST);
  return true;
}

bool tt_proof_read(struct tt_proof *proof, const struct tt_proof_strand *strand, const struct tt_operand *operand,
                   uint32_t chunk, const uint32_t *clock, struct tt_value *value)
{
  if (tt_proof_is_shared(operand)) return tt_proof_shared_read(proof, strand, operand, chunk, clock, value);
  if (!is_open(proof, strand, operand, chunk, clock)) return false;
  struct place place = find_place(proof, strand, operand, chunk);
  const struct tt_cell *cell = &proof->ranks[place.owner].memory.cells[place.cell];
  const struct tt_program *program = proof->ranks[strand->rank].program;
  bool in_reduction = operand->kind == TT_SRC;
  /* A reduction may overwrite its own source, element by element; a move knows no order with the rest. */
  if (cell->written >> 1 == proof->event && !(in_reduction && cell->written & 1)) {
    return tt_proof_fail(proof, strand, "reads and writes %s chunk %u in one instruction", buffer_name(place.buffer),
                         chunk);
  }
  uint32_t time = 2 * strand->time + (in_reduction ? 0 : 1);
  if (!check_race(proof, strand, &place, clock, false, time)) return false;
  if (tt_proof_is_members(operand)) tt_proof_shared_touch(proof, strand, place.owner, time);
  if (!holds(proof, place.owner, place.buffer, chunk, strand->loop, value)) {
    return tt_proof_fail(proof, strand, "reads %s chunk %u, which nothing was written to", buffer_name(place.buffer),
                         chunk);
  }
  if (value->part != chunk % program->parts || value->loop != strand->loop) {
    return tt_proof_fail(proof, strand, "reads %s chunk %u, which holds part %u of loop %u", buffer_name(place.buffer),
                         chunk, value->part, value->loop);
  }
  if (place.buffer == TT_INPUT && tt_definition_reduces(program->collective)) value->scaled++;
  return true;
}

bool tt_proof_write(struct tt_proof *proof, const struct tt_proof_strand *strand, const struct tt_operand *operand,
                    uint32_t chunk, const uint32_t *clock, const struct tt_value *value)
{
  if (tt_proof_is_shared(operand)) return tt_proof_shared_write(proof, strand, operand, chunk, clock, value);
  if (!is_open(proof, strand, operand, chunk, clock)) return false;
  struct place place = find_place(proof, strand, operand, chunk);
  uint32_t time = 2 * strand->time + 1;
  if (!check_race(proof, strand, &place, clock, true, time)) return false;
  if (tt_proof_is_members(operand)) tt_proof_shared_touch(proof, strand, place.owner, time);
  proof->ranks[place.owner].memory.cells[place.cell].value = *value;
  return true;
}
