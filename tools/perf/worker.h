/* One thread of a run: its communicators and buffers, and the measurements. */
#ifndef PERF_WORKER_H
#define PERF_WORKER_H

#include "buffers.h"
#include "team.h"

struct perf_worker {
  struct perf_team *team;
  int thread;
  const struct perf_memory *memory;
  ncclUniqueId id;
  ncclComm_t *comms;               /* of this thread; made by the main thread unless -p 1 */
  struct perf_buffer *send, *recv; /* one of each a communicator */
  uint64_t epoch;                  /* of the next check */
  int complaints;                  /* sentences about wrong data printed so far */
  int status;                      /* thread 0 of process 0: what the report says */
};

int perf_worker_rank(const struct perf_worker *worker, int comm);
/* Creates communicators of ranks first..first+count-1, all in one group. */
void perf_worker_init_comms(struct perf_worker *worker, ncclComm_t *comms, int first, int count);
/* The thread's function. */
void *perf_worker_run(void *worker);

/* Measures and checks one row (measure.c). */
struct perf_sweep;
void perf_measure(struct perf_worker *worker, const struct perf_sweep *sweep, struct perf_row *row);

/* Ends the run when a call of the library failed. */
void perf_worker_try(struct perf_worker *worker, int rank, const char *what, ncclResult_t result);

#endif
