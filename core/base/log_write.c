/* Writes log lines; SIGPIPE and SIGXFSZ, which a write may raise in this thread, are taken back before they act. */
#include "base/log_write.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

/* How long a non-blocking log may be full before the rest of the line is dropped. */
#define FULL_MS 100

static int write_all(int fd, const char *line, size_t bytes)
{
  while (bytes > 0) {
    ssize_t put = write(fd, line, bytes);
    if (put > 0) {
      line += put;
      bytes -= (size_t)put;
    } else if (put < 0 && errno == EAGAIN) {
      struct pollfd room = {.fd = fd, .events = POLLOUT};
      if (poll(&room, 1, FULL_MS) <= 0) return EAGAIN;
    } else if (put == 0 || errno != EINTR) {
      return put < 0 ? errno : EIO;
    }
  }
  return 0;
}

void tt_log_write(int fd, const char *line, size_t bytes)
{
  sigset_t fatal, before, pending;
  sigemptyset(&fatal);
  sigaddset(&fatal, SIGPIPE);
  sigaddset(&fatal, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &fatal, &before);
  sigpending(&pending);
  int error = write_all(fd, line, bytes);
  if (error == EPIPE || error == EFBIG) {
    /* Only what this write raised: a signal that was pending before is the application's. */
    int raised = error == EPIPE ? SIGPIPE : SIGXFSZ;
    if (!sigismember(&pending, raised)) {
      sigset_t one;
      sigemptyset(&one);
      sigaddset(&one, raised);
      sigtimedwait(&one, NULL, &(struct timespec){0});
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
