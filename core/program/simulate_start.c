/* From the input to the simulator's first state: ranks, strands, networks, ports. */
#include <math.h>
#include <stdlib.h>
#include "base/check.h"
#include "program/simulate_state.h"

static ncclResult_t check_time(const char *what, double value)
{
  if (isfinite(value) && value >= 0) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument, "the simulator's cost of %s is %g; it must be a time", what, value);
}

static ncclResult_t check_link(const struct tt_simulate_link *link)
{
  TT_TRY(check_time("a link's latency", link->latency));
  TT_TRY(check_time("a link's gap", link->gap));
  return check_time("a byte on a link", link->byte);
}

static ncclResult_t check_input(const struct tt_simulate_input *input)
{
  const struct tt_simulate_cost *cost = input->cost;
  TT_TRY(check_link(&cost->near));
  TT_TRY(check_link(&cost->far));
  TT_TRY(check_link(&cost->network));
  TT_TRY(check_link(&cost->multicast));
  TT_TRY(check_time("an instruction", cost->instruction));
  TT_TRY(check_time("a message", cost->message));
  TT_TRY(check_time("a semaphore", cost->semaphore));
  TT_TRY(check_time("reducing a byte", cost->reduce_byte));
  TT_TRY(check_time("copying a byte", cost->copy_byte));
  if (input->nranks < 1 || input->nchannels < 1) {
    return TT_FAIL(ncclInvalidArgument, "a simulation of %d ranks and %d channels; it needs one of each at least",
                   input->nranks, input->nchannels);
  }
  for (int rank = 0; input->node && rank < input->nranks; rank++) {
    if (input->node[rank] < 0 || input->node[rank] >= input->nranks)
      return TT_FAIL(ncclInvalidArgument, "rank %d is on node %d, outside 0..%d", rank, input->node[rank],
                     input->nranks - 1);
  }
  for (int i = 0; i < input->nchannels; i++) {
    if (!input->channels[i].geometry.loops)
      return TT_FAIL(ncclInvalidArgument, "channel %d has no loops; it needs one at least", i);
  }
  return ncclSuccess;
}

static ncclResult_t start_rank(struct tt_sim *sim, uint32_t index)
{
  struct tt_sim_rank *rank = &sim->ranks[index];
  const struct tt_program *program = rank->program;
  TT_TRY(TT_CALLOC(&rank->links, 2 * (size_t)program->npeers + 1));
  TT_TRY(TT_CALLOC(&rank->places, (size_t)program->npeers + 1));
  TT_TRY(TT_CALLOC(&rank->semaphores, (size_t)program->nsemaphores + 1));
  for (uint32_t i = 0; i < program->nsemaphores; i++) rank->semaphores[i].waiter = TT_SIM_NONE;
  for (uint32_t i = 0; i < program->nstrands; i++) {
    struct tt_sim_strand *strand = &sim->strands[rank->first_strand + i];
    *strand = (struct tt_sim_strand){.rank = index, .index = i, .state = TT_SIM_DONE};
    if (!program->strands[i].ninstructions) continue;
    strand->state = TT_SIM_TRYING;
    rank->live++;
    sim->unfinished++;
    tt_sim_schedule(sim, 0, TT_SIM_TRY, rank->first_strand + i);
  }
  return ncclSuccess;
}

/* Numbers the members of all networks; `place`: and tells ranks their places. */
static void join_networks(struct tt_sim *sim, bool place)
{
  size_t all = (size_t)sim->input->nranks * (size_t)sim->input->nchannels;
  for (size_t i = 0; i < all; i++) {
    struct tt_sim_rank *rank = &sim->ranks[i];
    for (uint32_t peer = 0; rank->program && peer < rank->program->npeers; peer++) {
      int32_t number = TT_PEER_NETWORK - rank->program->peers[peer];
      if (number < 0) continue;
      struct tt_sim_network *network = &sim->networks[(size_t)rank->channel * sim->nnetworks + (uint32_t)number];
      uint32_t member = network->nmembers++;
      if (!place) continue;
      network->members[member] =
          (struct tt_sim_member){.network = network, .sender = TT_SIM_NONE, .receiver = TT_SIM_NONE};
      rank->places[peer] = &network->members[member];
    }
  }
}

static ncclResult_t start_networks(struct tt_sim *sim)
{
  size_t all = sim->nnetworks * (size_t)sim->input->nchannels;
  join_networks(sim, false);
  for (size_t i = 0; i < all; i++) {
    struct tt_sim_network *network = &sim->networks[i];
    if (!network->nmembers) continue;
    TT_TRY(TT_CALLOC(&network->members, network->nmembers));
    TT_TRY(TT_CALLOC(&network->sent, sim->slots));
    TT_TRY(TT_CALLOC(&network->sent_at, sim->slots));
    TT_TRY(TT_CALLOC(&network->result, sim->slots));
    network->nmembers = 0;
  }
  join_networks(sim, true);
  return ncclSuccess;
}

static uint32_t networks_of(const struct tt_program *program)
{
  int32_t last = 0;
  for (uint32_t i = 0; i < program->npeers; i++) last = TT_MIN(last, program->peers[i]);
  return (uint32_t)(TT_PEER_NETWORK + 1 - last);
}

static ncclResult_t lay_out(struct tt_sim *sim)
{
  const struct tt_simulate_input *input = sim->input;
  size_t nranks = (size_t)input->nranks, all = nranks * (size_t)input->nchannels;
  TT_TRY(TT_CALLOC(&sim->out->ranks, nranks));
  TT_TRY(TT_CALLOC(&sim->ranks, all));
  for (size_t i = 0; i < all; i++) {
    struct tt_sim_rank *rank = &sim->ranks[i];
    rank->channel = (int32_t)(i / nranks);
    rank->rank = (int32_t)(i % nranks);
    rank->program = input->channels[rank->channel].programs[rank->rank];
    rank->first_strand = sim->nstrands;
    if (!rank->program) continue;
    sim->nstrands += rank->program->nstrands;
    sim->nnetworks = TT_MAX(sim->nnetworks, networks_of(rank->program));
  }
  sim->nnodes = 1;
  for (size_t i = 0; input->node && i < nranks; i++) sim->nnodes = TT_MAX(sim->nnodes, input->node[i] + 1);
  /* Of three classes of links, in and out, of each rank and each node. */
  TT_TRY(TT_CALLOC(&sim->ports, 6 * (nranks + (size_t)sim->nnodes)));
  TT_TRY(TT_CALLOC(&sim->networks, sim->nnetworks * (size_t)input->nchannels + 1));
  return TT_CALLOC(&sim->strands, (size_t)sim->nstrands + 1);
}

ncclResult_t tt_sim_start(struct tt_sim *sim)
{
  TT_TRY(check_input(sim->input));
  TT_TRY(lay_out(sim));
  for (size_t i = 0; i < (size_t)sim->input->nranks * (size_t)sim->input->nchannels; i++)
    if (sim->ranks[i].program) TT_TRY(start_rank(sim, (uint32_t)i));
  return start_networks(sim);
}

void tt_sim_end(struct tt_sim *sim)
{
  size_t all = sim->ranks ? (size_t)sim->input->nranks * (size_t)sim->input->nchannels : 0;
  for (size_t i = 0; i < all; i++) {
    free(sim->ranks[i].links);
    free(sim->ranks[i].places);
    free(sim->ranks[i].semaphores);
  }
  for (size_t i = 0; sim->networks && i < sim->nnetworks * (size_t)sim->input->nchannels; i++) {
    free(sim->networks[i].members);
    free(sim->networks[i].sent);
    free(sim->networks[i].sent_at);
    free(sim->networks[i].result);
  }
  for (size_t i = 0; i < sim->connections.capacity; i++) free(sim->connections.table[i]);
  free(sim->connections.table);
  free(sim->networks);
  free(sim->strands);
  free(sim->ranks);
  free(sim->ports);
  free(sim->journeys);
  free(sim->heap);
}
