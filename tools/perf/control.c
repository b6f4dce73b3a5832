/* See control.h. */
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DATA = 0x44415441, FAILURE = 0x4641494c };
enum { READ_MS = 10, READ_TRIES = 500 }; /* for the rest of a frame that was sent at once */

struct frame {
  uint32_t kind, bytes;
};

void perf_control_open(struct perf_control *control, int process, int processes, int *fds)
{
  *control = (struct perf_control){process, processes, fds, 0};
}

static int peer_count(const struct perf_control *control)
{
  return !control->fds ? 0 : control->process == 0 ? control->processes : 1;
}

void perf_control_close(struct perf_control *control)
{
  for (int i = 0; i < peer_count(control); i++)
    if (control->fds[i] >= 0) close(control->fds[i]);
  free(control->fds);
  control->fds = NULL;
}

static bool put(int fd, const void *data, size_t bytes)
{
  const char *from = data;
  while (bytes) {
    ssize_t n = send(fd, from, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from += n, bytes -= (size_t)n;
  }
  return true;
}

static bool get(int fd, void *data, size_t bytes)
{
  char *to = data;
  while (bytes) {
    ssize_t n = recv(fd, to, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n, bytes -= (size_t)n;
  }
  return true;
}

static bool put_frame(int fd, uint32_t kind, const void *data, size_t bytes)
{
  struct frame frame = {kind, (uint32_t)bytes};
  return put(fd, &frame, sizeof(frame)) && put(fd, data, bytes);
}

static int process_behind(const struct perf_control *control, int i)
{
  return control->process == 0 ? i : 0;
}

static enum perf_control_state gone(const struct perf_control *control, int i, char *error, size_t size)
{
  snprintf(error, size, "process %d ended before the run was over", process_behind(control, i));
  return PERF_CONTROL_GONE;
}

/* Looks at what has arrived, without taking it: a failure may lie behind a data frame. */
static bool peek_failure(int fd, char *error, size_t size)
{
  static const size_t most = 16384;
  char *queue = malloc(most);
  if (!queue) return false;
  ssize_t got = recv(fd, queue, most, MSG_PEEK | MSG_DONTWAIT);
  bool found = false;
  for (size_t at = 0; got > 0 && !found && at + sizeof(struct frame) <= (size_t)got;) {
    struct frame frame;
    memcpy(&frame, queue + at, sizeof(frame));
    at += sizeof(frame);
    if (frame.kind != DATA && frame.kind != FAILURE) break; /* the queue begins inside a frame that is being read */
    if (frame.kind == FAILURE && frame.bytes < size && at + frame.bytes <= (size_t)got) {
      memcpy(error, queue + at, frame.bytes);
      error[frame.bytes] = 0;
      found = true;
    }
    at += frame.bytes;
  }
  free(queue);
  return found;
}

/* The same where nothing more comes. While the other thread is inside of a frame, nobody can see what is behind it. */
static bool find_failure(const struct perf_control *control, int fd, char *error, size_t size)
{
  for (int tries = 0; tries < READ_TRIES; tries++) {
    unsigned before = atomic_load(&control->reads);
    if (peek_failure(fd, error, size)) return true;
    if (before % 2 == 0 && atomic_load(&control->reads) == before) break;
    poll(NULL, 0, READ_MS);
  }
  return false;
}

/* A failure frame stays in the queue, for the thread that watches for it. False also at the end of the stream. */
static bool failure_is_next(int fd, char *error, size_t size)
{
  struct frame frame;
  ssize_t n;
  do n = recv(fd, &frame, sizeof(frame), MSG_PEEK | MSG_WAITALL);
  while (n < 0 && errno == EINTR);
  if (n != sizeof(frame) || frame.kind != FAILURE) return false;
  bool whole = false;
  for (int tries = 0; tries < 50 && !(whole = peek_failure(fd, error, size)); tries++) poll(NULL, 0, 10);
  return whole;
}

/* Receives a data frame of exactly `bytes`; a failure frame, or the end, becomes the sentence in `error`. */
static enum perf_control_state get_frame(struct perf_control *control, int i, void *data, size_t bytes, char *error,
                                         size_t size)
{
  struct frame frame;
  int fd = control->fds[i];
  if (failure_is_next(fd, error, size)) return PERF_CONTROL_TOLD;
  atomic_fetch_add(&control->reads, 1);
  bool good = get(fd, &frame, sizeof(frame)) && frame.kind == DATA && frame.bytes == bytes && get(fd, data, bytes);
  atomic_fetch_add(&control->reads, 1);
  return good ? PERF_CONTROL_OK : gone(control, i, error, size);
}

enum perf_control_state perf_control_gather(struct perf_control *control, const void *mine, void *all, size_t bytes,
                                            char *error, size_t size)
{
  char *out = all;
  size_t total = bytes * (size_t)control->processes;
  memcpy(out + (size_t)control->process * bytes, mine, bytes);
  if (control->processes == 1) return PERF_CONTROL_OK;
  if (control->process > 0) {
    if (put_frame(control->fds[0], DATA, mine, bytes)) return get_frame(control, 0, all, total, error, size);
    return peek_failure(control->fds[0], error, size) ? PERF_CONTROL_TOLD : gone(control, 0, error, size);
  }
  for (int p = 1; p < control->processes; p++) {
    enum perf_control_state state = get_frame(control, p, out + (size_t)p * bytes, bytes, error, size);
    if (state != PERF_CONTROL_OK) return state;
  }
  for (int p = 1; p < control->processes; p++)
    if (!put_frame(control->fds[p], DATA, all, total)) return gone(control, p, error, size);
  return PERF_CONTROL_OK;
}

void perf_control_fail(struct perf_control *control, const char *sentence)
{
  size_t bytes = strlen(sentence);
  char message[1024 + sizeof(struct frame)];
  struct frame frame = {FAILURE, (uint32_t)(bytes < 1023 ? bytes : 1023)};
  memcpy(message, &frame, sizeof(frame));
  memcpy(message + sizeof(frame), sentence, frame.bytes);
  for (int i = 0; i < peer_count(control); i++)
    if (control->fds[i] >= 0)
      (void)send(control->fds[i], message, sizeof(frame) + frame.bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

enum perf_control_state perf_control_lost(struct perf_control *control, char *error, size_t size)
{
  enum perf_control_state state = PERF_CONTROL_OK;
  for (int i = 0; i < peer_count(control); i++) {
    if (control->fds[i] < 0) continue;
    struct pollfd ready = {control->fds[i], POLLRDHUP, 0};
    if (peek_failure(control->fds[i], error, size)) return PERF_CONTROL_TOLD;
    if (state != PERF_CONTROL_OK || poll(&ready, 1, 0) <= 0 || !ready.revents) continue;
    if (find_failure(control, control->fds[i], error, size)) return PERF_CONTROL_TOLD; /* came in between */
    state = gone(control, i, error, size);
  }
  return state;
}
