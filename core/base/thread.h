/* Helper threads: a sane stack under any `ulimit -s`, all signals blocked (but those of the thread's own faults), a
 * name in /proc. */
#ifndef TT_BASE_THREAD_H
#define TT_BASE_THREAD_H

#include <pthread.h>
#include "nccl.h"

/* Starts a joinable thread. `name` has at most 15 characters. */
ncclResult_t tt_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);

#endif
