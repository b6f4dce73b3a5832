/* What another process is at, by its letter in /proc: a test that needs it stopped, or dead, waits for that. */
#ifndef TT_TESTS_COMMON_PROCESS_STATE_H
#define TT_TESTS_COMMON_PROCESS_STATE_H

#include <sys/types.h>

/* Until the process is stopped by a signal. */
void await_stopped(pid_t pid);
/* Until it has died, whether or not it has been waited for. */
void await_dead(pid_t pid);

#endif
