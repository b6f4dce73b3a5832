/* What a run says: nccl-tests' preamble, table and footer on stdout, a progress line on a terminal, and a JSON file.
 * Only process 0 reports. Rows come from one thread; perf_report_abort may be called from another. */
#ifndef PERF_REPORT_H
#define PERF_REPORT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include "options.h"
#include "tutti.h"

struct perf_device {
  int rank, pid, device;
  char host[64], name[48], pci[16]; /* pci: "" where there is none */
};

struct perf_result {
  double usec, algorithm_bandwidth, bus_bandwidth; /* microseconds, GB/s */
  int64_t wrong;                                   /* elements over all ranks; -1: not checked */
};

struct perf_row {
  size_t bytes, count;
  const char *type, *op; /* op: "none" where the collective has none */
  int root;              /* -1 where it has none */
  bool has_out_of_place, has_in_place;
  struct perf_result out_of_place, in_place;
};

struct perf_report {
  const struct perf_options *options;
  int argc;
  char **argv;
  int processes, ranks;
  bool active; /* process 0 */
  bool progress;
  struct perf_device *devices; /* one a rank */
  pthread_mutex_t lock;        /* rows and the file */
  struct perf_row *rows;
  size_t row_count, row_room;
  int64_t wrong; /* rows' sum */
  double bandwidth_sum;
  size_t bandwidth_count;
  double least_bandwidth;       /* NCCL_TESTS_MIN_BW; -1: none */
  struct perf_load_result load; /* products 0: none */
  tuttiNetStats_t *stats;       /* of --stats, one a rank; NULL: none */
  time_t started;
  uint64_t started_ns, saved_ns;
};

/* Takes over `devices` (malloced, one for each rank) and prints the preamble. False: the JSON file cannot be written,
 * and `error` says why. */
bool perf_report_begin(struct perf_report *report, const struct perf_options *options, int argc, char **argv,
                       int processes, int ranks, struct perf_device *devices, char *error, size_t size);
/* Before a measurement: number `done` of `total`. */
void perf_report_progress(struct perf_report *report, size_t done, size_t total, size_t bytes);
void perf_report_row(struct perf_report *report, const struct perf_row *row);
/* Of rank 0's device, once. */
void perf_report_load(struct perf_report *report, const struct perf_load_result *load);
/* Takes over what each rank's network did. */
void perf_report_stats(struct perf_report *report, tuttiNetStats_t *stats);
/* Prints the footer; returns the exit status. */
int perf_report_verdict(struct perf_report *report);
/* Writes the final JSON and frees. `status`: "ok", "failed", "error" or "interrupted"; `sentence` may be NULL. */
bool perf_report_end(struct perf_report *report, const char *status, const char *sentence, char *error, size_t size);
/* From any thread, when the process is about to exit early: clears the progress line and writes the JSON. */
void perf_report_abort(struct perf_report *report, const char *status, const char *sentence);

/* Right-aligned in `width` characters with as many decimals as fit, at most two; `text` has room for 32. */
void perf_report_number(char *text, int width, double value);

#endif
