/* Ends a process early and in good order: when one of its ranks fails, on a signal, when another process is gone, or
 * when a measurement takes longer than -T allows. Its own thread watches, since all others may wait in the library. */
#ifndef PERF_WATCH_H
#define PERF_WATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "control.h"
#include "report.h"

struct perf_watch {
  const char *program;
  struct perf_control *control;
  struct perf_report *report; /* NULL until there is one; set before ranks run */
  const char *json;           /* process 0: where to write a failure while there is no report; else NULL */
  bool launched;              /* by tutti-perf itself: all processes share an output, on which one says what happened */
  pthread_t thread;
  int signal_fd, stop_fd;
  _Atomic uint64_t deadline_ns; /* of the measurement; 0: none */
  _Atomic int ending;
};

/* Blocks the signals that end a run (signals.h) in the calling thread and all it starts, and starts the watch. */
void perf_watch_start(struct perf_watch *watch);
/* Bounds what follows to `seconds`; 0: no bound. */
void perf_watch_arm(struct perf_watch *watch, int seconds);
/* From then on other processes may end. */
void perf_watch_stop(struct perf_watch *watch);

/* Says the sentence here and to the other processes, writes it into the JSON file, and exits with PERF_EXIT_ERROR.
 * Any thread; the first call wins. */
_Noreturn void perf_watch_fail(struct perf_watch *watch, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* To be called before reporting that the library lost another rank: if that rank's process says soon why it ended, or a
 * signal is for all, this process ends with that instead, and the call does not return. */
void perf_watch_await_cause(struct perf_watch *watch);
/* As perf_watch_fail, for what perf_control_gather returned. A sentence that another process has printed is repeated
 * only where its output may be elsewhere. */
_Noreturn void perf_watch_lost(struct perf_watch *watch, enum perf_control_state state, const char *sentence);

#endif
