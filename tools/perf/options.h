/* Command line of tutti-perf and of its nccl-tests names (all_reduce_perf and so on). */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "collective.h"
#include "types.h"

enum perf_average { PERF_RANK0, PERF_MEAN, PERF_MIN, PERF_MAX };

struct perf_options {
  const char *program;  /* name in messages */
  bool nccl_tests_name; /* started as *_perf: -n is the iteration count */
  const struct perf_collective *collective;
  uint64_t min_bytes, max_bytes, step_bytes;
  double step_factor; /* 0: step_bytes */
  int processes;      /* -n; 0: not given */
  int threads, comms; /* -t; -g: communicators driven by each thread */
  int iterations, warmup, aggregated, cycles;
  int check;
  bool all_types, all_ops, all_roots;
  const struct perf_type *type;
  const struct perf_op *op;
  int root;
  int blocking;
  bool parallel_init, cpu_time, timestamps;
  enum perf_average average;
  int timeout; /* seconds; 0: none */
  size_t unalign;
  const char *json;
  /* Starting by hand. rank -1: not given. */
  int rank, ranks_started;
  const char *root_address;
  int join_timeout;
};

enum perf_parse { PERF_PARSE_RUN, PERF_PARSE_HELP, PERF_PARSE_WRONG };

/* Fills `options`. Wrong: `error` has the sentence. Help: perf_options_help prints it. */
enum perf_parse perf_options_parse(struct perf_options *options, int argc, char **argv, char *error, size_t size);
void perf_options_help(const struct perf_options *options, FILE *out);

/* "8", "64K", "1.5M", "1G", also with a final B or iB; powers of 1024. */
bool perf_size_parse(const char *text, uint64_t *bytes);

#endif
