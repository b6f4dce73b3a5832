/* Times one row, then checks it. The clock never runs while data is made or compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "verify.h"
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

/* One iteration: `times` operations of each of the thread's communicators, in one group. */
static void operate(struct perf_worker *worker, const struct perf_case *cases, int times)
{
  int comms = worker->team->options->comms;
  const char *name = cases[0].collective->name;
  bool grouped = comms * times > 1;
  if (grouped) perf_worker_try(worker, cases[0].rank, "ncclGroupStart", ncclGroupStart());
  for (int t = 0; t < times; t++)
    for (int i = 0; i < comms; i++) {
      const struct perf_case *c = &cases[i];
      struct perf_call call = {
          perf_case_send(c), perf_case_recv(c), c->shape.count, c->type->type,    c->op ? c->op->op : ncclSum,
          c->root,           c->rank,           c->nranks,      worker->comms[i], worker->memory->stream};
      perf_worker_try(worker, c->rank, name, c->collective->run(&call));
    }
  if (grouped) perf_worker_try(worker, cases[0].rank, name, ncclGroupEnd());
  perf_worker_try(worker, cases[0].rank, "waiting for the stream", worker->memory->synchronize(worker->memory->stream));
}

/* Seconds of one operation. */
static double time_operations(struct perf_worker *worker, const struct perf_case *cases)
{
  const struct perf_options *o = worker->team->options;
  double total = 0;
  for (int i = 0; i < o->comms; i++) perf_check_ones(&cases[i]);
  for (int i = 0; i < o->warmup; i++) operate(worker, cases, o->aggregated);
  perf_team_barrier(worker->team, worker->thread);
  /* The barrier lets ranks go at slightly different times; an operation that is not timed lines them up. */
  operate(worker, cases, 1);
  double start = now(o);
  for (int i = 0; i < o->iterations; i++) {
    operate(worker, cases, o->aggregated);
    if (o->blocking == 1) perf_team_barrier(worker->team, worker->thread);
    if (o->blocking != 3) continue;
    total += now(o) - start;
    perf_team_barrier(worker->team, worker->thread);
    start = now(o);
  }
  if (o->blocking != 3) total = now(o) - start;
  return total / ((double)o->iterations * o->aggregated);
}

static void complain(struct perf_worker *worker, const struct perf_case *c, const struct perf_verdict *verdict)
{
  if (worker->complaints++ >= MOST_COMPLAINTS) return;
  fprintf(stderr, "%s: rank %d: %s of %zu elements, %s%s%s%s: %s (%llu wrong in all)\n", worker->team->options->program,
          c->rank, c->collective->name, c->shape.count, c->type->name, c->op ? " " : "", c->op ? c->op->name : "",
          c->in_place ? ", in place" : "", verdict->first, (unsigned long long)verdict->wrong);
}

static void check_operations(struct perf_worker *worker, struct perf_case *cases, struct outcome *outcomes)
{
  const struct perf_options *o = worker->team->options;
  for (int n = 0; n < o->check; n++) {
    worker->epoch++;
    for (int i = 0; i < o->comms; i++) {
      cases[i].epoch = worker->epoch;
      perf_check_prepare(&cases[i]);
    }
    operate(worker, cases, 1);
    /* A rank that still writes into a neighbour's buffer must have done so before that is checked. */
    perf_team_barrier(worker->team, worker->thread);
    for (int i = 0; i < o->comms; i++) {
      struct perf_verdict verdict;
      perf_check_verify(&cases[i], &verdict);
      if (verdict.wrong) complain(worker, &cases[i], &verdict);
      outcomes[i].wrong += verdict.wrong;
    }
  }
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
                           .has_in_place = collective->in_place};
  measure_form(worker, sweep, false, row, &row->out_of_place);
  if (row->has_in_place) measure_form(worker, sweep, true, row, &row->in_place);
}
