/* Drives a simulation: events in the order of time. An instruction that can go on begins and is finished by an event;
 * then its messages start and its strand looks at the next one. Whoever waits is woken when what it waits for is known
 * to come, at the time at which it comes. */
#include "program/simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"
#include "program/emit.h"
#include "program/simulate_state.h"

/* Dispatches come after everything else of their time, so that they see all strands that can go on then. */
#define LAST ((uint64_t)1 << 63)

static bool earlier(const struct tt_sim_event *a, const struct tt_sim_event *b)
{
  return a->time < b->time || (a->time == b->time && a->order < b->order);
}

void *tt_sim_grow(struct tt_sim *sim, void *array, size_t count, size_t *room, size_t size)
{
  if (sim->failed) return NULL;
  if (count < *room) return array;
  size_t wanted = *room ? 2 * *room : 64;
  void *bigger = realloc(array, wanted * size);
  if (!bigger) {
    TT_FAIL(ncclSystemError, "out of memory for a simulation of %d ranks: %zu bytes", sim->input->nranks,
            wanted * size);
    sim->failed = true;
    return NULL;
  }
  *room = wanted;
  return bigger;
}

void tt_sim_schedule(struct tt_sim *sim, double time, enum tt_sim_event_kind kind, uint32_t target)
{
  struct tt_sim_event *heap = tt_sim_grow(sim, sim->heap, sim->nevents, &sim->event_room, sizeof(*heap));
  if (!heap) return;
  sim->heap = heap;
  uint64_t order = sim->made++ | (kind == TT_SIM_DISPATCH ? LAST : 0);
  struct tt_sim_event event = {.time = time, .order = order, .target = target, .kind = kind};
  size_t at = sim->nevents++;
  for (; at > 0 && earlier(&event, &heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
  heap[at] = event;
}

static struct tt_sim_event next_event(struct tt_sim *sim)
{
  struct tt_sim_event *heap = sim->heap, first = heap[0], last = heap[--sim->nevents];
  size_t at = 0;
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= sim->nevents) break;
    if (child + 1 < sim->nevents && earlier(&heap[child + 1], &heap[child])) child++;
    if (!earlier(&heap[child], &last)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = last;
  return first;
}

void tt_sim_wake(struct tt_sim *sim, uint32_t *waiter, double time)
{
  if (*waiter == TT_SIM_NONE) return;
  tt_sim_schedule(sim, time, TT_SIM_TRY, *waiter);
  *waiter = TT_SIM_NONE;
}

static void begin(struct tt_sim *sim, uint32_t id, double now)
{
  struct tt_sim_strand *strand = &sim->strands[id];
  strand->state = TT_SIM_BUSY;
  strand->start = now;
  tt_sim_schedule(sim, now + tt_sim_duration(sim, strand, tt_sim_current(sim, strand)), TT_SIM_FINISH, id);
}

static void dispatch_later(struct tt_sim *sim, uint32_t index, double now)
{
  struct tt_sim_rank *rank = &sim->ranks[index];
  if (rank->busy || rank->dispatched) return;
  rank->dispatched = true;
  tt_sim_schedule(sim, now, TT_SIM_DISPATCH, index);
}

/* Sequential: begins the first instruction of the rank that can go on. */
static void dispatch(struct tt_sim *sim, uint32_t index, double now)
{
  struct tt_sim_rank *rank = &sim->ranks[index];
  rank->dispatched = false;
  for (uint32_t i = 0; i < rank->program->nstrands; i++) {
    if (sim->strands[rank->first_strand + i].state != TT_SIM_READY) continue;
    rank->busy = true;
    begin(sim, rank->first_strand + i, now);
    return;
  }
}

/* Whether the strand's instruction need not wait. If it must, the strand will be woken. */
static bool can_begin(struct tt_sim *sim, uint32_t id, double now)
{
  struct tt_sim_strand *strand = &sim->strands[id];
  const struct tt_sim_rank *rank = &sim->ranks[strand->rank];
  const struct tt_instruction *instruction = tt_sim_current(sim, strand);
  if (instruction->opcode == TT_OP_WAIT && !rank->semaphores[instruction->semaphore].value) {
    rank->semaphores[instruction->semaphore].waiter = id;
    return false;
  }
  for (; strand->satisfied < instruction->noperands; strand->satisfied++) {
    const struct tt_operand *operand = &rank->program->operands[instruction->first_operand + strand->satisfied];
    if (!tt_sim_passes(sim, id, operand, now)) return false;
  }
  return true;
}

static void try_strand(struct tt_sim *sim, uint32_t id, double now)
{
  struct tt_sim_strand *strand = &sim->strands[id];
  if (!can_begin(sim, id, now)) return;
  if (!sim->input->sequential) {
    begin(sim, id, now);
    return;
  }
  strand->state = TT_SIM_READY;
  dispatch_later(sim, strand->rank, now);
}

static void record_span(struct tt_sim *sim, const struct tt_sim_strand *strand, double now)
{
  const struct tt_sim_rank *rank = &sim->ranks[strand->rank];
  struct tt_simulation *out = sim->out;
  struct tt_simulate_span *spans = tt_sim_grow(sim, out->spans, out->nspans, &sim->span_room, sizeof(*spans));
  if (!spans) return;
  out->spans = spans;
  spans[out->nspans++] = (struct tt_simulate_span){
      .channel = rank->channel,
      .rank = rank->rank,
      .strand = strand->index,
      .instruction = rank->program->strands[strand->index].first_instruction + strand->instruction,
      .repetition = strand->repetition,
      .loop = strand->loop,
      .arrived = strand->arrived,
      .start = strand->start,
      .end = now};
}

/* What the instruction does when it ends. */
static void deliver(struct tt_sim *sim, const struct tt_sim_strand *strand, double now)
{
  struct tt_sim_rank *rank = &sim->ranks[strand->rank];
  const struct tt_instruction *instruction = tt_sim_current(sim, strand);
  struct tt_sim_semaphore *semaphore = &rank->semaphores[instruction->semaphore];
  if (instruction->opcode == TT_OP_WAIT) semaphore->value--;
  if (instruction->opcode == TT_OP_SIGNAL) {
    semaphore->value++;
    tt_sim_wake(sim, &semaphore->waiter, now);
  }
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &rank->program->operands[instruction->first_operand + i];
    if (operand->kind == TT_SEND) tt_sim_send(sim, strand, operand, now);
    if (operand->kind == TT_RECV) tt_sim_take(sim, strand, operand, now);
    if (tt_sim_is_remote(rank->program, operand))
      sim->out->ranks[rank->rank].bytes += tt_sim_bytes(sim, strand, operand);
    if (operand->buffer == TT_MULTICAST) sim->out->ranks[rank->rank].multicast += tt_sim_bytes(sim, strand, operand);
  }
}

static void look_again(struct tt_sim *sim, uint32_t id, double now)
{
  sim->strands[id].state = TT_SIM_TRYING;
  sim->strands[id].arrived = now;
  try_strand(sim, id, now);
}

/* The strand is through with a loop. Sequential: the last one through lets all begin the next. */
static void next_loop(struct tt_sim *sim, uint32_t id, double now)
{
  struct tt_sim_strand *strand = &sim->strands[id];
  struct tt_sim_rank *rank = &sim->ranks[strand->rank];
  uint64_t loops = sim->input->channels[rank->channel].geometry.loops;
  strand->instruction = 0;
  if (++strand->loop == loops) {
    strand->state = TT_SIM_DONE;
    sim->unfinished--;
    return;
  }
  if (!sim->input->sequential) {
    look_again(sim, id, now);
    return;
  }
  strand->state = TT_SIM_ENDED;
  if (++rank->ended < rank->live) return;
  rank->ended = 0;
  for (uint32_t i = 0; i < rank->program->nstrands; i++) {
    uint32_t other = rank->first_strand + i;
    if (sim->strands[other].state == TT_SIM_ENDED) look_again(sim, other, now);
  }
}

static void finish(struct tt_sim *sim, uint32_t id, double now)
{
  struct tt_sim_strand *strand = &sim->strands[id];
  struct tt_sim_rank *rank = &sim->ranks[strand->rank];
  struct tt_simulate_rank *out = &sim->out->ranks[rank->rank];
  out->finish = TT_MAX(out->finish, now);
  sim->out->time = TT_MAX(sim->out->time, now);
  if (sim->input->record) record_span(sim, strand, now);
  deliver(sim, strand, now);
  strand->satisfied = 0;
  rank->busy = false;
  if (sim->input->sequential) dispatch_later(sim, strand->rank, now);
  if (++strand->repetition < tt_sim_current(sim, strand)->repeat) {
    look_again(sim, id, now);
    return;
  }
  strand->repetition = 0;
  if (++strand->instruction < rank->program->strands[strand->index].ninstructions)
    look_again(sim, id, now);
  else
    next_loop(sim, id, now);
}

static void run(struct tt_sim *sim)
{
  while (sim->nevents && !sim->failed) {
    struct tt_sim_event event = next_event(sim);
    if (event.kind == TT_SIM_FINISH)
      finish(sim, event.target, event.time);
    else if (event.kind == TT_SIM_TRY)
      try_strand(sim, event.target, event.time);
    else if (event.kind == TT_SIM_LAND)
      tt_sim_land(sim, event.target, event.time);
    else
      dispatch(sim, event.target, event.time);
  }
}

/* Names the first strand that waits, and for what. */
static ncclResult_t report_deadlock(const struct tt_sim *sim)
{
  const struct tt_sim_strand *strand = sim->strands;
  while (strand->state != TT_SIM_TRYING) strand++;
  const struct tt_sim_rank *rank = &sim->ranks[strand->rank];
  const struct tt_program *program = rank->program;
  const struct tt_instruction *instruction = tt_sim_current(sim, strand);
  char what[64];
  if (instruction->opcode == TT_OP_DATA) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + strand->satisfied];
    int32_t peer = program->peers[operand->peer];
    const char *way = operand->kind == TT_RECV ? "a message from" : "room in the FIFO to";
    snprintf(what, sizeof(what), "%s %s %d", way, peer < 0 ? "network" : "rank",
             peer < 0 ? TT_PEER_NETWORK - peer : peer);
  } else {
    snprintf(what, sizeof(what), "semaphore %d", instruction->semaphore);
  }
  return TT_FAIL(ncclInternalError,
                 "%s with algorithm %s deadlocks with %u slots%s: rank %d, strand %u, instruction %u, repetition %u of "
                 "loop %llu waits for %s forever, as %u of %u strands do",
                 tt_collective_name(program->collective), tt_algorithm_name(program->algorithm), sim->slots,
                 sim->input->sequential ? ", run sequentially" : "", rank->rank, strand->index,
                 (uint32_t)(instruction - program->instructions), strand->repetition, (unsigned long long)strand->loop,
                 what, sim->unfinished, sim->nstrands);
}

ncclResult_t tt_simulate(const struct tt_simulate_input *input, struct tt_simulation *out)
{
  struct tt_sim sim = {
      .input = input, .out = out, .slots = input->slots ? input->slots : TT_SLOTS, .free_journey = TT_SIM_NONE};
  *out = (struct tt_simulation){0};
  ncclResult_t result = tt_sim_start(&sim);
  if (result == ncclSuccess) run(&sim);
  if (sim.failed) result = ncclSystemError;
  if (result == ncclSuccess && sim.unfinished) result = report_deadlock(&sim);
  tt_sim_end(&sim);
  if (result != ncclSuccess) tt_simulation_free(out);
  return result;
}

void tt_simulation_free(struct tt_simulation *simulation)
{
  free(simulation->ranks);
  free(simulation->spans);
  free(simulation->flights);
  *simulation = (struct tt_simulation){0};
}
