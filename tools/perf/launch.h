/* Starts the processes of a run on this machine and watches over them. */
#ifndef PERF_LAUNCH_H
#define PERF_LAUNCH_H

#include "control.h"

/* Exit statuses of tutti-perf. */
enum {
  PERF_EXIT_OK = 0,
  PERF_EXIT_FAILED = 1, /* the run is complete, and data was wrong or the bandwidth too small */
  PERF_EXIT_USAGE = 2,
  PERF_EXIT_ERROR = 3, /* the run could not be completed */
};

/* The value of the SIGTERM that children get when one of them has failed; a signal that a user sent to all has none. */
enum { PERF_ORDER_FAILED = 1 };

/* Forks `processes` children, joined by `control`. Returns -1 in each child, which then runs its ranks. The parent
 * returns only when all children have ended, with the status to exit with: 0, the status of the first that failed, or
 * 128 and the number of the signal that ended the run. When one fails the others are ended, and a message says which it
 * was. `ranks_each` is for that message. Where they cannot all be started, none goes on, and `error` says why; else
 * that stays empty. Call before any thread is started and before the library is used. */
int perf_launch(struct perf_control *control, int processes, int ranks_each, const char *program, char *error,
                size_t size);

#endif
