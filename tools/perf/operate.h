/* Putting operations on a thread's streams, at once or by way of graphs. Cases are one a communicator of the thread. */
#ifndef PERF_OPERATE_H
#define PERF_OPERATE_H

#include "verify.h"
#include "worker.h"

/* Puts one iteration on the streams: `times` operations of each of the thread's communicators, in one group.
 * `iteration` says where in the buffers (perf_shift), and with --dependent, which of the two is sent, and by which
 * root: 0 is the case as it is written. */
void perf_enqueue(struct perf_worker *worker, const struct perf_case *cases, int times, int iteration);
/* Where iteration `i` works, in bytes from the buffers' start. With --rotate in a place of its own among so many. Else,
 * as in nccl-tests, a GPU's iterations move through the buffers, so that small data is not found in its cache; the
 * host's stay, since a caller's data would be in the cache there. */
size_t perf_shift(const struct perf_worker *worker, const struct perf_case *c, int i);
/* A graph for each communicator, of `iterations` iterations with `times` operations each. */
void **perf_capture(struct perf_worker *worker, const struct perf_case *cases, int iterations, int times);
void perf_replay(struct perf_worker *worker, void **graphs);
void perf_graphs_drop(struct perf_worker *worker, void **graphs);
/* Runs one iteration to its end. */
void perf_operate(struct perf_worker *worker, const struct perf_case *cases, int times);

#endif
