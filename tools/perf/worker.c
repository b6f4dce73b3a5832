/* See worker.h. */
#include "worker.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "launch.h"
#include "pairs.h"
#include "stats.h"
#include "sweep.h"

enum {
  PERF_STREAM_SECONDS = 120, /* that operations on a stream may take unless -T says otherwise */
  PERF_ABORT_SECONDS = 10,   /* that aborting may take */
};

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

void perf_worker_must(struct perf_worker *worker, int comm, const char *what, bool worked)
{
  if (worked) return;
  perf_watch_fail(worker->team->watch, "rank %d: %s: %s", perf_worker_rank(worker, comm), what,
                  worker->team->backend->error());
}

static int device_of(const struct perf_team *team, int rank)
{
  int first = team->control->process * team->options->threads * team->options->comms;
  return (team->host_first + rank - first) % team->devices;
}

int perf_worker_device(const struct perf_worker *worker, int comm)
{
  return device_of(worker->team, perf_worker_rank(worker, comm));
}

void perf_worker_choose(struct perf_worker *worker, int comm)
{
  perf_worker_must(worker, comm, "choosing its device",
                   worker->team->backend->choose(perf_worker_device(worker, comm)));
}

/* All ranks are in this process. */
static void init_all(struct perf_worker *worker, ncclComm_t *comms, int count)
{
  int *devices = calloc((size_t)count, sizeof(*devices));
  if (!devices) perf_watch_fail(worker->team->watch, "out of memory");
  for (int i = 0; i < count; i++) devices[i] = device_of(worker->team, i);
  bool host = !worker->team->backend->streams;
  perf_worker_try(worker, 0, "ncclCommInitAll", ncclCommInitAll(comms, count, host ? NULL : devices));
  free(devices);
}

/* A library that knows no such member of the configuration takes it for one of a newer version, and ignores it. */
static ncclResult_t init_rank(struct perf_worker *worker, ncclComm_t *comm, int rank)
{
  int policy = worker->team->options->cta_policy;
  if (policy < 0) return ncclCommInitRank(comm, worker->team->ranks, worker->id, rank);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.CTAPolicy = policy;
  return ncclCommInitRankConfig(comm, worker->team->ranks, worker->id, rank, &config);
}

void perf_worker_init_comms(struct perf_worker *worker, ncclComm_t *comms, int first, int count)
{
  int ranks = worker->team->ranks;
  if (count == ranks && ranks > 1 && worker->team->options->cta_policy < 0) {
    init_all(worker, comms, count);
    return;
  }
  if (count > 1) perf_worker_try(worker, first, "ncclGroupStart", ncclGroupStart());
  for (int i = 0; i < count; i++) {
    if (!worker->team->backend->choose(device_of(worker->team, first + i)))
      perf_watch_fail(worker->team->watch, "rank %d: %s", first + i, worker->team->backend->error());
    perf_worker_try(worker, first + i, "ncclCommInitRank", init_rank(worker, &comms[i], first + i));
  }
  if (count > 1) perf_worker_try(worker, first, "ncclGroupEnd (creating communicators)", ncclGroupEnd());
}

static double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The sentence is taken before the abort, which may replace it. The abort itself is bounded by the watch. */
_Noreturn static void give_up(struct perf_worker *worker, int comm, ncclResult_t result, const char *what)
{
  struct perf_team *team = worker->team;
  char detail[600];
  const char *last = ncclGetLastError(worker->comms[comm]);
  snprintf(detail, sizeof(detail), "%s", result != ncclSuccess && last ? last : "");
  if (result == ncclRemoteError) perf_watch_await_cause(team->watch);
  perf_watch_arm(team->watch, PERF_ABORT_SECONDS);
  for (int i = 0; i < team->options->comms; i++) (void)ncclCommAbort(worker->comms[i]);
  perf_watch_fail(team->watch, "rank %d: %s%s%s", perf_worker_rank(worker, comm), what, detail[0] ? ": " : "", detail);
}

/* One look at a stream: whether it is done. */
static bool is_done(struct perf_worker *worker, int comm)
{
  const struct perf_backend *backend = worker->team->backend;
  enum perf_stream_state state = backend->stream_state(worker->streams[comm]);
  if (state == PERF_STREAM_FAILED) give_up(worker, comm, ncclSuccess, backend->error());
  return state == PERF_STREAM_DONE;
}

static void look_for_errors(struct perf_worker *worker)
{
  for (int i = 0; i < worker->team->options->comms; i++) {
    ncclResult_t error = ncclSuccess, result = ncclCommGetAsyncError(worker->comms[i], &error);
    if (result == ncclSuccess) result = error;
    if (result != ncclSuccess && result != ncclInProgress) give_up(worker, i, result, ncclGetErrorString(result));
  }
}

/* Whether each rank has a stream of its own. */
static bool has_stream(const struct perf_worker *worker)
{
  int null = worker->team->options->stream_null;
  return null < 0 ? worker->team->backend->streams : null == 0;
}

/* Where a thread of the library does the work, it gets the processor: the watch ends what takes too long. */
static void sleep_until_done(struct perf_worker *worker)
{
  for (int i = 0; i < worker->team->options->comms; i++) {
    if (worker->team->backend->stream_wait(worker->streams[i])) continue;
    look_for_errors(worker);
    give_up(worker, i, ncclSuccess, worker->team->backend->error());
  }
}

void perf_worker_wait(struct perf_worker *worker)
{
  if (worker->team->backend->stream_wait && has_stream(worker)) {
    sleep_until_done(worker);
    return;
  }
  const struct perf_options *o = worker->team->options;
  double limit = o->timeout ? o->timeout : PERF_STREAM_SECONDS, started = 0, looked = 0;
  for (int i = 0; i < o->comms; i++)
    while (!is_done(worker, i)) {
      double time = now();
      if (!started) started = looked = time;
      if (time - looked > 1e-3) {
        look_for_errors(worker);
        looked = time;
      }
      if (time - started > limit)
        give_up(worker, i, ncclSuccess, "operations on its stream do not end (-T sets how long to wait)");
      sched_yield();
    }
  /* An operation that fails ends, and its stream is done too. */
  if (worker->team->backend->streams) look_for_errors(worker);
}

static void make_buffers(struct perf_worker *worker)
{
  const struct perf_options *o = worker->team->options;
  const struct perf_backend *backend = worker->team->backend;
  worker->send = calloc((size_t)o->comms, sizeof(*worker->send));
  worker->recv = calloc((size_t)o->comms, sizeof(*worker->recv));
  worker->streams = calloc((size_t)o->comms, sizeof(*worker->streams));
  if (!worker->send || !worker->recv || !worker->streams) perf_watch_fail(worker->team->watch, "out of memory");
  size_t room = (size_t)perf_options_room(o);
  /* Elements of every type are at most 8 bytes. */
  for (int i = 0; i < o->comms; i++) {
    perf_worker_choose(worker, i);
    if (!perf_buffer_make(&worker->send[i], backend, o->memory, room, o->unalign * 8) ||
        !perf_buffer_make(&worker->recv[i], backend, o->memory, room, o->unalign * 8))
      perf_watch_fail(worker->team->watch,
                      "rank %d: no memory for two buffers of %llu bytes (%s); lower -e or --rotate",
                      perf_worker_rank(worker, i), (unsigned long long)room,
                      o->memory != PERF_MEMORY_PLAIN ? ncclGetLastError(NULL) : backend->error());
    if (has_stream(worker)) perf_worker_must(worker, i, "making a stream", backend->stream_make(&worker->streams[i]));
  }
}

/* The communicators' ranks of a thread register together, in a group, since windows are made by all ranks. */
static void register_buffers(struct perf_worker *worker, bool drop)
{
  ncclResult_t (*act)(struct perf_buffer *, ncclComm_t) = drop ? perf_buffer_deregister : perf_buffer_register;
  const char *what = drop ? "giving up its buffers' registration" : "registering its buffers";
  int comms = worker->team->options->comms, first = perf_worker_rank(worker, 0);
  /* Pairs have communicators of their own. */
  if (worker->team->options->memory < PERF_MEMORY_REGISTERED || worker->team->options->pairs) return;
  for (int side = 0; side < 2; side++) {
    struct perf_buffer *buffers = side == 0 ? worker->send : worker->recv;
    if (comms > 1) perf_worker_try(worker, first, "ncclGroupStart", ncclGroupStart());
    for (int i = 0; i < comms; i++) {
      perf_worker_choose(worker, i);
      perf_worker_try(worker, first + i, what, act(&buffers[i], worker->comms[i]));
    }
    if (comms > 1) perf_worker_try(worker, first, what, ncclGroupEnd());
  }
}

static void drop_buffers(struct perf_worker *worker)
{
  const struct perf_options *o = worker->team->options;
  for (int i = 0; i < o->comms; i++) {
    perf_worker_choose(worker, i);
    perf_buffer_drop(&worker->send[i]);
    perf_buffer_drop(&worker->recv[i]);
    if (has_stream(worker)) worker->team->backend->stream_drop(worker->streams[i]);
  }
  free(worker->send);
  free(worker->recv);
  free(worker->streams);
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
    perf_worker_must(worker, i, "describing its device",
                     team->backend->describe(perf_worker_device(worker, i), mine[i].name, sizeof(mine[i].name),
                                             mine[i].pci, sizeof(mine[i].pci)));
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

/* The loads of a thread's devices start before anything is timed, and run until all is. */
static void start_load(struct perf_worker *worker)
{
  const struct perf_backend *backend = worker->team->backend;
  int comms = worker->team->options->comms;
  if (!worker->team->options->load) return;
  if (!backend->load_start) perf_watch_fail(worker->team->watch, "--load: device %s has none", backend->name);
  worker->loads = calloc((size_t)comms, sizeof(*worker->loads));
  if (!worker->loads) perf_watch_fail(worker->team->watch, "out of memory");
  for (int i = 0; i < comms; i++) {
    perf_worker_choose(worker, i);
    worker->loads[i] = backend->load_start(perf_worker_device(worker, i));
    perf_worker_must(worker, i, "starting --load", worker->loads[i] != NULL);
  }
  perf_team_barrier(worker->team, worker->thread);
}

/* A load that multiplied nothing would make a measurement that says what it is not. */
static void stop_load(struct perf_worker *worker)
{
  const struct perf_backend *backend = worker->team->backend;
  for (int i = 0; worker->loads && i < worker->team->options->comms; i++) {
    struct perf_load_result result = {0};
    perf_worker_choose(worker, i);
    perf_worker_must(worker, i, "--load", backend->load_stop(worker->loads[i], &result));
    if (result.products == 0) perf_watch_fail(worker->team->watch, "--load: not one product was made meanwhile");
    if (perf_worker_rank(worker, i) == 0) perf_report_load(worker->team->report, &result);
  }
  free(worker->loads);
}

static void sweep_all(struct perf_worker *worker)
{
  struct perf_team *team = worker->team;
  bool reports = team->control->process == 0 && worker->thread == 0;
  size_t total = perf_sweep_count(team->options, team->ranks, team->backend->fp8), done = 0;
  struct perf_sweep sweep;
  struct perf_row row;
  perf_sweep_begin(&sweep, team->options, team->ranks, team->backend->fp8);
  for (; perf_sweep_next(&sweep); done++) {
    if (reports) perf_report_progress(team->report, done, total, sweep.bytes);
    perf_measure(worker, &sweep, &row);
    if (reports) perf_report_row(team->report, &row);
  }
}

static void measure_collectives(struct perf_worker *worker)
{
  struct perf_team *team = worker->team;
  start_load(worker);
  sweep_all(worker);
  stop_load(worker);
  if (team->options->stats) perf_stats_gather(worker);
  if (team->control->process == 0 && worker->thread == 0) worker->status = perf_report_verdict(team->report);
}

void *perf_worker_run(void *arg)
{
  struct perf_worker *worker = arg;
  struct perf_team *team = worker->team;
  const struct perf_options *o = team->options;
  if (o->parallel_init) perf_worker_init_comms(worker, worker->comms, perf_worker_rank(worker, 0), o->comms);
  make_buffers(worker);
  if (!o->pairs) introduce(worker);
  register_buffers(worker, false);
  if (o->pairs)
    perf_pairs_measure(worker);
  else
    measure_collectives(worker);
  /* Nobody takes a communicator down while another still computes. */
  perf_team_barrier(team, worker->thread);
  perf_watch_arm(team->watch, o->timeout);
  register_buffers(worker, true);
  for (int i = 0; i < o->comms; i++)
    perf_worker_try(worker, perf_worker_rank(worker, i), "ncclCommDestroy", ncclCommDestroy(worker->comms[i]));
  drop_buffers(worker);
  return NULL;
}
