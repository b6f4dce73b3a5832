/* The command `simulate`: what a collective should take, by each algorithm, on links that the user describes. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "base/check.h"
#include "names.h"
#include "plan/geometry.h"
#include "tune.h"

/* All channels of one algorithm. */
struct plan {
  int nchannels;
  struct tune_set sets[TUNE_MOST_CHANNELS];
  struct tt_simulate_channel channels[TUNE_MOST_CHANNELS];
};

struct prediction {
  int algorithm, nchannels;
  uint64_t loops;
  size_t chunk;
  double strands, sequential; /* nanoseconds; sequential below 0: it deadlocks */
  uint64_t messages, bytes;   /* that the busiest rank sends */
  uint64_t multicast;         /* bytes that one moves through multicast memory */
  char why[256];              /* not here; else "" */
};

static void plan_free(struct plan *plan)
{
  for (int i = 0; i < plan->nchannels; i++) tune_set_free(&plan->sets[i]);
}

/* The data is cut as the plan of a communicator cuts it. */
static bool plan_make(struct plan *plan, const struct tune_options *o, int algorithm, char *error, size_t size)
{
  int wanted = o->channels ? o->channels : tune_channels(algorithm);
  plan->nchannels = 0;
  for (int i = 0; i < wanted; i++) {
    struct tune_set *set = &plan->sets[i];
    if (!tune_set_make(set, o, o->collective, algorithm, i, error, size)) {
      plan_free(plan);
      return false;
    }
    plan->nchannels++;
    uint32_t pieces = 1;
    for (int rank = 0; rank < set->nranks; rank++)
      if (set->programs[rank]) pieces = TT_MAX(pieces, tt_program_most_pieces(set->programs[rank]));
    plan->channels[i].programs = tune_set_programs(set);
    const struct tt_geometry_cut cut = {.count = o->bytes / tune_set_blocks(set),
                                        .element_bytes = 1,
                                        .parts = tune_set_parts(set),
                                        .nchannels = wanted,
                                        .capacity = tt_geometry_piece(o->slot_bytes, pieces),
                                        .smallest = o->smallest_chunk,
                                        .chunks = o->chunks};
    tt_geometry_cut(&cut, i, &plan->channels[i].geometry);
  }
  return true;
}

static ncclResult_t simulate(const struct plan *plan, const struct tune_options *o, bool sequential, bool record,
                             struct tt_simulation *simulation)
{
  struct tt_simulate_input input = {.nranks = o->nranks,
                                    .node = plan->sets[0].node,
                                    .channels = plan->channels,
                                    .nchannels = plan->nchannels,
                                    .slots = (uint32_t)o->slots,
                                    .element_bytes = 1,
                                    .cost = &o->cost,
                                    .sequential = sequential,
                                    .record = record};
  return tt_simulate(&input, simulation);
}

static enum tune_status draw(const struct plan *plan, const struct tune_options *o, char *error, size_t size)
{
  struct tt_simulation simulation;
  char title[160];
  if (simulate(plan, o, o->sequential, true, &simulation) != ncclSuccess) {
    snprintf(error, size, "%s", tt_log_thread_error());
    return TUNE_WRONG_PROGRAM;
  }
  for (size_t i = 0; i < simulation.nspans; i++) {
    simulation.spans[i].arrived /= 1000;
    simulation.spans[i].start /= 1000;
    simulation.spans[i].end /= 1000;
  }
  for (size_t i = 0; i < simulation.nflights; i++) {
    simulation.flights[i].start /= 1000;
    simulation.flights[i].end /= 1000;
  }
  simulation.time /= 1000;
  snprintf(title, sizeof(title), "%s by %s, %d ranks, %" PRIu64 " bytes%s", tune_collective_word(o->collective),
           tune_algorithm_word(plan->sets[0].algorithm), o->nranks, o->bytes,
           o->sequential ? ", one thread a rank" : "");
  bool good = tune_svg(plan->sets, plan->nchannels, &simulation, o->svg, title, "microseconds", error, size);
  tt_simulation_free(&simulation);
  return good ? TUNE_GOOD : TUNE_FAILED;
}

static enum tune_status predict(const struct plan *plan, const struct tune_options *o, struct prediction *prediction,
                                char *error, size_t size)
{
  struct tt_simulation simulation;
  prediction->nchannels = plan->nchannels;
  prediction->loops = plan->channels[0].geometry.loops;
  prediction->chunk = plan->channels[0].geometry.chunk;
  if (prediction->loops == 1) prediction->chunk = plan->channels[0].geometry.last_chunk;
  if (simulate(plan, o, false, false, &simulation) != ncclSuccess) {
    snprintf(error, size, "%s", tt_log_thread_error());
    return TUNE_WRONG_PROGRAM;
  }
  prediction->strands = simulation.time;
  for (int rank = 0; rank < o->nranks; rank++) {
    prediction->messages = TT_MAX(prediction->messages, simulation.ranks[rank].messages);
    prediction->bytes = TT_MAX(prediction->bytes, simulation.ranks[rank].bytes);
    prediction->multicast = TT_MAX(prediction->multicast, simulation.ranks[rank].multicast);
  }
  tt_simulation_free(&simulation);
  prediction->sequential = -1;
  if (simulate(plan, o, true, false, &simulation) != ncclSuccess) return TUNE_GOOD;
  prediction->sequential = simulation.time;
  tt_simulation_free(&simulation);
  return TUNE_GOOD;
}

static void print_text(const struct prediction *p)
{
  printf("%-14s  ", tune_algorithm_word(p->algorithm));
  if (p->why[0]) {
    printf("not here: %s\n", p->why);
    return;
  }
  char sequential[32] = "deadlock";
  if (p->sequential >= 0) snprintf(sequential, sizeof(sequential), "%.2f", p->sequential / 1000);
  printf("%8d  %5" PRIu64 "  %8zu  %10.2f  %10s  %8" PRIu64 "  %12" PRIu64 "  %12" PRIu64 "\n", p->nchannels, p->loops,
         p->chunk, p->strands / 1000, sequential, p->messages, p->bytes, p->multicast);
}

static void print_json(struct tool_json *json, const struct prediction *p)
{
  tool_json_open(json, NULL, '{');
  tool_json_string(json, "algorithm", tune_algorithm_word(p->algorithm));
  tool_json_string(json, "not_here", p->why[0] ? p->why : NULL);
  if (!p->why[0]) {
    tool_json_integer(json, "channels", p->nchannels);
    tool_json_integer(json, "loops", (int64_t)p->loops);
    tool_json_integer(json, "chunk_bytes", (int64_t)p->chunk);
    tool_json_real(json, "strands_us", p->strands / 1000);
    if (p->sequential < 0)
      tool_json_null(json, "sequential_us");
    else
      tool_json_real(json, "sequential_us", p->sequential / 1000);
    tool_json_integer(json, "messages", (int64_t)p->messages);
    tool_json_integer(json, "bytes", (int64_t)p->bytes);
    tool_json_integer(json, "multicast_bytes", (int64_t)p->multicast);
  }
  tool_json_close(json, '{');
}

static void print_head(const struct tune_options *o)
{
  const struct tt_simulate_link *near = &o->cost.near, *far = &o->cost.far;
  printf("# %s of %" PRIu64 " bytes on %d ranks. Within a node %g us, %g GB/s", tune_collective_word(o->collective),
         o->bytes, o->nranks, near->latency / 1000, near->byte > 0 ? 1 / near->byte : INFINITY);
  if (o->nodes > 1)
    printf("; between %d nodes %g us, %g GB/s", o->nodes, far->latency / 1000,
           far->byte > 0 ? 1 / far->byte : INFINITY);
  printf(".\n# Times in microseconds; messages and bytes are what the busiest rank sends; and what it moves through\n# "
         "multicast memory.\n"
         "%-14s  channels  loops     chunk     strands  sequential  messages         bytes     multicast\n",
         "# algorithm");
}

static enum tune_status one(const struct tune_options *o, int algorithm, struct tool_json *json, char *error,
                            size_t size)
{
  struct plan plan;
  struct prediction prediction = {.algorithm = algorithm};
  enum tune_status status = TUNE_GOOD;
  if (!plan_make(&plan, o, algorithm, prediction.why, sizeof(prediction.why))) {
    if (o->algorithm >= 0) {
      snprintf(error, size, "%s", prediction.why);
      return TUNE_USAGE;
    }
  } else {
    status = predict(&plan, o, &prediction, error, size);
    if (status == TUNE_GOOD && o->svg) status = draw(&plan, o, error, size);
    plan_free(&plan);
  }
  if (status != TUNE_GOOD) return status;
  if (o->json)
    print_json(json, &prediction);
  else
    print_text(&prediction);
  return TUNE_GOOD;
}

enum tune_status tune_predict(const struct tune_options *o, char *error, size_t size)
{
  struct tool_json json = {0};
  enum tune_status status = TUNE_GOOD;
  if (o->json) {
    tool_json_open(&json, NULL, '{');
    tool_json_string(&json, "collective", tune_collective_word(o->collective));
    tool_json_integer(&json, "nranks", o->nranks);
    tool_json_integer(&json, "nodes", o->nodes);
    tool_json_integer(&json, "bytes", (int64_t)o->bytes);
    tool_json_open(&json, "algorithms", '[');
  } else {
    print_head(o);
  }
  for (int algorithm = 0; algorithm < TT_NUM_ALGORITHMS && status == TUNE_GOOD; algorithm++) {
    bool wanted = o->algorithm < 0 || o->algorithm == algorithm;
    if (wanted && tune_supports(o->collective, algorithm)) status = one(o, algorithm, &json, error, size);
  }
  if (!o->json) return status;
  tool_json_close(&json, '[');
  tool_json_close(&json, '{');
  if (status == TUNE_GOOD) return tune_print_json(&json, error, size) ? TUNE_GOOD : TUNE_FAILED;
  free(json.text);
  return status;
}
