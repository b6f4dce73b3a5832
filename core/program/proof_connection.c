/* Bounded FIFOs between ranks, and between ranks and networks, created when first used and kept for the whole sequence of steps. */
#include <stdlib.h>
#include <string.h>
#include "program/proof.h"

static size_t place_of(const struct tt_connections *connections, int32_t from, int32_t to)
{
  size_t at = tt_proof_mix(((uint64_t)(uint32_t)from << 32) | (uint32_t)to) & (connections->capacity - 1);
  while (connections->table[at] && (connections->table[at]->from != from || connections->table[at]->to != to))
    at = (at + 1) & (connections->capacity - 1);
  return at;
}

static bool make_room(struct tt_connections *connections)
{
  if (connections->table && 2 * connections->count < connections->capacity) return true;
  struct tt_connections bigger = {.capacity = connections->table ? 2 * connections->capacity : 64,
                                  .count = connections->count};
  bigger.table = calloc(bigger.capacity, sizeof(*bigger.table));
  if (!bigger.table) return false;
  for (size_t i = 0; i < connections->capacity; i++) {
    struct tt_connection *connection = connections->table[i];
    if (connection) bigger.table[place_of(&bigger, connection->from, connection->to)] = connection;
  }
  free(connections->table);
  *connections = bigger;
  return true;
}

struct tt_connection *tt_proof_connection(struct tt_proof *proof, int32_t from, int32_t to)
{
  struct tt_connections *connections = &proof->connections;
  if (!make_room(connections)) return NULL;
  size_t at = place_of(connections, from, to);
  if (connections->table[at]) return connections->table[at];
  size_t messages = proof->slots * sizeof(struct tt_message);
  struct tt_connection *connection =
      calloc(1, sizeof(*connection) + messages + (size_t)proof->slots * proof->width * sizeof(uint32_t));
  if (!connection) return NULL;
  *connection = (struct tt_connection){.from = from, .to = to, .slots = proof->slots, .sender = -1, .receiver = -1};
  connection->messages = (struct tt_message *)(connection + 1);
  connection->clocks = (uint32_t *)(connection->messages + proof->slots);
  connections->table[at] = connection;
  connections->count++;
  return connection;
}

struct tt_connection *tt_proof_link(struct tt_proof *proof, const struct tt_proof_strand *strand,
                                    const struct tt_operand *operand)
{
  struct tt_proof_rank *rank = &proof->ranks[strand->rank];
  bool sends = operand->kind == TT_SEND;
  struct tt_connection **link = &rank->links[2 * operand->peer + sends];
  if (*link) return *link;
  int32_t peer = rank->program->peers[operand->peer];
  *link = sends ? tt_proof_connection(proof, strand->rank, peer) : tt_proof_connection(proof, peer, strand->rank);
  if (!*link) tt_proof_out_of_memory(proof);
  return *link;
}

void tt_proof_push(struct tt_proof *proof, struct tt_connection *connection, const struct tt_message *message,
                   const uint32_t *clock)
{
  uint32_t slot = (connection->first + connection->count) % proof->slots;
  connection->messages[slot] = *message;
  tt_proof_clock_copy(proof, connection->clocks + (size_t)slot * proof->width, clock);
  connection->count++;
  tt_proof_wake(proof, &connection->receiver);
}

struct tt_message tt_proof_pop(struct tt_proof *proof, struct tt_connection *connection, const uint32_t **clock)
{
  uint32_t slot = connection->first;
  *clock = connection->clocks + (size_t)slot * proof->width;
  connection->first = (slot + 1) % proof->slots;
  connection->count--;
  tt_proof_wake(proof, &connection->sender);
  struct tt_message message = connection->messages[slot];
  connection->messages[slot].more = NULL;
  return message;
}

bool tt_proof_no_leftover(struct tt_proof *proof)
{
  for (size_t i = 0; i < proof->connections.capacity; i++) {
    const struct tt_connection *connection = proof->connections.table[i];
    if (!connection || !connection->count) continue;
    char from[32], to[32];
    return tt_proof_fail(proof, NULL, "%u messages from %s to %s were never received; the first is of step %u",
                         connection->count, tt_proof_peer_name(connection->from, from),
                         tt_proof_peer_name(connection->to, to), connection->messages[connection->first].step);
  }
  return true;
}

void tt_proof_connections_free(struct tt_connections *connections)
{
  for (size_t i = 0; i < connections->capacity; i++) {
    struct tt_connection *connection = connections->table[i];
    for (uint32_t k = 0; connection && k < connection->slots; k++) free(connection->messages[k].more);
    free(connection);
  }
  free(connections->table);
  memset(connections, 0, sizeof(*connections));
}
