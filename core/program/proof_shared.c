/* Memory that several ranks share: each holds a copy, and all are read or written at once by multicast. Any strand of
 * any member may touch a copy, so races are looked for between all of them.
 *
 * What lies where in shared memory may be another thing in each operation, and on each of its channels. So no rank may
 * touch another's copy but between two events that it knows of: that the copy's owner has begun the operation, and
 * before the owner has ended it. Then the operations' accesses never meet, and each is proved by itself. */
#include <stdlib.h>
#include <string.h>
#include "program/proof.h"

/* When a strand last read a cell: entry of the clocks, and what it was then. */
struct reader {
  uint32_t entry, time;
};

struct cell {
  struct tt_value value;
  uint64_t written;       /* as that of struct tt_cell */
  uint32_t writer, wrote; /* 1 + entry in the clocks of who wrote last, and when; 0: nobody who is watched */
  struct reader *readers; /* since then */
  uint32_t nreaders, room;
};

/* One rank's copy during one step. */
struct tt_shared {
  uint32_t ncells;
  uint32_t began;  /* watched ranks: what the first strand's entry was when the rank began the step */
  uint32_t *touch; /* for each entry of the clocks, the last access to this copy by that strand */
  struct cell cells[];
};

/* An access of one strand to one copy. */
struct access {
  struct tt_proof *proof;
  const struct tt_proof_strand *strand;
  const struct tt_operand *operand;
  uint32_t chunk;
  int32_t owner;
  const uint32_t *clock; /* what it is known to follow; NULL: that does not matter */
};

bool tt_proof_is_shared(const struct tt_operand *operand)
{
  return operand->buffer == TT_SHARED || operand->buffer == TT_MULTICAST;
}

static bool is_among(const struct tt_program *program, int32_t rank)
{
  uint32_t i = 0;
  while (i < program->nmembers && program->members[i] != rank) i++;
  return i < program->nmembers;
}

/* Of messages each rank names its own partners, which must know of it. */
static bool agrees(const struct tt_program *program, const struct tt_program *other)
{
  if (!other || other->shared_blocks != program->shared_blocks || other->parts != program->parts) return false;
  if (tt_definition_is_message(program->collective))
    return tt_definition_is_message(other->collective) && is_among(other, program->rank);
  return other->nmembers == program->nmembers && other->collective == program->collective &&
         other->root == program->root &&
         !memcmp(other->members, program->members, program->nmembers * sizeof(*program->members));
}

bool tt_proof_shared_agree(struct tt_proof *proof, int step, int32_t rank)
{
  const struct tt_program *program = proof->steps[step].programs[rank];
  for (uint32_t i = 0; program && i < program->nmembers; i++) {
    if (agrees(program, proof->steps[step].programs[program->members[i]])) continue;
    return tt_proof_fail(proof, NULL,
                         "step %d: ranks %d and %d do not share the same memory or buffers with the same members", step,
                         rank, program->members[i]);
  }
  return true;
}

bool tt_proof_shared_start(struct tt_proof *proof, int32_t rank)
{
  struct tt_proof_rank *state = &proof->ranks[rank];
  struct tt_proof_strand *strands = proof->strands + (size_t)rank * proof->max_strands;
  uint32_t ncells = state->program->shared_blocks * state->program->parts;
  if (!state->program->nmembers) return true;
  struct tt_shared *shared = calloc(1, sizeof(*shared) + ncells * sizeof(*shared->cells));
  if (!shared) return tt_proof_out_of_memory(proof);
  state->shared = shared;
  shared->ncells = ncells;
  shared->touch = calloc((size_t)proof->width + 1, sizeof(*shared->touch));
  if (!shared->touch) return tt_proof_out_of_memory(proof);
  if (state->watch < 0) return true;
  shared->began = 2 * ++strands->time + 1;
  for (uint32_t i = 0; i < proof->max_strands; i++) strands[i].clock[state->watch] = shared->began;
  return true;
}

bool tt_proof_shared_end(struct tt_proof *proof, int32_t rank)
{
  const struct tt_proof_rank *state = &proof->ranks[rank];
  const struct tt_proof_strand *strands = proof->strands + (size_t)rank * proof->max_strands;
  for (uint32_t entry = 0; state->shared && entry < proof->width; entry++) {
    bool known = !state->shared->touch[entry];
    for (uint32_t i = 0; !known && i < proof->max_strands; i++)
      known = strands[i].clock[entry] >= state->shared->touch[entry];
    if (known) continue;
    return tt_proof_fail(proof, NULL, "step %d: rank %d ends while others may still use its memory", state->step, rank);
  }
  return true;
}

void tt_proof_shared_free(struct tt_proof_rank *state)
{
  struct tt_shared *shared = state->shared;
  if (!shared) return;
  for (uint32_t i = 0; i < shared->ncells; i++) free(shared->cells[i].readers);
  free(shared->touch);
  free(shared);
  state->shared = NULL;
}

/* ---- One copy ---- */

static bool fail(const struct access *access, const char *what)
{
  return tt_proof_fail(access->proof, access->strand, "%s chunk %u of rank %d's %s, %s",
                       access->operand->kind == TT_DST || access->operand->kind == TT_RECV ? "writes" : "reads",
                       access->chunk, access->owner, tt_proof_is_members(access->operand) ? "buffer" : "shared memory",
                       what);
}

static struct cell *cell_of(const struct access *access)
{
  return &access->proof->ranks[access->owner].shared->cells[access->chunk];
}

/* The strand's entry in the clocks plus one; 0 if its rank is not watched. */
static uint32_t entry_of(const struct access *access)
{
  int64_t watch = access->proof->ranks[access->strand->rank].watch;
  return watch < 0 ? 0 : (uint32_t)watch + access->strand->index + 1;
}

/* Whether the copy is there for this operation. */
static bool is_open(const struct access *access)
{
  const struct tt_proof_rank *owner = &access->proof->ranks[access->owner];
  if (owner->step != access->proof->ranks[access->strand->rank].step || !owner->shared)
    return fail(access, "which is not in this step");
  if (access->clock && owner->watch >= 0 && access->clock[owner->watch] < owner->shared->began)
    return fail(access, "which may not have begun this step");
  return true;
}

/* `time` as in proof_clock.c. */
static void note_touch(const struct access *access, uint32_t time)
{
  uint32_t entry = entry_of(access);
  if (entry) access->proof->ranks[access->owner].shared->touch[entry - 1] = time;
}

bool tt_proof_shared_open(struct tt_proof *proof, const struct tt_proof_strand *strand,
                          const struct tt_operand *operand, uint32_t chunk, int32_t owner, const uint32_t *clock)
{
  struct access access = {proof, strand, operand, chunk, owner, clock};
  return is_open(&access);
}

void tt_proof_shared_touch(struct tt_proof *proof, const struct tt_proof_strand *strand, int32_t owner, uint32_t time)
{
  struct access access = {.proof = proof, .strand = strand, .owner = owner};
  note_touch(&access, time);
}

static bool follows_writer(const struct access *access, const struct cell *cell)
{
  if (!cell->writer || cell->writer == entry_of(access) || cell->wrote <= access->clock[cell->writer - 1]) return true;
  return fail(access, "which another strand may be writing");
}

static bool note_reader(const struct access *access, struct cell *cell, uint32_t time)
{
  uint32_t entry = entry_of(access), at = 0;
  if (!entry) return true;
  while (at < cell->nreaders && cell->readers[at].entry != entry - 1) at++;
  if (at == cell->room) {
    uint32_t room = cell->room ? 2 * cell->room : 2;
    struct reader *readers = realloc(cell->readers, room * sizeof(*readers));
    if (!readers) return tt_proof_out_of_memory(access->proof);
    cell->readers = readers;
    cell->room = room;
  }
  cell->readers[at] = (struct reader){entry - 1, time};
  if (at == cell->nreaders) cell->nreaders++;
  return true;
}

static bool mark_copy(const struct access *access)
{
  if (!is_open(access)) return false;
  struct cell *cell = cell_of(access);
  if (cell->written >> 1 == access->proof->event) return fail(access, "twice in one instruction");
  cell->written = access->proof->event << 1 | (access->operand->kind == TT_DST);
  return true;
}

static bool read_copy(const struct access *access, struct tt_value *value)
{
  if (!is_open(access)) return false;
  struct cell *cell = cell_of(access);
  const struct tt_proof_strand *strand = access->strand;
  bool in_reduction = access->operand->kind == TT_SRC;
  if (cell->written >> 1 == access->proof->event && !(in_reduction && cell->written & 1))
    return fail(access, "which it writes in the same instruction");
  uint32_t time = 2 * strand->time + (in_reduction ? 0 : 1);
  if (!follows_writer(access, cell) || !note_reader(access, cell, time)) return false;
  note_touch(access, time);
  if (!cell->value.count) return fail(access, "to which nothing was written");
  if (cell->value.part != access->chunk % access->proof->ranks[strand->rank].program->parts ||
      cell->value.loop != strand->loop)
    return fail(access, "which holds something of another loop or part");
  *value = cell->value;
  return true;
}

static bool write_copy(const struct access *access, const struct tt_value *value)
{
  if (!is_open(access)) return false;
  struct cell *cell = cell_of(access);
  uint32_t own = entry_of(access), time = 2 * access->strand->time + 1;
  if (!follows_writer(access, cell)) return false;
  for (uint32_t i = 0; i < cell->nreaders; i++) {
    const struct reader *reader = &cell->readers[i];
    if (reader->entry + 1 != own && reader->time > access->clock[reader->entry])
      return fail(access, "which another strand may still have to read");
  }
  cell->nreaders = 0;
  cell->writer = own;
  cell->wrote = time;
  cell->value = *value;
  note_touch(access, time);
  return true;
}

/* ---- All copies that an operand means ---- */

static struct access start_access(struct tt_proof *proof, const struct tt_proof_strand *strand,
                                  const struct tt_operand *operand, uint32_t chunk, const uint32_t *clock)
{
  return (struct access){proof, strand, operand, chunk, -1, clock};
}

/* Goes to the next copy. */
static bool next_copy(struct access *access, uint32_t *number)
{
  const struct tt_program *program = access->proof->ranks[access->strand->rank].program;
  bool all = access->operand->buffer == TT_MULTICAST;
  if (*number >= (all ? program->nmembers : 1)) return false;
  access->owner = all ? program->members[*number] : program->rank;
  ++*number;
  return true;
}

bool tt_proof_shared_mark(struct tt_proof *proof, const struct tt_proof_strand *strand,
                          const struct tt_operand *operand, uint32_t chunk)
{
  struct access access = start_access(proof, strand, operand, chunk, NULL);
  for (uint32_t i = 0; next_copy(&access, &i);)
    if (!mark_copy(&access)) return false;
  return true;
}

/* The order in which a device adds the copies up is its own, so no two such sums are taken for the same. */
bool tt_proof_shared_read(struct tt_proof *proof, const struct tt_proof_strand *strand,
                          const struct tt_operand *operand, uint32_t chunk, const uint32_t *clock,
                          struct tt_value *value)
{
  struct access access = start_access(proof, strand, operand, chunk, proof->width ? clock : NULL);
  struct tt_value copy;
  *value = (struct tt_value){0};
  for (uint32_t i = 0; next_copy(&access, &i);)
    if (!read_copy(&access, &copy) || !tt_proof_fold(proof, strand, value, &copy)) return false;
  if (operand->buffer == TT_MULTICAST) value->order = tt_proof_mix(value->order ^ tt_proof_mix(proof->event));
  return true;
}

bool tt_proof_shared_write(struct tt_proof *proof, const struct tt_proof_strand *strand,
                           const struct tt_operand *operand, uint32_t chunk, const uint32_t *clock,
                           const struct tt_value *value)
{
  struct access access = start_access(proof, strand, operand, chunk, proof->width ? clock : NULL);
  for (uint32_t i = 0; next_copy(&access, &i);)
    if (!write_copy(&access, value)) return false;
  return true;
}
