/* The command `programs` without an algorithm: a table of what there is. */
#include <inttypes.h>
#include <stdio.h>
#include "names.h"
#include "tune.h"

/* One line of the table. */
struct row {
  int collective, algorithm;
  struct tune_counts counts;
  bool proved;
  char why[256]; /* not proved; or no program here, then `missing` */
  bool missing;
};

static bool fill(struct row *row, const struct tune_options *options, char *error, size_t size)
{
  struct tune_set sets[2];
  int made = 0;
  row->proved = true;
  for (; made < tune_channels(row->algorithm) && row->proved; made++) {
    struct tune_set *set = &sets[made];
    row->missing = !tune_set_make(set, options, row->collective, row->algorithm, made, row->why, sizeof(row->why));
    if (row->missing) break;
    row->proved = tune_set_prove(set, options, row->why, sizeof(row->why));
  }
  bool count = row->proved && !row->missing;
  bool counted = !count || tune_set_count(sets, made, &row->counts, error, size);
  while (made > 0) tune_set_free(&sets[--made]);
  return counted;
}

static void print_row(const struct row *row)
{
  printf("%-14s  %-14s  ", tune_collective_word(row->collective), tune_algorithm_word(row->algorithm));
  if (row->missing)
    printf("%5s  %8s  %6s  %9s  not here: %s\n", "-", "-", "-", "-", row->why);
  else if (!row->proved)
    printf("%5s  %8s  %6s  %9s  NOT PROVED: %s\n", "-", "-", "-", "-", row->why);
  else
    printf("%5g  %8" PRIu64 "  %6.4g  %9.4g  proved\n", row->counts.steps, row->counts.messages, row->counts.data,
           row->counts.multicast);
}

static void row_to_json(struct tool_json *json, const struct row *row)
{
  tool_json_open(json, NULL, '{');
  tool_json_string(json, "collective", tune_collective_word(row->collective));
  tool_json_string(json, "algorithm", tune_algorithm_word(row->algorithm));
  tool_json_bool(json, "exists", !row->missing);
  tool_json_bool(json, "proved", row->proved && !row->missing);
  tool_json_string(json, "why", row->proved && !row->missing ? NULL : row->why);
  if (row->proved && !row->missing) {
    tool_json_real(json, "steps", row->counts.steps);
    tool_json_integer(json, "messages", (int64_t)row->counts.messages);
    tool_json_real(json, "data", row->counts.data);
    tool_json_real(json, "multicast", row->counts.multicast);
  }
  tool_json_close(json, '{');
}

enum tune_status tune_list(const struct tune_options *o, char *error, size_t size)
{
  struct tool_json json = {0};
  enum tune_status status = TUNE_GOOD;
  if (o->json) {
    tool_json_open(&json, NULL, '{');
    tool_json_integer(&json, "nranks", o->nranks);
    tool_json_integer(&json, "nodes", o->nodes);
    tool_json_open(&json, "programs", '[');
  } else {
    printf(
        "# %d ranks on %d %s. Of one loop: messages one after the other (steps), and what the busiest rank sends:\n"
        "# messages, and data, as a multiple of the collective's larger buffer; and moves through multicast memory.\n"
        "%-14s  %-14s  steps  messages    data  multicast\n",
        o->nranks, o->nodes, o->nodes == 1 ? "node" : "nodes", "# collective", "algorithm");
  }
  for (int collective = 0; collective < TT_NUM_FUNCS && status != TUNE_FAILED; collective++) {
    for (int algorithm = 0; algorithm < TT_NUM_ALGORITHMS && status != TUNE_FAILED; algorithm++) {
      struct row row = {.collective = collective, .algorithm = algorithm};
      if (!tune_supports(collective, algorithm) || (o->collective >= 0 && o->collective != collective)) continue;
      if (!fill(&row, o, error, size)) status = TUNE_FAILED;
      if (!row.missing && !row.proved) {
        status = TUNE_WRONG_PROGRAM;
        snprintf(error, size, "%s by %s is not proved: %s", tune_collective_word(collective),
                 tune_algorithm_word(algorithm), row.why);
      }
      if (o->json)
        row_to_json(&json, &row);
      else
        print_row(&row);
    }
  }
  if (!o->json) return status;
  tool_json_close(&json, '[');
  tool_json_close(&json, '{');
  return tune_print_json(&json, error, size) ? status : TUNE_FAILED;
}
