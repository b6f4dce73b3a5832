/* See stats.h. */
#include "stats.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "tutti/counters.h"
#include "worker.h"

/* Found by name, since the tool also runs with another library in Tutti's place. */
static tuttiNetStats_t ask(struct perf_worker *worker, int comm)
{
  union {
    void *symbol;
    ncclResult_t (*call)(ncclComm_t, tuttiNetStats_t *);
  } found = {.symbol = dlsym(RTLD_DEFAULT, "tuttiCommNetStats")};
  tuttiNetStats_t stats = {.size = sizeof(stats)};
  if (!found.symbol) perf_watch_fail(worker->team->watch, "--stats: the library has no tuttiCommNetStats");
  perf_worker_try(worker, perf_worker_rank(worker, comm), "tuttiCommNetStats", found.call(worker->comms[comm], &stats));
  return stats;
}

void perf_stats_gather(struct perf_worker *worker)
{
  struct perf_team *team = worker->team;
  int comms = team->options->comms;
  tuttiNetStats_t *mine = calloc((size_t)comms, sizeof(*mine)), *all = calloc((size_t)team->ranks, sizeof(*all));
  if (!mine || !all) perf_watch_fail(team->watch, "out of memory");
  /* What a rank sent last is counted when its peer has it, and all are past their last operation. */
  perf_team_barrier(team, worker->thread);
  for (int i = 0; i < comms; i++) mine[i] = ask(worker, i);
  perf_team_exchange(team, worker->thread, mine, all, sizeof(*mine));
  free(mine);
  if (team->control->process == 0 && worker->thread == 0)
    perf_report_stats(team->report, all);
  else
    free(all);
}

static void add(tuttiNetTraffic_t *sum, const tuttiNetTraffic_t *traffic)
{
  sum->messages += traffic->messages;
  sum->bytes += traffic->bytes;
  sum->slotBytes += traffic->slotBytes;
  sum->open += traffic->open;
  sum->timed += traffic->timed;
  sum->ns += traffic->ns;
  sum->counts |= traffic->counts;
  sum->retries += traffic->retries;
  sum->refused += traffic->refused;
  sum->clearToSends += traffic->clearToSends;
  sum->clearToSendWaits += traffic->clearToSendWaits;
  if (traffic->mostNs > sum->mostNs) sum->mostNs = traffic->mostNs;
  if (traffic->queueDepthMost > sum->queueDepthMost) sum->queueDepthMost = traffic->queueDepthMost;
}

static double ratio(uint64_t value, uint64_t of)
{
  return of ? (double)value / (double)of : 0;
}

static void print_count(const tuttiNetTraffic_t *traffic, uint64_t bit, uint64_t value, const char *what)
{
  if (traffic->counts & bit) printf(", %" PRIu64 " %s", value, what);
}

static void print_direction(const char *name, const tuttiNetTraffic_t *traffic)
{
  printf("# %-20s : %" PRIu64 " messages, %" PRIu64
         " bytes, slots %.1f %% full, %.1f requests under way, %.1f us each, "
         "%.1f at most",
         name, traffic->messages, traffic->bytes, 100 * ratio(traffic->bytes, traffic->slotBytes),
         ratio(traffic->open, traffic->messages), ratio(traffic->ns, traffic->timed) / 1000,
         (double)traffic->mostNs / 1000);
  print_count(traffic, TT_COUNTS_RETRIES, traffic->retries, "retries");
  print_count(traffic, TT_COUNTS_REFUSED, traffic->refused, "refused");
  print_count(traffic, TT_COUNTS_CLEAR_TO_SENDS, traffic->clearToSends, "clear to send");
  print_count(traffic, TT_COUNTS_CLEAR_TO_SEND_WAITS, traffic->clearToSendWaits, "waited for that");
  print_count(traffic, TT_COUNTS_QUEUE_DEPTH, traffic->queueDepthMost, "deep at most");
  printf("\n");
}

void perf_stats_print(const tuttiNetStats_t *stats, int ranks)
{
  tuttiNetStats_t sum = {0};
  uint64_t busiest = 0;
  for (int r = 0; r < ranks; r++) {
    add(&sum.send, &stats[r].send);
    add(&sum.recv, &stats[r].recv);
    if (stats[r].busyNs > busiest) busiest = stats[r].busyNs;
  }
  if (sum.send.messages == 0 && sum.recv.messages == 0) {
    printf("# %-20s : nothing went over a network\n", "Network");
    return;
  }
  print_direction("Network, sent", &sum.send);
  print_direction("Network, received", &sum.recv);
  if (busiest > 0) printf("# %-20s : %.1f us at the rank with the most\n", "Network, busy", (double)busiest / 1000);
}

static void save_count(struct tool_json *json, const tuttiNetTraffic_t *traffic, uint64_t bit, const char *key,
                       uint64_t value)
{
  if (traffic->counts & bit) tool_json_integer(json, key, (int64_t)value);
}

static void save_direction(struct tool_json *json, const char *key, const tuttiNetTraffic_t *traffic)
{
  tool_json_open(json, key, '{');
  tool_json_integer(json, "messages", (int64_t)traffic->messages);
  tool_json_integer(json, "bytes", (int64_t)traffic->bytes);
  tool_json_real(json, "slot_fill", ratio(traffic->bytes, traffic->slotBytes));
  tool_json_real(json, "requests_open", ratio(traffic->open, traffic->messages));
  tool_json_real(json, "usec", ratio(traffic->ns, traffic->timed) / 1000);
  tool_json_real(json, "usec_most", (double)traffic->mostNs / 1000);
  save_count(json, traffic, TT_COUNTS_RETRIES, "retries", traffic->retries);
  save_count(json, traffic, TT_COUNTS_REFUSED, "refused", traffic->refused);
  save_count(json, traffic, TT_COUNTS_CLEAR_TO_SENDS, "clear_to_sends", traffic->clearToSends);
  save_count(json, traffic, TT_COUNTS_CLEAR_TO_SEND_WAITS, "clear_to_send_waits", traffic->clearToSendWaits);
  save_count(json, traffic, TT_COUNTS_QUEUE_DEPTH, "queue_depth_most", traffic->queueDepthMost);
  tool_json_close(json, '{');
}

void perf_stats_save(struct tool_json *json, const tuttiNetStats_t *stats, int ranks)
{
  tool_json_open(json, "network", '[');
  for (int r = 0; r < ranks; r++) {
    tool_json_open(json, NULL, '{');
    tool_json_integer(json, "rank", r);
    save_direction(json, "sent", &stats[r].send);
    save_direction(json, "received", &stats[r].recv);
    tool_json_close(json, '{');
  }
  tool_json_close(json, '[');
}
