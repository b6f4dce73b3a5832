/* See listen.h. */
#include "report/listen.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "base/thread.h"
#include "base/timer.h"
#include "base/uds.h"
#include "report/report.h"
#include "report/signal.h"

/* A client says what it wants at once, and reads what it gets. */
#define CLIENT_MS 2000
#define PAUSE_MS 1000

static struct {
  pthread_mutex_t lock; /* of all that follows; the thread itself never takes it */
  int users;
  pid_t process; /* to which all this belongs: a forked child has the memory and not the thread */
  bool running;
  int listen_fd, wake_fd, signal_fd; /* -1: none */
  pthread_t thread;
} listener = {.lock = PTHREAD_MUTEX_INITIALIZER, .listen_fd = -1, .wake_fd = -1, .signal_fd = -1};

/* Waits for a client. False when it took too long, or the thread is to end. */
static bool wait_client(int fd, short events, tt_deadline deadline)
{
  struct pollfd polls[2] = {{.fd = fd, .events = events}, {.fd = listener.wake_fd, .events = POLLIN}};
  while (!tt_deadline_passed(deadline)) {
    int ready = poll(polls, 2, tt_deadline_poll_ms(deadline, CLIENT_MS));
    if (polls[1].revents) return false;
    if (ready > 0 && polls[0].revents) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

static bool read_word(int fd, char word[TT_REPORT_WORD_BYTES], tt_deadline deadline)
{
  size_t got = 0;
  while (got < TT_REPORT_WORD_BYTES) {
    if (!wait_client(fd, POLLIN, deadline)) return false;
    ssize_t n = recv(fd, word + got, TT_REPORT_WORD_BYTES - got, MSG_DONTWAIT);
    if (n > 0) got += (size_t)n;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
  }
  return true;
}

static void send_all(int fd, const char *text, size_t bytes, tt_deadline deadline)
{
  while (bytes > 0 && wait_client(fd, POLLOUT, deadline)) {
    ssize_t n = send(fd, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return;
    text += TT_MAX(n, 0);
    bytes -= (size_t)TT_MAX(n, 0);
  }
}

static void answer(int fd)
{
  char word[TT_REPORT_WORD_BYTES], *text;
  size_t bytes;
  tt_deadline deadline = tt_deadline_in_ms(CLIENT_MS);
  if (!read_word(fd, word, deadline)) return;
  bool json = memcmp(word, TT_REPORT_JSON, sizeof word) == 0;
  if (!json && memcmp(word, TT_REPORT_TEXT, sizeof word) != 0) return;
  if (tt_report_write(NULL, json, &text, &bytes) != ncclSuccess) return;
  send_all(fd, text, bytes, tt_deadline_in_ms(CLIENT_MS));
  free(text);
}

static void *serve(void *arg)
{
  (void)arg;
  struct pollfd polls[] = {{.fd = listener.wake_fd, .events = POLLIN},
                           {.fd = listener.listen_fd, .events = POLLIN},
                           {.fd = listener.signal_fd, .events = POLLIN}};
  for (;;) {
    if (poll(polls, TT_COUNT(polls), -1) < 0 && errno != EINTR) return NULL;
    if (polls[0].revents) return NULL;
    if (polls[2].revents) tt_report_signalled(listener.signal_fd);
    int fd = -1;
    /* Without descriptors the socket stays readable: somebody may close some meanwhile. */
    if (polls[1].revents && tt_uds_accept(listener.listen_fd, &fd, 0) != ncclSuccess) poll(polls, 1, PAUSE_MS);
    if (fd < 0) continue;
    answer(fd);
    close(fd);
  }
}

static void close_all(void)
{
  tt_report_signal_close(listener.signal_fd);
  if (listener.listen_fd >= 0) close(listener.listen_fd);
  if (listener.wake_fd >= 0) close(listener.wake_fd);
  listener.listen_fd = listener.wake_fd = listener.signal_fd = -1;
}

static ncclResult_t open_all(void)
{
  char prefix[40], name[TT_UDS_NAME_BYTES], hint[100];
  snprintf(prefix, sizeof prefix, TT_REPORT_NAME "%d-", (int)listener.process);
  if (tt_param_int(TT_PARAM_TUTTI_REPORT)) TT_TRY(tt_uds_listen_as(prefix, &listener.listen_fd, name));
  listener.signal_fd = tt_report_signal_open();
  if (listener.listen_fd < 0 && listener.signal_fd < 0) return ncclSuccess;
  listener.wake_fd = eventfd(0, EFD_CLOEXEC);
  if (listener.wake_fd < 0)
    return TT_FAIL(ncclSystemError, "no eventfd for reports: %s%s", strerror(errno),
                   tt_host_file_hint(errno, hint, sizeof(hint)));
  TT_TRY(tt_thread_start(&listener.thread, "tutti-report", serve, NULL));
  listener.running = true;
  return ncclSuccess;
}

void tt_listen_start(void)
{
  pthread_mutex_lock(&listener.lock);
  if (listener.process !=
      getpid()) { /* nothing yet, or a parent's: its descriptors stay open, since who knows whose they are */
    listener.process = getpid();
    listener.users = 0;
    listener.running = false;
    listener.listen_fd = listener.wake_fd = listener.signal_fd = -1;
  }
  if (listener.users++ == 0 && open_all() != ncclSuccess) {
    TT_INFO(TT_INIT, "Nobody can ask this process for reports (tutti-info --pid)"); /* why was said */
    close_all();
  }
  pthread_mutex_unlock(&listener.lock);
}

void tt_listen_stop(void)
{
  pthread_mutex_lock(&listener.lock);
  if (listener.process == getpid() && --listener.users == 0) {
    uint64_t one = 1;
    while (listener.running && write(listener.wake_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
    if (listener.running) pthread_join(listener.thread, NULL);
    listener.running = false;
    close_all();
  }
  pthread_mutex_unlock(&listener.lock);
}
