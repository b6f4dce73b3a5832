/* The signals that end a run. */
#ifndef PERF_SIGNALS_H
#define PERF_SIGNALS_H

#include <signal.h>

/* SIGINT, SIGTERM and SIGHUP, but none that this process was started to ignore, as nohup has it ignore SIGHUP: a signal
 * that is blocked comes although it is ignored. */
sigset_t perf_signals(void);

#endif
