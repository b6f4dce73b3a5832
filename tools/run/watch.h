/* Looks, while a command runs, at which NCCL it and its descendants have mapped. */
#ifndef RUN_WATCH_H
#define RUN_WATCH_H

#include <sys/types.h>

/* Waits for `child`, started with the drop-in `ours` preloaded, and reports once a process that has another NCCL, or
 * not the drop-in. Passes SIGTERM and SIGHUP on. Returns the status to exit with: the child's, or 128 + its signal. The
 * signals that it takes must be blocked (run_watch_block) before the child is forked. */
int run_watch(pid_t child, const char *ours, const char *command);

void run_watch_block(void);
void run_watch_unblock(void); /* in the child */

#endif
