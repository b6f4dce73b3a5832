/* Networks that reduce. A network is a pair of connections to each of its members: once every member has a message on
 * its way and room for another, the network takes one from each, reduces them in the order of its members and gives
 * the result to all. Nothing else is done by it, and nothing is kept in it.
 *
 * Members are the ranks whose programs name the network, the same in all steps that use it: a network is set up once
 * for certain ranks. */
#include <stdio.h>
#include <stdlib.h>
#include "program/proof.h"

struct tt_proof_network {
  int32_t *members; /* ascending */
  int32_t nmembers, room;
  int first_step, step, seen;   /* while the steps are read: the last one that uses it, and the members met there */
  struct tt_connection **links; /* to the network and from it, for each member; found at first use */
};

static int32_t peer_of(int32_t network)
{
  return TT_PEER_NETWORK - network;
}

const char *tt_proof_peer_name(int32_t peer, char name[32])
{
  snprintf(name, 32, peer < 0 ? "network %d" : "rank %d", peer < 0 ? TT_PEER_NETWORK - peer : peer);
  return name;
}

/* Notes a rank that names the network in a step. */
static bool add_member(struct tt_proof *proof, int32_t number, int step, int32_t rank)
{
  struct tt_proof_network *network = &proof->networks[number];
  if (network->step != step) network->seen = 0;
  bool first_step = !network->nmembers || network->first_step == step;
  network->step = step;
  if (first_step && network->seen == network->room) {
    int32_t room = network->room ? 2 * network->room : 4;
    int32_t *members = realloc(network->members, (size_t)room * sizeof(*members));
    if (!members) return tt_proof_out_of_memory(proof);
    network->members = members;
    network->room = room;
  }
  if (first_step) {
    network->first_step = step;
    network->members[network->nmembers++] = rank;
  }
  if (network->seen < network->nmembers && network->members[network->seen] == rank) {
    network->seen++;
    return true;
  }
  return tt_proof_fail(proof, NULL, "step %d: rank %d takes part in network %d, whose members were others in step %d",
                       step, rank, number, network->first_step);
}

static bool add_members(struct tt_proof *proof, int step)
{
  for (int32_t rank = 0; rank < proof->nranks; rank++) {
    const struct tt_program *program = proof->steps[step].programs[rank];
    for (uint32_t i = 0; program && i < program->npeers; i++) {
      int32_t number = TT_PEER_NETWORK - program->peers[i];
      if (number >= 0 && !add_member(proof, number, step, rank)) return false;
    }
  }
  for (int32_t number = 0; number < proof->nnetworks; number++) {
    const struct tt_proof_network *network = &proof->networks[number];
    if (!network->nmembers || network->step != step || network->seen == network->nmembers) continue;
    return tt_proof_fail(proof, NULL, "step %d: %d of %d members of network %d take part", step, network->seen,
                         network->nmembers, number);
  }
  return true;
}

bool tt_proof_networks_start(struct tt_proof *proof)
{
  for (int step = 0; step < proof->nsteps; step++) {
    for (int32_t rank = 0; rank < proof->nranks; rank++) {
      const struct tt_program *program = proof->steps[step].programs[rank];
      for (uint32_t i = 0; program && i < program->npeers; i++) {
        int32_t number = TT_PEER_NETWORK - program->peers[i];
        if (number >= proof->nnetworks) proof->nnetworks = number + 1;
      }
    }
  }
  if (!proof->nnetworks) return true;
  proof->networks = calloc((size_t)proof->nnetworks, sizeof(*proof->networks));
  if (!proof->networks) return tt_proof_out_of_memory(proof);
  for (int step = 0; step < proof->nsteps; step++) {
    if (!add_members(proof, step)) return false;
  }
  for (int32_t number = 0; number < proof->nnetworks; number++) {
    struct tt_proof_network *network = &proof->networks[number];
    network->links = calloc(2 * (size_t)network->nmembers + 1, sizeof(struct tt_connection *));
    if (!network->links) return tt_proof_out_of_memory(proof);
  }
  return true;
}

void tt_proof_networks_free(struct tt_proof *proof)
{
  for (int32_t number = 0; proof->networks && number < proof->nnetworks; number++) {
    free(proof->networks[number].members);
    free(proof->networks[number].links);
  }
  free(proof->networks);
}

static bool find_links(struct tt_proof *proof, int32_t number)
{
  struct tt_proof_network *network = &proof->networks[number];
  for (int32_t i = 0; i < network->nmembers && !network->links[2 * i + 1]; i++) {
    network->links[2 * i] = tt_proof_connection(proof, network->members[i], peer_of(number));
    network->links[2 * i + 1] = tt_proof_connection(proof, peer_of(number), network->members[i]);
    if (!network->links[2 * i] || !network->links[2 * i + 1]) return tt_proof_out_of_memory(proof);
  }
  return true;
}

static bool is_ready(const struct tt_proof *proof, const struct tt_proof_network *network)
{
  for (int32_t i = 0; i < network->nmembers; i++) {
    if (!network->links[2 * i]->count || network->links[2 * i + 1]->count == proof->slots) return false;
  }
  return true;
}

static bool check_input(struct tt_proof *proof, const struct tt_proof_strand *strand, int32_t number, int32_t member,
                        const struct tt_message *first, const struct tt_message *message)
{
  const struct tt_value *one = &first->value, *other = &message->value;
  if (message->count != 1)
    return tt_proof_fail(proof, strand, "network %d gets a list of %u chunks from rank %d", number, message->count,
                         member);
  if (other->final)
    return tt_proof_fail(proof, strand, "network %d gets a value from rank %d that was already final", number, member);
  if (first->step == message->step && first->parts == message->parts && one->part == other->part &&
      one->loop == other->loop)
    return true;
  return tt_proof_fail(proof, strand,
                       "network %d would reduce part %u of loop %u of step %u with rank %d's part %u of loop %u of "
                       "step %u",
                       number, one->part, one->loop, first->step, member, other->part, other->loop, message->step);
}

/* One message of each member, whose inputs' clocks are joined in the network's. */
static bool reduce(struct tt_proof *proof, const struct tt_proof_strand *strand, int32_t number)
{
  struct tt_proof_network *network = &proof->networks[number];
  struct tt_message first = {0}, result = {0};
  for (int32_t i = 0; i < network->nmembers; i++) {
    const uint32_t *clock;
    struct tt_message message = tt_proof_pop(proof, network->links[2 * i], &clock);
    if (i == 0) {
      first = result = message;
      result.value.count = 0;
      result.more = NULL;
      tt_proof_clock_copy(proof, proof->network_clock, clock);
    } else {
      tt_proof_clock_join(proof, proof->network_clock, clock);
    }
    bool good = check_input(proof, strand, number, network->members[i], &first, &message) &&
                tt_proof_fold(proof, strand, &result.value, &message.value);
    free(message.more);
    if (!good) return false;
  }
  for (int32_t i = 0; i < network->nmembers; i++)
    tt_proof_push(proof, network->links[2 * i + 1], &result, proof->network_clock);
  return true;
}

bool tt_proof_networks_advance(struct tt_proof *proof, const struct tt_proof_strand *strand,
                               const struct tt_instruction *instruction)
{
  const struct tt_program *program = proof->ranks[strand->rank].program;
  for (uint32_t i = 0; proof->nnetworks && i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    if (operand->kind != TT_RECV && operand->kind != TT_SEND) continue;
    int32_t peer = program->peers[operand->peer];
    if (peer >= 0) continue;
    int32_t number = TT_PEER_NETWORK - peer;
    if (!find_links(proof, number)) return false;
    while (is_ready(proof, &proof->networks[number])) {
      if (!reduce(proof, strand, number)) return false;
    }
  }
  return true;
}
