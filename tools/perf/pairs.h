/* `tutti-perf pairs`: bandwidth and latency of each pair of ranks, under several settings of the environment.
 * Parameters belong to a process, so each setting is measured by processes of its own, which leave their figures in
 * shared memory. */
#ifndef PERF_PAIRS_H
#define PERF_PAIRS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "options.h"

enum { PERF_SETTINGS = 5, PERF_PAIR_LATENCY_BYTES = 8 };

/* Send/recv has the first three matrices, and a protocol, which broadcasts between two ranks are told to use, the last
 * two in latency alone. */
struct perf_setting {
  const char *name, *what;
  struct {
    const char *name, *value;
  } variables[2];
  bool broadcast;
};

enum perf_pair_measure {
  PERF_PAIR_ONE_WAY, /* GB/s, row to column, nothing else going on */
  PERF_PAIR_BOTH,    /* GB/s, row to column, while as much goes back */
  PERF_PAIR_LATENCY, /* microseconds from one rank to the other: half of there and back */
  PERF_PAIR_MEASURES
};

/* In shared memory. */
struct perf_pairs {
  int ranks, setting; /* setting: the one being measured */
  size_t bytes;       /* of the mapping */
  char device[48];    /* rank 0's */
  struct perf_pairs_result {
    bool complete;
    bool missing;   /* the device does not have the protocol */
    uint64_t wrong; /* bytes */
  } results[PERF_SETTINGS];
  double values[]; /* perf_pairs_at */
};

const struct perf_setting *perf_setting_at(int i); /* NULL past the end */
double *perf_pairs_at(struct perf_pairs *pairs, int setting, enum perf_pair_measure measure, int row, int column);

/* In each thread of a run with options->pairs: measures all pairs. Thread 0 of process 0 keeps them, and in
 * worker->status whether data was wrong. */
struct perf_worker;
void perf_pairs_measure(struct perf_worker *worker);

/* Starts a process for each setting, which goes on with `go_on` under a copy of the options, and prints and saves what
 * they left. Returns the exit status. Call before any thread is started and before the library is used. */
int perf_pairs_run(const struct perf_options *options, int argc, char **argv,
                   int (*go_on)(struct perf_options *options, int argc, char **argv));

/* The status to exit with. A protocol that is not there is a failure only where it was asked for by name. */
int perf_pairs_worst(const struct perf_pairs *pairs, const struct perf_options *options, const int *statuses);

/* The report's two forms (pairs_report.c). statuses: of each setting's process, or -1 where it was not asked for. */
void perf_pairs_print(struct perf_pairs *pairs, const struct perf_options *options, const int *statuses, FILE *out);
bool perf_pairs_save(struct perf_pairs *pairs, const struct perf_options *options, const int *statuses, int argc,
                     char **argv, char *error, size_t size);

#endif
