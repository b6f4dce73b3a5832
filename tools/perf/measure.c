/* Times one row, then checks it. The clock never runs while data is made or compared.
 *
 * Times are taken as nccl-tests takes them: the host's clock around putting all iterations on the stream and waiting
 * for it, or with -G around launching a graph of all iterations so many times. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "operate.h"
#include "sweep.h"
#include "worker.h"

enum { MOST_COMPLAINTS = 8 }; /* sentences about wrong data that a thread prints */

struct outcome {
  double seconds;
  uint64_t wrong;
};

static double now(const struct perf_options *o)
{
  struct timespec time;
  clock_gettime(o->cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static struct perf_case case_of(struct perf_worker *worker, const struct perf_sweep *sweep, bool in_place, int comm)
{
  struct perf_team *team = worker->team;
  struct perf_case c = {.collective = team->options->collective,
                        .type = sweep->type,
                        .op = sweep->op,
                        .root = sweep->root,
                        .rank = perf_worker_rank(worker, comm),
                        .nranks = team->ranks,
                        .in_place = in_place,
                        .epoch = worker->epoch,
                        .send = &worker->send[comm],
                        .recv = &worker->recv[comm]};
  c.collective->shape(&c.shape, sweep->bytes / (size_t)sweep->type->bytes, c.rank, c.nranks);
  c.send->data = c.send->base + PERF_GUARD + team->options->unalign * (size_t)sweep->type->bytes;
  c.recv->data = c.recv->base + PERF_GUARD + team->options->unalign * (size_t)sweep->type->bytes;
  return c;
}

/* Seconds of all timed iterations. */
static double time_iterations(struct perf_worker *worker, const struct perf_case *cases)
{
  const struct perf_options *o = worker->team->options;
  double total = 0, start = now(o);
  for (int i = 0; i < o->iterations; i++) {
    perf_enqueue(worker, cases, o->aggregated, i);
    if (o->blocking != 1 && o->blocking != 3) continue;
    perf_worker_wait(worker);
    if (o->blocking == 3) total += now(o) - start;
    perf_team_barrier(worker->team, worker->thread);
    if (o->blocking == 3) start = now(o);
  }
  if (o->blocking == 3) return total;
  perf_worker_wait(worker);
  return now(o) - start;
}

static double time_launches(struct perf_worker *worker, void **graphs)
{
  const struct perf_options *o = worker->team->options;
  double start = now(o);
  for (int i = 0; i < o->graph; i++) perf_replay(worker, graphs);
  perf_worker_wait(worker);
  return (now(o) - start) / o->graph;
}

static int by_size(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Seconds of one operation: the median over --repeats measurements, the lower of two. */
static double time_operations(struct perf_worker *worker, const struct perf_case *cases)
{
  const struct perf_options *o = worker->team->options;
  double *times = calloc((size_t)o->repeats, sizeof(*times));
  if (!times) perf_watch_fail(worker->team->watch, "out of memory");
  for (int i = 0; i < o->comms; i++) {
    perf_worker_choose(worker, i);
    perf_worker_must(worker, i, "filling its buffers", perf_check_ones(&cases[i]));
  }
  for (int i = 0; i < o->warmup; i++) perf_enqueue(worker, cases, o->aggregated, o->dependent || o->rotate ? i : 0);
  perf_worker_wait(worker);
  void **graphs = o->graph ? perf_capture(worker, cases, o->iterations, o->aggregated) : NULL;
  for (int i = 0; i < o->repeats; i++) {
    perf_team_barrier(worker->team, worker->thread);
    /* The barrier lets ranks go at slightly different times; an operation that is not timed lines them up. */
    perf_operate(worker, cases, 1);
    times[i] = graphs ? time_launches(worker, graphs) : time_iterations(worker, cases);
  }
  perf_graphs_drop(worker, graphs);
  qsort(times, (size_t)o->repeats, sizeof(*times), by_size);
  double median = times[(o->repeats - 1) / 2];
  free(times);
  return median / ((double)o->iterations * o->aggregated);
}

static void complain(struct perf_worker *worker, const struct perf_case *c, const struct perf_verdict *verdict)
{
  if (worker->complaints++ >= MOST_COMPLAINTS) return;
  fprintf(stderr, "%s: rank %d: %s of %zu elements, %s%s%s%s: %s (%llu wrong in all)\n", worker->team->options->program,
          c->rank, c->collective->name, c->shape.count, c->type->name, c->op ? " " : "", c->op ? c->op->name : "",
          c->in_place ? ", in place" : "", verdict->first, (unsigned long long)verdict->wrong);
}

/* One check: new data, the operation, and a look at every element. `graphs`: it is launched again, and must read the
 * new data. */
static void check_once(struct perf_worker *worker, struct perf_case *cases, void **graphs, struct outcome *outcomes)
{
  int comms = worker->team->options->comms;
  worker->epoch++;
  for (int i = 0; i < comms; i++) {
    cases[i].epoch = worker->epoch;
    perf_worker_choose(worker, i);
    perf_worker_must(worker, i, "filling its buffers", perf_check_prepare(&cases[i]));
  }
  /* No barrier: a rank that is early must not touch the buffers of one that has not come yet. */
  if (graphs) {
    perf_replay(worker, graphs);
    perf_worker_wait(worker);
  } else {
    perf_operate(worker, cases, 1);
  }
  /* A rank that still writes into a neighbour's buffer must have done so before that is checked. */
  perf_team_barrier(worker->team, worker->thread);
  for (int i = 0; i < comms; i++) {
    struct perf_verdict verdict;
    perf_worker_choose(worker, i);
    perf_worker_must(worker, i, "reading its buffers", perf_check_verify(&cases[i], &verdict));
    if (verdict.wrong) complain(worker, &cases[i], &verdict);
    outcomes[i].wrong += verdict.wrong;
  }
}

static void check_operations(struct perf_worker *worker, struct perf_case *cases, struct outcome *outcomes)
{
  const struct perf_options *o = worker->team->options;
  void **graphs = o->graph && o->check ? perf_capture(worker, cases, 1, 1) : NULL;
  /* A graph is checked twice at least: only the second launch shows that it reads its input anew. */
  int times = graphs && o->check < 2 ? 2 : o->check;
  for (int n = 0; n < times; n++) check_once(worker, cases, graphs, outcomes);
  perf_graphs_drop(worker, graphs);
}

static double over_ranks(const struct perf_team *team, const struct outcome *all)
{
  double least = all[0].seconds, most = all[0].seconds, sum = 0;
  for (int r = 0; r < team->ranks; r++) {
    double seconds = all[r].seconds;
    sum += seconds;
    if (seconds < least) least = seconds;
    if (seconds > most) most = seconds;
  }
  switch (team->options->average) {
  case PERF_RANK0:
    return all[0].seconds;
  case PERF_MEAN:
    return sum / team->ranks;
  case PERF_MIN:
    return least;
  default:
    return most;
  }
}

static void conclude(const struct perf_team *team, const struct perf_row *row, const struct outcome *all,
                     struct perf_result *result)
{
  double seconds = over_ranks(team, all);
  double bandwidth = seconds > 0 ? (double)row->bytes * 1e-9 / seconds : 0;
  *result = (struct perf_result){.usec = seconds * 1e6,
                                 .algorithm_bandwidth = bandwidth,
                                 .bus_bandwidth = bandwidth * team->options->collective->bus_factor(team->ranks),
                                 .wrong = team->options->check ? 0 : -1};
  for (int r = 0; team->options->check && r < team->ranks; r++) result->wrong += (int64_t)all[r].wrong;
}

static void measure_form(struct perf_worker *worker, const struct perf_sweep *sweep, bool in_place,
                         const struct perf_row *row, struct perf_result *result)
{
  struct perf_team *team = worker->team;
  int comms = team->options->comms;
  struct perf_case *cases = calloc((size_t)comms, sizeof(*cases));
  struct outcome *mine = calloc((size_t)comms, sizeof(*mine)), *all = calloc((size_t)team->ranks, sizeof(*all));
  if (!cases || !mine || !all) perf_watch_fail(team->watch, "out of memory");
  for (int i = 0; i < comms; i++) cases[i] = case_of(worker, sweep, in_place, i);
  perf_watch_arm(team->watch, team->options->timeout);
  double seconds = time_operations(worker, cases);
  for (int i = 0; i < comms; i++) mine[i].seconds = seconds;
  check_operations(worker, cases, mine);
  perf_team_exchange(team, worker->thread, mine, all, sizeof(*mine));
  conclude(team, row, all, result);
  free(cases);
  free(mine);
  free(all);
}

void perf_measure(struct perf_worker *worker, const struct perf_sweep *sweep, struct perf_row *row)
{
  const struct perf_collective *collective = worker->team->options->collective;
  struct perf_case c = case_of(worker, sweep, false, 0);
  size_t larger = c.shape.send > c.shape.recv ? c.shape.send : c.shape.recv;
  *row = (struct perf_row){.bytes = larger * (size_t)sweep->type->bytes,
                           .count = c.shape.count,
                           .type = sweep->type->name,
                           .op = sweep->op ? sweep->op->name : "none",
                           .root = collective->rooted ? sweep->root : -1,
                           .has_out_of_place = worker->team->options->out_of_place,
                           .has_in_place = collective->in_place && worker->team->options->in_place};
  if (row->has_out_of_place) measure_form(worker, sweep, false, row, &row->out_of_place);
  if (row->has_in_place) measure_form(worker, sweep, true, row, &row->in_place);
}
