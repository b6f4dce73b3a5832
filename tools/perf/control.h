/* The control channel between the processes of a run: a star of stream sockets at process 0. It carries the unique id,
 * barriers, times, error counts and the text of failures, so that none of them depends on the library under test.
 *
 * Messages are framed, since a failing process sends its sentence at any moment. One thread of a process uses the
 * channel, except for perf_control_fail and perf_control_lost, which any thread may call. */
#ifndef PERF_CONTROL_H
#define PERF_CONTROL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct perf_control {
  int process, processes;
  int *fds;               /* process 0: fds[p] leads to process p, fds[0] is -1; others: fds[0] leads to process 0 */
  _Atomic unsigned reads; /* of frames, begun and ended: odd while one is being read */
};

/* Takes over `fds` (malloced as above; NULL for a single process). */
void perf_control_open(struct perf_control *control, int process, int processes, int *fds);
void perf_control_close(struct perf_control *control);

enum perf_control_state {
  PERF_CONTROL_OK,
  PERF_CONTROL_TOLD, /* another process failed and has said so; `error` is its sentence */
  PERF_CONTROL_GONE, /* another process ended without a word; `error` says which */
};

/* Every process gives `bytes` and receives all processes' in order. */
enum perf_control_state perf_control_gather(struct perf_control *control, const void *mine, void *all, size_t bytes,
                                            char *error, size_t size);

/* Tells process 0 (or, from process 0, all) why this process ends. Best effort. */
void perf_control_fail(struct perf_control *control, const char *sentence);

/* Has another process failed or ended? Waits only while the last words of one that ended are being read. */
enum perf_control_state perf_control_lost(struct perf_control *control, char *error, size_t size);

#endif
