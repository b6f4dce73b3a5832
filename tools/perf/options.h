/* Command line of tutti-perf and of its nccl-tests names (all_reduce_perf and so on). */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "backend.h"
#include "collective.h"
#include "types.h"

/* Where buffers come from, and what the communicators are told of them. */
enum perf_memory {
  PERF_MEMORY_PLAIN,      /* the device's own memory */
  PERF_MEMORY_NCCL,       /* ncclMemAlloc */
  PERF_MEMORY_REGISTERED, /* that, and ncclCommRegister */
  PERF_MEMORY_WINDOW,     /* that, and ncclCommWindowRegister, symmetric */
};
enum perf_average { PERF_RANK0, PERF_MEAN, PERF_MIN, PERF_MAX };
enum { PERF_MOST_SIZES = 64 };

struct perf_pairs;

struct perf_options {
  const char *program;  /* name in messages */
  bool nccl_tests_name; /* started as *_perf: -n is the iteration count */
  const struct perf_collective *collective;
  bool of_pairs; /* `pairs` was named; collective is what they do */
  bool settings_given;
  unsigned settings;        /* of pairs: a bit for each */
  struct perf_pairs *pairs; /* in a process that measures a setting */
  uint64_t min_bytes, max_bytes, step_bytes;
  double step_factor;              /* 0: step_bytes */
  uint64_t sizes[PERF_MOST_SIZES]; /* --sizes: these, instead of a sweep */
  int size_count;
  int processes;      /* -n; 0: not given */
  int threads, comms; /* -t; -g: communicators driven by each thread */
  int iterations, warmup, aggregated, cycles, repeats;
  int graph; /* launches of a graph of all iterations; 0: no graph */
  int check;
  bool all_types, all_ops, all_roots;
  const struct perf_type *type;
  const struct perf_op *op;
  int root;
  bool out_of_place, in_place;
  int blocking;
  enum perf_device_choice device;
  int stream_null; /* -1: not given */
  int cta_policy;  /* NCCL_CTA_POLICY_*; -1: not given */
  enum perf_memory memory;
  int rotate;     /* iterations take turns with so many places of the buffers; 0: as nccl-tests */
  bool dependent; /* an iteration sends what the one before received */
  bool load;      /* a matrix product runs beside */
  bool stats;     /* what the network did is summed up at the end */
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
/* What the flags ask and the device cannot do: one without streams has no graphs. False: `error` has the sentence. */
bool perf_options_fit(const struct perf_options *options, bool streams, char *error, size_t size);
void perf_options_help(const struct perf_options *options, FILE *out);

/* Bytes that each of a rank's two buffers needs for its data. */
uint64_t perf_options_room(const struct perf_options *options);
/* Distance in bytes between the places of --rotate. */
uint64_t perf_options_stride(uint64_t bytes);

/* "8", "64K", "1.5M", "1G", also with a final B or iB; powers of 1024. */
bool perf_size_parse(const char *text, uint64_t *bytes);

#endif
