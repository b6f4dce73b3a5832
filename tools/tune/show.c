/* The command `programs` with a collective and an algorithm: the programs, their proof, and pictures of them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "names.h"
#include "program/dump.h"
#include "tune.h"

bool tune_print_json(struct tool_json *json, char *error, size_t size)
{
  bool good = !json->failed;
  if (good)
    puts(json->text);
  else
    snprintf(error, size, "out of memory");
  free(json->text);
  return good;
}

static bool show_json(const struct tune_set *set, const struct tune_options *o, bool proved, const char *why,
                      const struct tune_counts *counts, char *error, size_t size)
{
  struct tool_json json = {0};
  tool_json_open(&json, NULL, '{');
  tool_json_string(&json, "collective", tune_collective_word(set->collective));
  tool_json_string(&json, "algorithm", tune_algorithm_word(set->algorithm));
  tool_json_integer(&json, "nranks", set->nranks);
  tool_json_integer(&json, "nodes", set->nodes);
  tool_json_integer(&json, "root", o->root);
  tool_json_bool(&json, "proved", proved);
  tool_json_string(&json, "why", proved ? NULL : why);
  if (proved) {
    tool_json_real(&json, "steps", counts->steps);
    tool_json_integer(&json, "messages", (int64_t)counts->messages);
    tool_json_real(&json, "data", counts->data);
    tool_json_real(&json, "multicast", counts->multicast);
  }
  tool_json_open(&json, "programs", '[');
  for (int rank = 0; rank < set->nranks; rank++)
    if (set->programs[rank] && (o->rank < 0 || o->rank == rank)) tune_program_json(&json, set->programs[rank]);
  tool_json_close(&json, '[');
  tool_json_close(&json, '{');
  return tune_print_json(&json, error, size);
}

static void show_text(const struct tune_set *set, const struct tune_options *o, bool proved, const char *why,
                      const struct tune_counts *counts)
{
  uint32_t parts = tune_set_parts(set);
  for (int rank = 0; rank < set->nranks; rank++) {
    if (o->rank >= 0 && o->rank != rank) continue;
    if (set->programs[rank])
      tt_program_print(set->programs[rank], stdout);
    else
      printf("rank %d takes no part\n", rank);
  }
  if (parts > 1 && tune_set_blocks(set) > 1)
    printf("Chunk c of a buffer with blocks is part c mod %u of block c / %u.\n", parts, parts);
  if (!proved) {
    printf("NOT PROVED: %s\n", why);
    return;
  }
  printf("proved: %d ranks, %d loops, %d slots, %s\n", set->nranks, o->loops, o->slots,
         set->collective == TT_FUNC_SEND_RECV ? "out of place" : "in place and out of place");
  printf("one loop: %g steps; messages of the busiest rank: %" PRIu64 ", with %.4g times the data of this channel\n",
         counts->steps, counts->messages, counts->data);
  if (counts->multicast > 0) printf("through the multicast address: %.4g times that data\n", counts->multicast);
}

/* Messages take half an instruction's time in the SVG, so that their lines have a slope. */
static enum tune_status draw(const struct tune_set *set, const struct tune_options *o, bool svg, char *error,
                             size_t size)
{
  struct tt_simulation simulation;
  struct tt_simulate_cost cost = tt_simulate_instructions();
  char title[160];
  if (svg) cost.near.latency = cost.far.latency = cost.network.latency = 0.5;
  struct tt_simulate_channel channel = {.programs = tune_set_programs(set),
                                        .geometry = tt_simulate_even(tune_set_parts(set), (uint64_t)o->loops, 1)};
  struct tt_simulate_input input = {.nranks = set->nranks,
                                    .node = set->node,
                                    .channels = &channel,
                                    .nchannels = 1,
                                    .slots = (uint32_t)o->slots,
                                    .element_bytes = 1,
                                    .cost = &cost,
                                    .sequential = o->sequential,
                                    .record = true};
  if (tt_simulate(&input, &simulation) != ncclSuccess) {
    snprintf(error, size, "%s", tt_log_thread_error());
    return TUNE_WRONG_PROGRAM;
  }
  snprintf(title, sizeof(title), "%s by %s, %d ranks, %d %s%s", tune_collective_word(set->collective),
           tune_algorithm_word(set->algorithm), set->nranks, o->loops, o->loops == 1 ? "loop" : "loops",
           o->sequential ? ", one thread a rank" : "");
  bool good = svg ? tune_svg(set, 1, &simulation, o->svg, title, "instructions", error, size)
                  : tune_picture(set, &simulation, title, error, size);
  tt_simulation_free(&simulation);
  return good ? TUNE_GOOD : TUNE_FAILED;
}

static enum tune_status show(const struct tune_set *set, const struct tune_options *o, char *error, size_t size)
{
  struct tune_counts counts = {0};
  char why[256];
  bool proved = tune_set_prove(set, o, why, sizeof(why));
  if (proved && !tune_set_count(set, 1, &counts, error, size)) return TUNE_FAILED;
  if (o->json) {
    if (!show_json(set, o, proved, why, &counts, error, size)) return TUNE_FAILED;
  } else if (!o->picture && !(o->svg && !strcmp(o->svg, "-"))) {
    show_text(set, o, proved, why, &counts);
  }
  if (!proved) {
    snprintf(error, size, "not proved: %s", why);
    return TUNE_WRONG_PROGRAM;
  }
  enum tune_status status = o->picture ? draw(set, o, false, error, size) : TUNE_GOOD;
  return status == TUNE_GOOD && o->svg ? draw(set, o, true, error, size) : status;
}

enum tune_status tune_show(const struct tune_options *o, char *error, size_t size)
{
  struct tune_set set;
  if (!tune_set_make(&set, o, o->collective, o->algorithm, o->channel, error, size)) return TUNE_USAGE;
  enum tune_status status = show(&set, o, error, size);
  tune_set_free(&set);
  return status;
}
