/* Looks, while a command runs, at which NCCL it and its descendants have mapped. */
#ifndef RUN_FOLLOW_H
#define RUN_FOLLOW_H

#include <stdbool.h>
#include <sys/types.h>

/* Waits for `child`, started with the drop-in `ours` preloaded, and reports once a process that has another NCCL, or
 * not the drop-in. Passes on what signals others send it. Returns the status to exit with: the child's, or 128 + its
 * signal. The signals that it takes must be blocked (run_follow_block) before the child is forked. */
int run_follow(pid_t child, const char *ours, const char *command);

void run_follow_block(void);
/* In the child, whose signals are as they were found, but for a SIGTERM when `parent`, which is this program, ends
 * before it. False if that has happened. */
bool run_follow_become(pid_t parent);

#endif
