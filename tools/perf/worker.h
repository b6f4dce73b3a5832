/* One thread of a run: its communicators and buffers, and the measurements. */
#ifndef PERF_WORKER_H
#define PERF_WORKER_H

#include "buffers.h"
#include "team.h"

struct perf_worker {
  struct perf_team *team;
  int thread;
  ncclUniqueId id;
  ncclComm_t *comms;               /* of this thread; made by the main thread unless -p 1 */
  cudaStream_t *streams;           /* one a communicator */
  struct perf_buffer *send, *recv; /* one of each a communicator */
  void **loads;                    /* of --load, one a communicator */
  uint64_t epoch;                  /* of the next check */
  int complaints;                  /* sentences about wrong data printed so far */
  int status;                      /* thread 0 of process 0: what the report says */
};

int perf_worker_rank(const struct perf_worker *worker, int comm);
/* Its device, and the choice of it for what the thread does next. */
int perf_worker_device(const struct perf_worker *worker, int comm);
void perf_worker_choose(struct perf_worker *worker, int comm);
/* Creates communicators of ranks first..first+count-1, all in one group. */
void perf_worker_init_comms(struct perf_worker *worker, ncclComm_t *comms, int first, int count);
/* The thread's function. */
void *perf_worker_run(void *worker);

/* Measures and checks one row (measure.c). */
struct perf_sweep;
void perf_measure(struct perf_worker *worker, const struct perf_sweep *sweep, struct perf_row *row);

/* Waits for all that was put on the thread's streams. An operation that fails, or does not end in time, ends the run:
 * first the communicators are aborted, so that no kernel is left behind. */
void perf_worker_wait(struct perf_worker *worker);

/* End the run when a call of the library, or of the backend, failed. */
void perf_worker_try(struct perf_worker *worker, int rank, const char *what, ncclResult_t result);
void perf_worker_must(struct perf_worker *worker, int comm, const char *what, bool worked);

#endif
