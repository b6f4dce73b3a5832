/* See matrix.h: the command line of gpu_matrix. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include "backend.h"
#include "matrix.h"

/* Whether a name is among those in `set`, which commas separate. */
static bool is_named(const char *set, const char *name)
{
  size_t length = strlen(name);
  for (const char *at = set; (at = strstr(at, name)); at += length)
    if ((at == set || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return true;
  return false;
}

bool matrix_has(const struct matrix *matrix, const char *name)
{
  bool all_reduce = !strcmp(name, "all_reduce"), grouped = !strcmp(name, "grouped");
  if (is_named(matrix->set, name)) return true;
  if (matrix->amount == MATRIX_TINY) return all_reduce || !strcmp(name, "sendrecv");
  if (matrix->amount == MATRIX_ROWS || matrix->amount == MATRIX_TYPES) return !grouped;
  if (!strcmp(matrix->set, "rest")) return !all_reduce && !grouped;
  return !strcmp(matrix->set, "all") || matrix->amount == MATRIX_QUICK || matrix->amount == MATRIX_SMALL;
}

static bool parse_worlds(struct matrix *matrix, char *text, int ranks)
{
  char *rest = text, *word;
  while ((word = strtok_r(rest, ",", &rest)) && matrix->world_count < MATRIX_MOST_WORLDS) {
    int world = atoi(word);
    if (world < 1 || world > ranks) return false;
    matrix->worlds[matrix->world_count++] = world;
  }
  if (matrix->world_count == 0) matrix->worlds[matrix->world_count++] = ranks;
  return true;
}

static enum matrix_amount amount_of(const char *set)
{
  static const char *const names[] = {[MATRIX_QUICK] = "quick",
                                      [MATRIX_SMALL] = "small",
                                      [MATRIX_TINY] = "tiny",
                                      [MATRIX_ROWS] = "rows",
                                      [MATRIX_TYPES] = "types"};
  for (int i = MATRIX_QUICK; i <= MATRIX_TYPES; i++)
    if (!strcmp(set, names[i])) return (enum matrix_amount)i;
  return MATRIX_FULL;
}

bool matrix_parse(struct matrix *matrix, int argc, char **argv)
{
  static const struct option options[] = {{"device", 1, NULL, 'D'}, {NULL, 0, NULL, 0}};
  static char none[] = "";
  struct perf_options *o = &matrix->options;
  char *worlds = none;
  int c;
  *matrix = (struct matrix){.set = "all", .label = "", .options = {.threads = 1, .comms = 1, .timeout = 60}};
  o->processes = 1;
  while ((c = getopt_long(argc, argv, "t:n:w:s:L:l:T:RWH:", options, NULL)) != -1) {
    uint64_t large = 0;
    if (c == 't') o->threads = atoi(optarg);
    if (c == 'n') o->processes = atoi(optarg);
    if (c == 'w') worlds = optarg;
    if (c == 's') matrix->set = optarg;
    if (c == 's') matrix->amount = amount_of(optarg);
    if (c == 'R' || c == 'W') matrix->registers = true;
    if (c == 'W') matrix->windows = true;
    if (c == 'H') matrix->hosts = atoi(optarg);
    if (c == 'l') matrix->label = optarg;
    if (c == 'T') o->timeout = atoi(optarg);
    if (c == 'L' && !perf_size_parse(optarg, &large)) return false;
    if (c == 'L') matrix->large = (size_t)large;
    if (c == 'D' && !perf_device_parse(optarg, &o->device)) return false;
    if (c == '?') return false;
  }
  int ranks = o->threads * o->processes;
  o->max_bytes = matrix->large;
  if (matrix->hosts && (o->threads > 1 || matrix->hosts < 1 || matrix->hosts > o->processes)) return false;
  return optind == argc && o->threads > 0 && o->processes > 0 && ranks <= MATRIX_MOST_RANKS &&
         parse_worlds(matrix, worlds, ranks) &&
         (strcmp(matrix->set, "fp8") || (matrix->world_count == 1 && matrix->worlds[0] == 2));
}
