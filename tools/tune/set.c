/* See set.h. */
#include "set.h"

#include <stdlib.h>
#include "base/check.h"
#include "program/validate.h"

/* More ranks are proved in one order only: it takes seconds. */
enum { MANY_RANKS = 64, ORDERS = 4 };

static bool emit(struct tune_set *set, const struct tune_options *options, int rank)
{
  struct tt_emit_request request = {.collective = set->collective,
                                    .algorithm = set->algorithm,
                                    .nranks = set->nranks,
                                    .rank = rank,
                                    .root = options->root,
                                    .tree_index = set->algorithm == TT_ALGO_TREE ? set->channel % 2 : set->channel,
                                    .node = set->node,
                                    .most_pieces = options->pieces};
  if (set->collective == TT_FUNC_SEND_RECV) {
    if (rank != options->root && rank != options->peer) return true;
    request.collective = rank == options->root ? TT_FUNC_SEND : TT_FUNC_RECV;
    request.peer = rank == options->root ? options->peer : options->root;
    request.root = 0;
  }
  return tt_program_emit(&request, &set->programs[rank]) == ncclSuccess;
}

bool tune_set_make(struct tune_set *set, const struct tune_options *options, int collective, int algorithm, int channel,
                   char *error, size_t size)
{
  size_t n = (size_t)options->nranks;
  *set = (struct tune_set){.nranks = options->nranks,
                           .nodes = options->nodes,
                           .channel = channel,
                           .collective = collective,
                           .algorithm = algorithm,
                           .programs = calloc(n, sizeof(*set->programs)),
                           .node = calloc(n, sizeof(*set->node))};
  bool made = set->programs && set->node;
  if (!made) snprintf(error, size, "out of memory");
  for (size_t rank = 0; made && rank < n; rank++) set->node[rank] = (int32_t)(rank * (size_t)options->nodes / n);
  for (int rank = 0; made && rank < options->nranks; rank++) {
    made = emit(set, options, rank);
    if (!made) snprintf(error, size, "%s", tt_log_thread_error());
  }
  if (!made) tune_set_free(set);
  return made;
}

void tune_set_free(struct tune_set *set)
{
  for (int rank = 0; set->programs && rank < set->nranks; rank++) tt_program_free(set->programs[rank]);
  free(set->programs);
  free(set->node);
  *set = (struct tune_set){0};
}

const struct tt_program *const *tune_set_programs(const struct tune_set *set)
{
  return (const struct tt_program *const *)set->programs;
}

uint32_t tune_set_parts(const struct tune_set *set)
{
  uint32_t parts = 1;
  for (int rank = 0; rank < set->nranks; rank++)
    if (set->programs[rank]) parts = set->programs[rank]->parts;
  return parts;
}

uint32_t tune_set_blocks(const struct tune_set *set)
{
  return tt_collective_has_blocks(set->collective) ? (uint32_t)set->nranks : 1;
}

bool tune_set_prove(const struct tune_set *set, const struct tune_options *options, char *why, size_t size)
{
  bool in_place = set->collective != TT_FUNC_SEND_RECV && tt_program_in_place(set->collective, set->algorithm);
  for (uint64_t seed = 0; seed < (set->nranks > MANY_RANKS ? 1 : ORDERS); seed++) {
    for (int way = 0; way <= in_place; way++) {
      struct tt_validate_step step = {
          .programs = tune_set_programs(set), .loops = (uint32_t)options->loops, .in_place = way};
      struct tt_validate_options how = {.slots = (uint32_t)options->slots, .seed = seed, .same_everywhere = true};
      if (tt_program_validate(set->nranks, &step, 1, &how, why, size) != ncclSuccess) return false;
    }
  }
  return true;
}

int tune_channels(int algorithm)
{
  return algorithm == TT_ALGO_TREE ? 2 : 1;
}

bool tune_set_count(const struct tune_set *sets, int nsets, struct tune_counts *counts, char *error, size_t size)
{
  struct tt_simulation simulation;
  struct tt_simulate_channel channels[TUNE_MOST_CHANNELS];
  const struct tt_simulate_cost steps = tt_simulate_steps();
  double whole = 0;
  for (int i = 0; i < nsets; i++) {
    uint32_t parts = tune_set_parts(&sets[i]);
    channels[i] = (struct tt_simulate_channel){.programs = tune_set_programs(&sets[i]),
                                               .geometry = tt_simulate_even(parts, 1, TT_PIECE_ALIGN)};
    whole += (double)tune_set_blocks(&sets[i]) * parts * TT_PIECE_ALIGN;
  }
  struct tt_simulate_input input = {
      .nranks = sets->nranks, .channels = channels, .nchannels = nsets, .element_bytes = 1, .cost = &steps};
  if (tt_simulate(&input, &simulation) != ncclSuccess) {
    snprintf(error, size, "%s", tt_log_thread_error());
    return false;
  }
  *counts = (struct tune_counts){.steps = simulation.time};
  for (int rank = 0; rank < sets->nranks; rank++) {
    counts->messages = TT_MAX(counts->messages, simulation.ranks[rank].messages);
    counts->data = TT_MAX(counts->data, (double)simulation.ranks[rank].bytes / whole);
    counts->multicast = TT_MAX(counts->multicast, (double)simulation.ranks[rank].multicast / whole);
  }
  tt_simulation_free(&simulation);
  return true;
}
