/* Connections of the simulator, and networks that reduce: when a message may be sent, and when it is there. */
#include <stdlib.h>
#include "base/check.h"
#include "program/simulate_state.h"

enum { NEAR, FAR, NETWORK, CLASSES };

static size_t slot_of(const struct tt_sim_connections *connections, int32_t channel, int32_t from, int32_t to)
{
  uint64_t key = ((uint64_t)(uint32_t)channel << 52) ^ ((uint64_t)(uint32_t)from << 26) ^ (uint64_t)(uint32_t)to;
  size_t at = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (connections->capacity - 1);
  for (;; at = (at + 1) & (connections->capacity - 1)) {
    const struct tt_sim_connection *found = connections->table[at];
    if (!found || (found->channel == channel && found->from == from && found->to == to)) return at;
  }
}

static bool grow_table(struct tt_sim_connections *connections)
{
  struct tt_sim_connections bigger = {.count = connections->count,
                                      .capacity = connections->capacity ? 2 * connections->capacity : 64};
  if (TT_CALLOC(&bigger.table, bigger.capacity) != ncclSuccess) return false;
  for (size_t i = 0; i < connections->capacity; i++) {
    struct tt_sim_connection *moved = connections->table[i];
    if (moved) bigger.table[slot_of(&bigger, moved->channel, moved->from, moved->to)] = moved;
  }
  free(connections->table);
  *connections = bigger;
  return true;
}

static struct tt_sim_connection *find(struct tt_sim *sim, int32_t channel, int32_t from, int32_t to)
{
  struct tt_sim_connections *connections = &sim->connections;
  if (2 * connections->count >= connections->capacity && !grow_table(connections)) return NULL;
  size_t at = slot_of(connections, channel, from, to);
  if (connections->table[at]) return connections->table[at];
  struct tt_sim_connection *made;
  size_t bytes = sizeof(*made) + sim->slots * sizeof(made->times[0]);
  if (tt_check_calloc((void **)&made, 1, bytes, __FILE__, __LINE__, __func__) != ncclSuccess) return NULL;
  made->channel = channel;
  made->from = from;
  made->to = to;
  made->sender = made->receiver = TT_SIM_NONE;
  connections->count++;
  return connections->table[at] = made;
}

/* The connection of an operand whose peer is a rank. NULL if memory is short. */
static struct tt_sim_connection *link_of(struct tt_sim *sim, const struct tt_sim_strand *strand,
                                         const struct tt_operand *operand)
{
  struct tt_sim_rank *rank = &sim->ranks[strand->rank];
  bool sends = operand->kind == TT_SEND;
  struct tt_sim_connection **link = &rank->links[2 * operand->peer + sends];
  if (*link) return *link;
  int32_t peer = rank->program->peers[operand->peer];
  *link = find(sim, rank->channel, sends ? rank->rank : peer, sends ? peer : rank->rank);
  if (!*link) sim->failed = true;
  return *link;
}

/* The place at the network that the operand names; NULL where its peer is a rank. */
static struct tt_sim_member *place_at(const struct tt_sim *sim, const struct tt_sim_strand *strand,
                                      const struct tt_operand *operand)
{
  return sim->ranks[strand->rank].places[operand->peer];
}

static const struct tt_simulate_link *class_of(const struct tt_sim *sim, int32_t from, int32_t to, int *number)
{
  const struct tt_simulate_cost *cost = sim->input->cost;
  const int32_t *node = sim->input->node;
  *number = to < 0 ? NETWORK : node && node[from] != node[to] ? FAR : NEAR;
  return *number == NETWORK ? &cost->network : *number == FAR ? &cost->far : &cost->near;
}

/* The port that a rank sends by (or receives by) over a class of links; NULL: the connection's own. */
static double *port_of(struct tt_sim *sim, const struct tt_simulate_link *link, int number, int32_t rank, bool sends)
{
  if (link->sharing == TT_SHARE_NONE || rank < 0) return NULL;
  size_t each = (size_t)sim->input->nranks + (size_t)sim->nnodes;
  size_t at = link->sharing == TT_SHARE_RANK
                  ? (size_t)rank
                  : (size_t)sim->input->nranks + (size_t)(sim->input->node ? sim->input->node[rank] : 0);
  return &sim->ports[((size_t)number * 2 + sends) * each + at];
}

static void record_flight(struct tt_sim *sim, int32_t channel, int32_t from, int32_t to, size_t bytes, double start,
                          double end)
{
  struct tt_simulation *out = sim->out;
  struct tt_simulate_flight *flights =
      tt_sim_grow(sim, out->flights, out->nflights, &sim->flight_room, sizeof(*flights));
  if (!flights) return;
  out->flights = flights;
  flights[out->nflights++] = (struct tt_simulate_flight){
      .channel = channel, .from = from, .to = to, .bytes = bytes, .start = start, .end = end};
}

/* The message that left its rank at `sent` is known to be there at `there`. */
static void arrive(struct tt_sim *sim, struct tt_sim_connection *link, size_t bytes, double sent, double there)
{
  link->times[link->landed++ % sim->slots] = there;
  tt_sim_wake(sim, &link->receiver, there);
  if (sim->input->record) record_flight(sim, link->channel, link->from, link->to, bytes, sent, there);
}

/* Ports are taken in the order in which messages come to them: so a message that waited at its sender's port takes the
 * receiver's when it gets there. */
static void depart(struct tt_sim *sim, struct tt_sim_connection *link, size_t bytes, double now)
{
  int number;
  const struct tt_simulate_link *kind = class_of(sim, link->from, link->to, &number);
  double *port = port_of(sim, kind, number, link->from, true);
  double *busy = port ? port : &link->busy;
  double start = TT_MAX(now, *busy);
  *busy = start + kind->gap + (double)bytes * kind->byte;
  if (!port) {
    arrive(sim, link, bytes, now, *busy + kind->latency);
    return;
  }
  uint32_t journey = sim->free_journey;
  if (journey == TT_SIM_NONE) {
    struct tt_sim_journey *journeys =
        tt_sim_grow(sim, sim->journeys, sim->njourneys, &sim->journey_room, sizeof(*journeys));
    if (!journeys) return;
    sim->journeys = journeys;
    journey = (uint32_t)sim->njourneys++;
  } else {
    sim->free_journey = sim->journeys[journey].next;
  }
  sim->journeys[journey] = (struct tt_sim_journey){.link = link, .bytes = bytes, .sent = now};
  tt_sim_schedule(sim, start, TT_SIM_LAND, journey);
}

void tt_sim_land(struct tt_sim *sim, uint32_t journey, double now)
{
  int number;
  struct tt_sim_journey *end = &sim->journeys[journey];
  const struct tt_simulate_link *kind = class_of(sim, end->link->from, end->link->to, &number);
  double *port = port_of(sim, kind, number, end->link->to, false);
  *port = TT_MAX(now, *port) + kind->gap + (double)end->bytes * kind->byte;
  arrive(sim, end->link, end->bytes, end->sent, *port + kind->latency);
  end->next = sim->free_journey;
  sim->free_journey = journey;
}

/* A strand whose way is free at `when` looks again then, unless that is now. */
static bool is_past(struct tt_sim *sim, uint32_t strand, double when, double now)
{
  if (when <= now) return true;
  tt_sim_schedule(sim, when, TT_SIM_TRY, strand);
  return false;
}

static bool passes_network(struct tt_sim *sim, uint32_t strand, struct tt_sim_member *member, bool receives, double now)
{
  const struct tt_sim_network *network = member->network;
  if (receives) {
    if (network->reduced > member->taken) return is_past(sim, strand, network->result[member->taken % sim->slots], now);
    member->receiver = strand;
    return false;
  }
  if (member->sent < sim->slots) return true;
  if (member->sent < network->reduced + sim->slots)
    return is_past(sim, strand, network->result[member->sent % sim->slots], now);
  member->sender = strand;
  return false;
}

/* Reduces all steps that can be. A result's time stays in `result` until all have taken it: until then someone has no
 * room for the step that would use its place. */
static void reduce(struct tt_sim *sim, struct tt_sim_network *network, double now)
{
  for (;;) {
    uint32_t at = (uint32_t)(network->reduced % sim->slots);
    if (network->full || network->sent[at] < network->nmembers) return;
    network->result[at] = TT_MAX(network->sent_at[at], now) + sim->input->cost->network.latency;
    network->sent[at] = 0;
    network->reduced++;
    for (uint32_t i = 0; i < network->nmembers; i++) {
      struct tt_sim_member *member = &network->members[i];
      tt_sim_wake(sim, &member->receiver, network->result[at]);
      tt_sim_wake(sim, &member->sender, network->result[at]);
      if (network->reduced - member->taken == sim->slots) network->full++;
    }
  }
}

bool tt_sim_passes(struct tt_sim *sim, uint32_t strand, const struct tt_operand *operand, double now)
{
  const struct tt_sim_strand *state = &sim->strands[strand];
  if (operand->kind != TT_RECV && operand->kind != TT_SEND) return true;
  struct tt_sim_member *member = place_at(sim, state, operand);
  if (member) return passes_network(sim, strand, member, operand->kind == TT_RECV, now);
  struct tt_sim_connection *link = link_of(sim, state, operand);
  if (!link) return false;
  if (operand->kind == TT_RECV) {
    if (link->landed > link->taken) return is_past(sim, strand, link->times[link->taken % sim->slots], now);
    link->receiver = strand;
    return false;
  }
  if (link->sent < sim->slots) return true;
  if (link->sent - link->taken < sim->slots) return is_past(sim, strand, link->times[link->sent % sim->slots], now);
  link->sender = strand;
  return false;
}

/* A message to a network. It is reduced with the others of its step. */
static void join_step(struct tt_sim *sim, const struct tt_sim_rank *rank, int32_t to, struct tt_sim_member *member,
                      size_t bytes, double now)
{
  int number;
  struct tt_sim_network *network = member->network;
  const struct tt_simulate_link *kind = class_of(sim, rank->rank, to, &number);
  double *port = port_of(sim, kind, number, rank->rank, true);
  double *busy = port ? port : &member->busy;
  *busy = TT_MAX(now, *busy) + kind->gap + (double)bytes * kind->byte;
  uint32_t at = (uint32_t)(member->sent++ % sim->slots);
  network->sent_at[at] = network->sent[at]++ ? TT_MAX(network->sent_at[at], *busy) : *busy;
  if (sim->input->record) record_flight(sim, rank->channel, rank->rank, to, bytes, now, *busy + kind->latency);
  reduce(sim, network, now);
}

void tt_sim_send(struct tt_sim *sim, const struct tt_sim_strand *strand, const struct tt_operand *operand, double now)
{
  const struct tt_sim_rank *rank = &sim->ranks[strand->rank];
  struct tt_simulate_rank *out = &sim->out->ranks[rank->rank];
  struct tt_sim_member *member = place_at(sim, strand, operand);
  size_t bytes = tt_sim_bytes(sim, strand, operand);
  out->messages++;
  out->bytes += bytes;
  if (member) {
    join_step(sim, rank, rank->program->peers[operand->peer], member, bytes, now);
    return;
  }
  struct tt_sim_connection *link = link_of(sim, strand, operand);
  link->sent++;
  depart(sim, link, bytes, now);
}

void tt_sim_take(struct tt_sim *sim, const struct tt_sim_strand *strand, const struct tt_operand *operand, double now)
{
  struct tt_sim_member *member = place_at(sim, strand, operand);
  if (member) {
    struct tt_sim_network *network = member->network;
    if (network->reduced - member->taken++ == sim->slots) network->full--;
    reduce(sim, network, now);
    return;
  }
  int number;
  struct tt_sim_connection *link = link_of(sim, strand, operand);
  double free = now + class_of(sim, link->from, link->to, &number)->latency;
  link->times[link->taken++ % sim->slots] = free;
  tt_sim_wake(sim, &link->sender, free);
}
