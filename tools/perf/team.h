/* All ranks of a run as they see each other: the threads of this process, and through the control channel those of the
 * others. Rank order is process, thread, communicator. */
#ifndef PERF_TEAM_H
#define PERF_TEAM_H

#include <pthread.h>
#include <stddef.h>
#include "control.h"
#include "options.h"
#include "report.h"
#include "watch.h"

struct perf_team {
  const struct perf_options *options;
  const struct perf_backend *backend;
  struct perf_control *control;
  struct perf_watch *watch;
  struct perf_report *report;
  int argc;
  char **argv;
  int ranks;      /* of the whole run */
  int host_first; /* ranks of this host that come before this process's */
  int devices;    /* that this process sees; rank k of a host uses number k modulo this */
  pthread_barrier_t barrier;
  char *mine, *all; /* exchange buffers of the process: a slot a rank */
};

#define PERF_SLOT_BYTES 256 /* largest item exchanged */

/* False: out of memory. */
bool perf_team_make(struct perf_team *team);
void perf_team_drop(struct perf_team *team);

/* Called by every thread: gives the `bytes` of each of its communicators' ranks, and gets those of all ranks. Returns
 * only when all ranks have called, so it is also the barrier. Ends the process if another failed. */
void perf_team_exchange(struct perf_team *team, int thread, const void *mine, void *all, size_t bytes);
void perf_team_barrier(struct perf_team *team, int thread);

#endif
