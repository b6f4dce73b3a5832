/* The command line of tutti-tune. */
#ifndef TUNE_OPTIONS_H
#define TUNE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "program/simulate.h"

enum tune_command { TUNE_PROGRAMS, TUNE_SIMULATE, TUNE_DECIDE };

struct tune_options {
  enum tune_command command;
  int collective, algorithm; /* -1: not named */
  int nranks, root, peer;
  int rank; /* -1: all */
  int nodes;
  int channel;  /* programs: which */
  int channels; /* simulate: how many; 0: as the algorithm needs */
  int pieces;   /* 0: the emitter's own limit */
  int loops, slots;
  int chunks; /* simulate: into which a channel's share of a chain or tree is cut */
  bool picture, json, sequential;
  const char *svg;
  uint64_t bytes, slot_bytes, smallest_chunk;
  uint64_t end; /* decide: sizes from `bytes` to this, each `factor` times the one before */
  int factor;
  bool gpus, mapped;            /* decide: in place of the host device; buffers that all ranks have mapped */
  struct tt_simulate_cost cost; /* nanoseconds */
};

enum tune_parse { TUNE_PARSE_RUN, TUNE_PARSE_HELP, TUNE_PARSE_WRONG };

/* WRONG: `error` is a sentence. */
enum tune_parse tune_options_parse(struct tune_options *options, int argc, char **argv, char *error, size_t size);
void tune_options_help(FILE *out);

#endif
