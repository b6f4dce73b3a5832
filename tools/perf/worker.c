/* See worker.h. */
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "launch.h"
#include "sweep.h"

int perf_worker_rank(const struct perf_worker *worker, int comm)
{
  const struct perf_options *o = worker->team->options;
  return (worker->team->control->process * o->threads + worker->thread) * o->comms + comm;
}

void perf_worker_try(struct perf_worker *worker, int rank, const char *what, ncclResult_t result)
{
  if (result == ncclSuccess) return;
  const char *detail = ncclGetLastError(NULL);
  if (result == ncclRemoteError) perf_watch_await_cause(worker->team->watch);
  perf_watch_fail(worker->team->watch, "rank %d: %s: %s%s%s", rank, what, ncclGetErrorString(result),
                  detail && *detail ? ": " : "", detail ? detail : "");
}

void perf_worker_init_comms(struct perf_worker *worker, ncclComm_t *comms, int first, int count)
{
  int ranks = worker->team->ranks;
  if (count == ranks && ranks > 1) {
    perf_worker_try(worker, first, "ncclCommInitAll", ncclCommInitAll(comms, count, NULL));
    return;
  }
  if (count > 1) perf_worker_try(worker, first, "ncclGroupStart", ncclGroupStart());
  for (int i = 0; i < count; i++)
    perf_worker_try(worker, first + i, "ncclCommInitRank", ncclCommInitRank(&comms[i], ranks, worker->id, first + i));
  if (count > 1) perf_worker_try(worker, first, "ncclGroupEnd (creating communicators)", ncclGroupEnd());
}

static void make_buffers(struct perf_worker *worker)
{
  const struct perf_options *o = worker->team->options;
  worker->send = calloc((size_t)o->comms, sizeof(*worker->send));
  worker->recv = calloc((size_t)o->comms, sizeof(*worker->recv));
  if (!worker->send || !worker->recv) perf_watch_fail(worker->team->watch, "out of memory");
  /* Elements of every type are at most 8 bytes. */
  for (int i = 0; i < o->comms; i++)
    if (!perf_buffer_make(&worker->send[i], worker->memory, i, o->max_bytes, o->unalign * 8) ||
        !perf_buffer_make(&worker->recv[i], worker->memory, i, o->max_bytes, o->unalign * 8))
      perf_watch_fail(worker->team->watch, "rank %d: no memory for two buffers of %llu bytes; lower -e",
                      perf_worker_rank(worker, i), (unsigned long long)o->max_bytes);
}

/* Everybody's host, process and device, and the beginning of the report. */
static void introduce(struct perf_worker *worker)
{
  struct perf_team *team = worker->team;
  int comms = team->options->comms;
  struct perf_device *mine = calloc((size_t)comms, sizeof(*mine)), *all = calloc((size_t)team->ranks, sizeof(*all));
  char error[512];
  if (!mine || !all) perf_watch_fail(team->watch, "out of memory");
  for (int i = 0; i < comms; i++) {
    mine[i].rank = perf_worker_rank(worker, i);
    mine[i].pid = getpid();
    gethostname(mine[i].host, sizeof(mine[i].host) - 1);
    perf_worker_try(worker, mine[i].rank, "ncclCommCuDevice", ncclCommCuDevice(worker->comms[i], &mine[i].device));
    snprintf(mine[i].name, sizeof(mine[i].name), "%s", worker->memory->name);
  }
  perf_team_exchange(team, worker->thread, mine, all, sizeof(*mine));
  free(mine);
  if (team->control->process == 0 && worker->thread == 0) {
    if (!perf_report_begin(team->report, team->options, team->argc, team->argv, team->control->processes, team->ranks,
                           all, error, sizeof(error)))
      perf_watch_fail(team->watch, "%s", error);
    team->watch->report = team->report;
  } else {
    free(all);
  }
}

static void sweep_all(struct perf_worker *worker)
{
  struct perf_team *team = worker->team;
  bool reports = team->control->process == 0 && worker->thread == 0;
  size_t total = perf_sweep_count(team->options, team->ranks), done = 0;
  struct perf_sweep sweep;
  struct perf_row row;
  perf_sweep_begin(&sweep, team->options, team->ranks);
  for (; perf_sweep_next(&sweep); done++) {
    if (reports) perf_report_progress(team->report, done, total, sweep.bytes);
    perf_measure(worker, &sweep, &row);
    if (reports) perf_report_row(team->report, &row);
  }
  if (reports) worker->status = perf_report_verdict(team->report);
}

void *perf_worker_run(void *arg)
{
  struct perf_worker *worker = arg;
  struct perf_team *team = worker->team;
  const struct perf_options *o = team->options;
  if (o->parallel_init) perf_worker_init_comms(worker, worker->comms, perf_worker_rank(worker, 0), o->comms);
  make_buffers(worker);
  introduce(worker);
  sweep_all(worker);
  /* Nobody takes a communicator down while another still computes. */
  perf_team_barrier(team, worker->thread);
  perf_watch_arm(team->watch, o->timeout);
  for (int i = 0; i < o->comms; i++) {
    perf_worker_try(worker, perf_worker_rank(worker, i), "ncclCommDestroy", ncclCommDestroy(worker->comms[i]));
    perf_buffer_drop(&worker->send[i]);
    perf_buffer_drop(&worker->recv[i]);
  }
  free(worker->send);
  free(worker->recv);
  return NULL;
}
