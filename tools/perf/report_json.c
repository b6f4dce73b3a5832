/* See report_json.h. Keys are those of nccl-tests' own JSON where it has them; `status` and `error` are added:
 *   running      the run is still going on, or was ended by a signal that cannot be caught
 *   ok, failed   complete; failed: wrong data, or a bandwidth below NCCL_TESTS_MIN_BW
 *   error, interrupted   incomplete; `error` is the sentence */
#include "report_json.h"

#include "json.h"
#include "stats.h"
#include "tutti.h"

double perf_report_mean(const struct perf_report *report)
{
  return report->bandwidth_count ? report->bandwidth_sum / (double)report->bandwidth_count : 0;
}

bool perf_report_slow(const struct perf_report *report)
{
  return report->least_bandwidth >= 0 && perf_report_mean(report) < 0.9 * report->least_bandwidth;
}

static void save_time(struct tool_json *json, const char *key, time_t when)
{
  char text[40];
  struct tm utc;
  strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&when, &utc));
  tool_json_string(json, key, text);
}

static void save_config(struct tool_json *json, const struct perf_report *report)
{
  static const char *const averages[] = {"rank0", "mean", "min", "max"};
  static const char *const memories[] = {"plain", "ncclMemAlloc", "registered", "window"};
  const struct perf_options *o = report->options;
  tool_json_open(json, "config", '{');
  tool_json_integer(json, "nprocesses", report->processes);
  tool_json_integer(json, "nranks", report->ranks);
  tool_json_integer(json, "nthreads", o->threads);
  tool_json_integer(json, "ngpus", o->comms);
  tool_json_integer(json, "minimum_bytes", (int64_t)o->min_bytes);
  tool_json_integer(json, "maximum_bytes", (int64_t)o->max_bytes);
  if (o->step_factor)
    tool_json_real(json, "step_factor", o->step_factor);
  else
    tool_json_integer(json, "step_bytes", (int64_t)o->step_bytes);
  tool_json_integer(json, "warmup_iters", o->warmup);
  tool_json_integer(json, "iterations", o->iterations);
  tool_json_integer(json, "aggregated_iterations", o->aggregated);
  tool_json_integer(json, "validation", o->check);
  tool_json_integer(json, "repeats", o->repeats);
  tool_json_integer(json, "graph", o->graph);
  tool_json_string(json, "memory", memories[o->memory]);
  tool_json_integer(json, "rotate", o->rotate);
  tool_json_bool(json, "dependent", o->dependent);
  tool_json_bool(json, "load", o->load);
  tool_json_integer(json, "blocking_collectives", o->blocking);
  tool_json_integer(json, "cta_policy", o->cta_policy);
  tool_json_bool(json, "parallel_init", o->parallel_init);
  tool_json_integer(json, "unalign", (int64_t)o->unalign);
  tool_json_string(json, "time", o->cpu_time ? "thread_cpu" : "elapsed");
  tool_json_string(json, "time_over_ranks", averages[o->average]);
  tool_json_close(json, '{');
}

static void save_devices(struct tool_json *json, const struct perf_report *report)
{
  tool_json_open(json, "devices", '[');
  for (int r = 0; report->devices && r < report->ranks; r++) {
    const struct perf_device *d = &report->devices[r];
    tool_json_open(json, NULL, '{');
    tool_json_integer(json, "rank", d->rank);
    tool_json_integer(json, "group", 0);
    tool_json_integer(json, "pid", d->pid);
    tool_json_string(json, "hostname", d->host);
    tool_json_integer(json, "device", d->device);
    tool_json_string(json, "device_info", d->name);
    tool_json_string(json, "pci", d->pci);
    tool_json_close(json, '{');
  }
  tool_json_close(json, '[');
}

static void save_result(struct tool_json *json, const char *key, const struct perf_result *result)
{
  if (!result) {
    tool_json_null(json, key);
    return;
  }
  tool_json_open(json, key, '{');
  tool_json_real(json, "time", result->usec);
  tool_json_real(json, "alg_bw", result->algorithm_bandwidth);
  tool_json_real(json, "bus_bw", result->bus_bandwidth);
  if (result->wrong < 0)
    tool_json_null(json, "nwrong");
  else
    tool_json_integer(json, "nwrong", result->wrong);
  tool_json_close(json, '{');
}

static void save_results(struct tool_json *json, const struct perf_report *report)
{
  tool_json_open(json, "results", '[');
  for (size_t i = 0; i < report->row_count; i++) {
    const struct perf_row *row = &report->rows[i];
    tool_json_open(json, NULL, '{');
    tool_json_integer(json, "size", (int64_t)row->bytes);
    tool_json_integer(json, "count", (int64_t)row->count);
    tool_json_string(json, "type", row->type);
    tool_json_string(json, "redop", row->op);
    tool_json_integer(json, "root", row->root);
    save_result(json, "out_of_place", row->has_out_of_place ? &row->out_of_place : NULL);
    save_result(json, "in_place", row->has_in_place ? &row->in_place : NULL);
    tool_json_close(json, '{');
  }
  tool_json_close(json, '[');
}

static void save_load(struct tool_json *json, const struct perf_load_result *load)
{
  tool_json_open(json, "load", '{');
  tool_json_string(json, "kind", load->kind);
  tool_json_integer(json, "size", load->size);
  tool_json_integer(json, "products", (int64_t)load->products);
  tool_json_real(json, "seconds", load->seconds);
  tool_json_close(json, '{');
}

static void save_head(struct tool_json *json, const char *status, const char *sentence)
{
  tool_json_open(json, NULL, '{');
  tool_json_string(json, "version", "tutti-perf " TUTTI_VERSION_STRING);
  tool_json_string(json, "status", status);
  tool_json_string(json, "error", sentence);
}

bool perf_report_save(struct perf_report *report, const char *status, const char *sentence, char *error, size_t size)
{
  struct tool_json json = {0};
  int version = 0;
  save_head(&json, status, sentence);
  save_time(&json, "start_time", report->started);
  save_time(&json, "end_time", time(NULL));
  tool_json_open(&json, "args", '[');
  for (int i = 0; i < report->argc; i++) tool_json_string(&json, NULL, report->argv[i]);
  tool_json_close(&json, '[');
  if (ncclGetVersion(&version) == ncclSuccess) tool_json_integer(&json, "nccl_version", version);
  tool_json_string(&json, "collective", report->options->collective->name);
  save_config(&json, report);
  save_devices(&json, report);
  save_results(&json, report);
  if (report->load.products) save_load(&json, &report->load);
  if (report->stats) perf_stats_save(&json, report->stats, report->ranks);
  tool_json_open(&json, "out_of_bounds", '{');
  tool_json_integer(&json, "count", report->wrong);
  tool_json_bool(&json, "okay", report->wrong == 0);
  tool_json_close(&json, '{');
  tool_json_open(&json, "average_bus_bandwidth", '{');
  tool_json_real(&json, "bandwidth", perf_report_mean(report));
  tool_json_bool(&json, "okay", !perf_report_slow(report));
  tool_json_close(&json, '{');
  tool_json_close(&json, '{');
  return tool_json_save(&json, report->options->json, error, size);
}

bool perf_report_save_failure(const char *path, const char *program, const char *sentence, char *error, size_t size)
{
  struct tool_json json = {0};
  save_head(&json, "error", sentence);
  tool_json_string(&json, "program", program);
  tool_json_close(&json, '{');
  return tool_json_save(&json, path, error, size);
}
