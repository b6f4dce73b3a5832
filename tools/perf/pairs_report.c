/* See pairs.h: the matrices as text and as JSON. */
#include <math.h>
#include <string.h>
#include "json.h"
#include "pairs.h"
#include "report.h"
#include "tutti.h"

static const struct {
  const char *key, *title;
} measures[PERF_PAIR_MEASURES] = {
    [PERF_PAIR_ONE_WAY] = {"bandwidth", "bandwidth, GB/s, row to column"},
    [PERF_PAIR_BOTH] = {"bandwidth_both", "bandwidth while both send, GB/s, row to column"},
    [PERF_PAIR_LATENCY] = {"latency", "latency of a hop, us"},
};

static bool has(int setting, int measure)
{
  return !perf_setting_at(setting)->broadcast || measure == PERF_PAIR_LATENCY;
}

static void print_matrix(struct perf_pairs *pairs, int setting, int measure, FILE *out)
{
  fprintf(out, "# %s: %s\n#      ", perf_setting_at(setting)->name, measures[measure].title);
  for (int column = 0; column < pairs->ranks; column++) fprintf(out, " %8d", column);
  for (int row = 0; row < pairs->ranks; row++) {
    fprintf(out, "\n  %5d", row);
    for (int column = 0; column < pairs->ranks; column++) {
      char text[32] = "-";
      if (row != column) perf_report_number(text, 8, *perf_pairs_at(pairs, setting, measure, row, column));
      fprintf(out, " %8s", text);
    }
  }
  fprintf(out, "\n");
}

void perf_pairs_print(struct perf_pairs *pairs, const struct perf_options *o, const int *statuses, FILE *out)
{
  fprintf(out, "# tutti-perf version %s pairs: %d ranks on %s, bandwidth with %llu bytes, latency with %d\n",
          TUTTI_VERSION_STRING, pairs->ranks, pairs->device[0] ? pairs->device : "no device",
          (unsigned long long)o->max_bytes, PERF_PAIR_LATENCY_BYTES);
  for (int s = 0; s < PERF_SETTINGS; s++) {
    const struct perf_setting *setting = perf_setting_at(s);
    if (statuses[s] < 0) continue;
    fprintf(out, "#\n# %s: %s;", setting->name, setting->what);
    for (int v = 0; v < 2 && setting->variables[v].name; v++)
      fprintf(out, " %s=%s", setting->variables[v].name, setting->variables[v].value);
    if (!pairs->results[s].complete) {
      if (pairs->results[s].missing)
        fprintf(out, "\n# %s: is not to be had here\n", setting->name);
      else
        fprintf(out, "\n# %s: FAILED, status %d\n", setting->name, statuses[s]);
      continue;
    }
    fprintf(out, "\n");
    for (int measure = 0; measure < PERF_PAIR_MEASURES; measure++)
      if (has(s, measure)) print_matrix(pairs, s, measure, out);
    if (pairs->results[s].wrong)
      fprintf(out, "# %s: %llu bytes are wrong\n", setting->name, (unsigned long long)pairs->results[s].wrong);
  }
}

static void save_matrix(struct tool_json *json, struct perf_pairs *pairs, int setting, int measure)
{
  tool_json_open(json, measures[measure].key, '[');
  for (int row = 0; row < pairs->ranks; row++) {
    tool_json_open(json, NULL, '[');
    for (int column = 0; column < pairs->ranks; column++)
      tool_json_real(json, NULL, row == column ? NAN : *perf_pairs_at(pairs, setting, measure, row, column));
    tool_json_close(json, '[');
  }
  tool_json_close(json, '[');
}

int perf_pairs_worst(const struct perf_pairs *pairs, const struct perf_options *o, const int *statuses)
{
  int worst = 0;
  for (int s = 0; s < PERF_SETTINGS; s++) {
    bool excused = pairs->results[s].missing && !o->settings_given;
    if (!excused && statuses[s] > worst) worst = statuses[s];
  }
  return worst;
}

static void save_setting(struct tool_json *json, struct perf_pairs *pairs, const struct perf_options *o, int s,
                         int status)
{
  const struct perf_setting *setting = perf_setting_at(s);
  const struct perf_pairs_result *result = &pairs->results[s];
  tool_json_open(json, NULL, '{');
  tool_json_string(json, "name", setting->name);
  tool_json_string(json, "status",
                   result->missing     ? "missing"
                   : !result->complete ? "error"
                   : status            ? "failed"
                                       : "ok");
  tool_json_open(json, "environment", '{');
  for (int v = 0; v < 2 && setting->variables[v].name; v++)
    tool_json_string(json, setting->variables[v].name, setting->variables[v].value);
  tool_json_close(json, '{');
  for (int measure = 0; result->complete && measure < PERF_PAIR_MEASURES; measure++)
    if (has(s, measure)) save_matrix(json, pairs, s, measure);
  if (o->check && result->complete)
    tool_json_integer(json, "nwrong", (int64_t)result->wrong);
  else
    tool_json_null(json, "nwrong");
  tool_json_close(json, '{');
}

bool perf_pairs_save(struct perf_pairs *pairs, const struct perf_options *o, const int *statuses, int argc, char **argv,
                     char *error, size_t size)
{
  struct tool_json json = {0};
  int worst = perf_pairs_worst(pairs, o, statuses);
  tool_json_open(&json, NULL, '{');
  tool_json_string(&json, "version", "tutti-perf " TUTTI_VERSION_STRING);
  tool_json_string(&json, "status", worst == 0 ? "ok" : worst == 1 ? "failed" : "error");
  tool_json_open(&json, "args", '[');
  for (int i = 0; i < argc; i++) tool_json_string(&json, NULL, argv[i]);
  tool_json_close(&json, '[');
  tool_json_integer(&json, "nranks", pairs->ranks);
  tool_json_string(&json, "device_info", pairs->device);
  tool_json_integer(&json, "bandwidth_bytes", (int64_t)o->max_bytes);
  tool_json_integer(&json, "latency_bytes", PERF_PAIR_LATENCY_BYTES);
  tool_json_integer(&json, "iterations", o->iterations);
  tool_json_integer(&json, "graph", o->graph);
  tool_json_open(&json, "settings", '[');
  for (int s = 0; s < PERF_SETTINGS; s++)
    if (statuses[s] >= 0) save_setting(&json, pairs, o, s, statuses[s]);
  tool_json_close(&json, '[');
  tool_json_close(&json, '{');
  return tool_json_save(&json, o->json, error, size);
}
