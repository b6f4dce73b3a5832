/* See operate.h. */
#include "operate.h"

#include <stdlib.h>

struct operands {
  char *send, *recv;
  int root;
};

/* With --dependent the two buffers change parts from one iteration to the next, and the root moves on: a root that only
 * sends could else start iterations before the others have come to them. */
static struct operands operands_of(const struct perf_worker *worker, const struct perf_case *c, int iteration)
{
  struct operands at = {perf_case_send(c), perf_case_recv(c), c->root};
  if (!worker->team->options->dependent) return at;
  at.root = (c->root + iteration) % c->nranks;
  if (c->in_place || iteration % 2 == 0) return at;
  return (struct operands){at.recv, at.send, at.root};
}

void perf_enqueue(struct perf_worker *worker, const struct perf_case *cases, int times, int iteration)
{
  size_t shift = perf_shift(worker, &cases[0], iteration);
  int comms = worker->team->options->comms;
  const char *name = cases[0].collective->name;
  bool grouped = comms * times > 1;
  if (grouped) perf_worker_try(worker, cases[0].rank, "ncclGroupStart", ncclGroupStart());
  for (int t = 0; t < times; t++)
    for (int i = 0; i < comms; i++) {
      const struct perf_case *c = &cases[i];
      struct operands at = operands_of(worker, c, iteration);
      struct perf_call call = {
          at.send + shift, at.recv + shift, c->shape.count, c->type->type,    c->op ? c->op->op : ncclSum,
          at.root,         c->rank,         c->nranks,      worker->comms[i], worker->streams[i]};
      perf_worker_try(worker, c->rank, name, c->collective->run(&call));
    }
  if (grouped) perf_worker_try(worker, cases[0].rank, name, ncclGroupEnd());
}

size_t perf_shift(const struct perf_worker *worker, const struct perf_case *c, int i)
{
  size_t larger = c->shape.send > c->shape.recv ? c->shape.send : c->shape.recv,
         bytes = larger * (size_t)c->type->bytes;
  const struct perf_options *o = worker->team->options;
  if (o->rotate) return (size_t)(i % o->rotate) * (size_t)perf_options_stride(bytes);
  /* What an iteration received must be what the next one sends. */
  if (o->dependent) return 0;
  if (!worker->team->backend->streams || bytes == 0) return 0;
  size_t places = (size_t)worker->team->options->max_bytes / bytes;
  return places > 1 ? bytes * ((size_t)i % places) : 0;
}

void **perf_capture(struct perf_worker *worker, const struct perf_case *cases, int iterations, int times)
{
  const struct perf_backend *backend = worker->team->backend;
  int comms = worker->team->options->comms;
  void **graphs = calloc((size_t)comms, sizeof(*graphs));
  if (!graphs) perf_watch_fail(worker->team->watch, "out of memory");
  for (int i = 0; i < comms; i++) {
    perf_worker_choose(worker, i);
    perf_worker_must(worker, i, "capturing a graph", backend->capture_begin(worker->streams[i]));
  }
  for (int i = 0; i < iterations; i++) perf_enqueue(worker, cases, times, i);
  for (int i = 0; i < comms; i++) {
    perf_worker_choose(worker, i);
    graphs[i] = backend->capture_end(worker->streams[i]);
    perf_worker_must(worker, i, "making a graph", graphs[i] != NULL);
  }
  return graphs;
}

void perf_replay(struct perf_worker *worker, void **graphs)
{
  for (int i = 0; i < worker->team->options->comms; i++) {
    if (worker->team->options->comms > 1) perf_worker_choose(worker, i);
    perf_worker_must(worker, i, "launching a graph",
                     worker->team->backend->graph_launch(graphs[i], worker->streams[i]));
  }
}

void perf_graphs_drop(struct perf_worker *worker, void **graphs)
{
  for (int i = 0; graphs && i < worker->team->options->comms; i++) worker->team->backend->graph_drop(graphs[i]);
  free(graphs);
}

void perf_operate(struct perf_worker *worker, const struct perf_case *cases, int times)
{
  perf_enqueue(worker, cases, times, 0);
  perf_worker_wait(worker);
}
