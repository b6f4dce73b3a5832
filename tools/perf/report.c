/* See report.h. The text's shape is nccl-tests', since people's scripts parse it. */
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "report_json.h"
#include "stats.h"
#include "tutti.h"

static uint64_t now_ns(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void perf_report_number(char *text, int width, double value)
{
  for (int decimals = 2; decimals >= 0; decimals--)
    if (snprintf(text, 32, "%*.*f", width, decimals, value) <= width) return;
  snprintf(text, 32, "%*.*e", width, width >= 7 ? 1 : 0, value);
}

static void print_preamble(const struct perf_report *report)
{
  const struct perf_options *o = report->options;
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) version = 0;
  printf("# tutti-perf version %s nccl-headers=%d nccl-library=%d\n", TUTTI_VERSION_STRING, NCCL_VERSION_CODE, version);
  printf("# Collective test starting: %s_perf\n", o->collective->name);
  char step[32];
  if (o->step_factor)
    snprintf(step, sizeof(step), "%g(factor)", o->step_factor);
  else
    snprintf(step, sizeof(step), "%llu(bytes)", (unsigned long long)o->step_bytes);
  printf("# nThread %d nGpus %d minBytes %llu maxBytes %llu step: %s warmup iters: %d iters: %d agg iters: %d "
         "validation: %d graph: %d unalign: %zu\n",
         o->threads, o->comms, (unsigned long long)o->min_bytes, (unsigned long long)o->max_bytes, step, o->warmup,
         o->iterations, o->aggregated, o->check, o->graph, o->unalign);
  if (o->blocking == 1) printf("# Blocking Enabled: barrier after each iteration\n");
  if (o->blocking == 3) printf("# Blocking Enabled: barrier after each iteration, not timed\n");
  if (o->cta_policy >= 0) printf("# CTA policy: %d\n", o->cta_policy);
  if (o->parallel_init) printf("# Parallel Init Enabled: each thread creates its communicators\n");
  printf("#\n# Using devices\n");
  for (int r = 0; r < report->ranks; r++) {
    const struct perf_device *d = &report->devices[r];
    printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [%s] %s\n", d->rank, 0, d->pid, d->host, d->device,
           d->pci[0] ? d->pci : "0000:00:00", d->name);
  }
}

static void print_header(const struct perf_options *o)
{
  const char *time = o->cpu_time ? "cputime" : "time";
  printf("#\n# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n", "", "", "",
         "", "");
  printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s%s\n", "size", "count", "type", "redop",
         "root", time, "algbw", "busbw", "#wrong", time, "algbw", "busbw", "#wrong",
         o->timestamps ? "  timestamp" : "");
  printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n", "(B)", "(elements)", "", "", "",
         "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
  fflush(stdout);
}

bool perf_report_begin(struct perf_report *report, const struct perf_options *options, int argc, char **argv,
                       int processes, int ranks, struct perf_device *devices, char *error, size_t size)
{
  const char *least = getenv("NCCL_TESTS_MIN_BW");
  *report = (struct perf_report){.options = options,
                                 .argc = argc,
                                 .argv = argv,
                                 .processes = processes,
                                 .ranks = ranks,
                                 .active = true,
                                 .progress = isatty(2),
                                 .devices = devices,
                                 .least_bandwidth = least && *least ? atof(least) : -1,
                                 .started = time(NULL),
                                 .started_ns = now_ns()};
  pthread_mutex_init(&report->lock, NULL);
  print_preamble(report);
  print_header(options);
  return !options->json || perf_report_save(report, "running", NULL, error, size);
}

static void clear_progress(struct perf_report *report)
{
  if (report->progress) fputs("\r\033[K", stderr);
}

void perf_report_progress(struct perf_report *report, size_t done, size_t total, size_t bytes)
{
  /* Short sweeps need no progress line. */
  if (!report->progress || now_ns() - report->started_ns < 1000000000u) return;
  if (total)
    fprintf(stderr, "\r\033[K%s: %zu of %zu measurements, now %zu bytes", report->options->program, done, total, bytes);
  else
    fprintf(stderr, "\r\033[K%s: %zu measurements, now %zu bytes", report->options->program, done, bytes);
}

/* NULL: was not measured. */
static void print_result(const struct perf_result *result)
{
  char usec[32], algorithm[32], bus[32], wrong[32] = "N/A";
  if (!result) {
    printf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
    return;
  }
  perf_report_number(usec, 7, result->usec);
  perf_report_number(algorithm, 6, result->algorithm_bandwidth);
  perf_report_number(bus, 6, result->bus_bandwidth);
  if (result->wrong >= 0) snprintf(wrong, sizeof(wrong), "%6g", (double)result->wrong);
  printf("  %7s  %6s  %6s  %6s", usec, algorithm, bus, wrong);
}

static void print_row(const struct perf_report *report, const struct perf_row *row)
{
  printf("%12zu  %12zu  %8s  %6s  %6d", row->bytes, row->count, row->type, row->op, row->root);
  print_result(row->has_out_of_place ? &row->out_of_place : NULL);
  print_result(row->has_in_place ? &row->in_place : NULL);
  if (report->options->timestamps) {
    char text[32];
    time_t now = time(NULL);
    struct tm local;
    strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    printf("  %s", text);
  }
  putchar('\n');
  fflush(stdout);
}

static void add_up(struct perf_report *report, const struct perf_result *result)
{
  if (result->wrong > 0) report->wrong += result->wrong;
  report->bandwidth_sum += result->bus_bandwidth;
  report->bandwidth_count++;
}

void perf_report_row(struct perf_report *report, const struct perf_row *row)
{
  pthread_mutex_lock(&report->lock);
  if (row->has_out_of_place) add_up(report, &row->out_of_place);
  if (row->has_in_place) add_up(report, &row->in_place);
  if (report->options->json) {
    if (report->row_count == report->row_room) {
      size_t room = report->row_room ? 2 * report->row_room : 64;
      struct perf_row *grown = realloc(report->rows, room * sizeof(*grown));
      if (grown) report->rows = grown, report->row_room = room;
    }
    if (report->row_count < report->row_room) report->rows[report->row_count++] = *row;
  }
  clear_progress(report);
  print_row(report, row);
  /* What was measured so far survives even kill -9; writing all rows each time would be quadratic. */
  if (report->options->json && now_ns() - report->saved_ns > 2000000000u) {
    char error[256];
    if (!perf_report_save(report, "running", NULL, error, sizeof(error)))
      fprintf(stderr, "%s: %s\n", report->options->program, error);
    report->saved_ns = now_ns();
  }
  pthread_mutex_unlock(&report->lock);
}

void perf_report_load(struct perf_report *report, const struct perf_load_result *load)
{
  pthread_mutex_lock(&report->lock);
  report->load = *load;
  pthread_mutex_unlock(&report->lock);
}

void perf_report_stats(struct perf_report *report, tuttiNetStats_t *stats)
{
  pthread_mutex_lock(&report->lock);
  report->stats = stats;
  pthread_mutex_unlock(&report->lock);
}

int perf_report_verdict(struct perf_report *report)
{
  double mean = perf_report_mean(report);
  bool slow = perf_report_slow(report);
  clear_progress(report);
  printf("# %-20s : %lld %s\n", "Out of bounds values", (long long)report->wrong, report->wrong ? "FAILED" : "OK");
  printf("# %-20s : %g %s\n", "Avg bus bandwidth", mean, report->least_bandwidth < 0 ? "" : slow ? "FAILED" : "OK");
  if (report->load.products)
    printf("# %-20s : %s of %d x %d, %g a second on rank 0's device\n", "Load", report->load.kind, report->load.size,
           report->load.size, (double)report->load.products / report->load.seconds);
  if (report->stats) perf_stats_print(report->stats, report->ranks);
  printf("#\n# Collective test concluded: %s_perf\n", report->options->collective->name);
  fflush(stdout);
  return report->wrong || slow ? 1 : 0;
}

bool perf_report_end(struct perf_report *report, const char *status, const char *sentence, char *error, size_t size)
{
  pthread_mutex_lock(&report->lock);
  bool saved = !report->options->json || perf_report_save(report, status, sentence, error, size);
  free(report->rows);
  free(report->devices);
  free(report->stats);
  report->stats = NULL;
  report->rows = NULL;
  report->devices = NULL;
  report->row_count = report->row_room = 0;
  report->active = false;
  pthread_mutex_unlock(&report->lock);
  return saved;
}

void perf_report_abort(struct perf_report *report, const char *status, const char *sentence)
{
  char error[256];
  pthread_mutex_lock(&report->lock);
  if (report->active) clear_progress(report);
  fflush(stdout);
  if (report->active && report->options->json && !perf_report_save(report, status, sentence, error, sizeof(error)))
    fprintf(stderr, "%s: %s\n", report->options->program, error);
  pthread_mutex_unlock(&report->lock);
}
