/* See watch.h. */
#include "watch.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>
#include "launch.h"
#include "report_json.h"
#include "signals.h"

static uint64_t now_ns(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Leaves without running exit handlers: other threads may be in the library, holding its locks. */
enum { SILENT = 0, PRINT = 1, TELL = 2 };

_Noreturn static void leave(struct perf_watch *watch, int status, const char *word, const char *sentence, int how)
{
  char error[256];
  if (atomic_exchange(&watch->ending, 1))
    for (;;) pause();
  if (watch->report)
    perf_report_abort(watch->report, word, sentence);
  else if (watch->json && !perf_report_save_failure(watch->json, watch->program, sentence, error, sizeof(error)))
    fprintf(stderr, "%s: %s\n", watch->program, error);
  if (how & PRINT) fprintf(stderr, "%s: %s\n", watch->program, sentence);
  if (how & TELL) perf_control_fail(watch->control, sentence);
  fflush(stdout);
  _exit(status);
}

void perf_watch_fail(struct perf_watch *watch, const char *format, ...)
{
  char sentence[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof(sentence), format, args);
  va_end(args);
  leave(watch, PERF_EXIT_ERROR, "error", sentence, PRINT | TELL);
}

/* How long to wait once another process is gone: for a signal, since one that is for all reaches one process after the
 * other, and the first may be gone before it is here; for its last words, where only the library has lost it. Who
 * started this process as one of several learns of each end and then always sends a signal: that is awaited longer than
 * a busy machine takes. */
enum { SIGNAL_MS = 100, CAUSE_MS = 500, ORDER_MS = 5000 };

void perf_watch_await_cause(struct perf_watch *watch)
{
  char sentence[1024];
  int most = watch->launched ? ORDER_MS : CAUSE_MS;
  perf_watch_arm(watch, 0); /* -T is not the cause */
  for (int waited = 0; waited < most; waited += 20) {
    if (perf_control_lost(watch->control, sentence, sizeof(sentence)) == PERF_CONTROL_TOLD)
      perf_watch_lost(watch, PERF_CONTROL_TOLD, sentence);
    poll(NULL, 0, 20);
  }
}

_Noreturn static void end_interrupted(struct perf_watch *watch, int number)
{
  char sentence[128];
  snprintf(sentence, sizeof(sentence), "ended by signal %d (%s)", number, strsignal(number));
  leave(watch, 128 + number, number == SIGINT ? "interrupted" : "error", sentence, SILENT);
}

/* Whether a user wants the end of all, and no failure of another process: a launcher may end all for either. */
static bool is_users(const struct perf_watch *watch, const struct signalfd_siginfo *info)
{
  if (info->ssi_signo == SIGINT) return true;
  return watch->launched && !(info->ssi_code == SI_QUEUE && info->ssi_int == PERF_ORDER_FAILED);
}

/* A signal: Ctrl-C, or the end ordered by whoever started this process, perhaps because another process failed. Another
 * thread may take it, and ends the process then. */
static void on_signal(struct perf_watch *watch)
{
  char sentence[1024];
  struct signalfd_siginfo info;
  if (read(watch->signal_fd, &info, sizeof(info)) != sizeof(info)) return;
  enum perf_control_state state = perf_control_lost(watch->control, sentence, sizeof(sentence));
  if (state == PERF_CONTROL_TOLD || (state == PERF_CONTROL_GONE && !is_users(watch, &info)))
    leave(watch, PERF_EXIT_ERROR, "error", sentence, SILENT);
  end_interrupted(watch, (int)info.ssi_signo);
}

static void await_signal(struct perf_watch *watch)
{
  struct pollfd signal = {watch->signal_fd, POLLIN, 0};
  if (watch->signal_fd > 0 && poll(&signal, 1, watch->launched ? ORDER_MS : SIGNAL_MS) > 0) on_signal(watch);
}

void perf_watch_lost(struct perf_watch *watch, enum perf_control_state state, const char *sentence)
{
  char told[1200];
  if (state == PERF_CONTROL_GONE) await_signal(watch);
  if (state == PERF_CONTROL_GONE || watch->launched)
    leave(watch, PERF_EXIT_ERROR, "error", sentence, state == PERF_CONTROL_GONE ? PRINT | TELL : TELL);
  /* The sentence goes on as it was: whoever is told adds its own process. */
  snprintf(told, sizeof(told), "process %d ends too: %s", watch->control->process, sentence);
  perf_control_fail(watch->control, sentence);
  leave(watch, PERF_EXIT_ERROR, "error", told, PRINT);
}

static int poll_set(struct perf_watch *watch, struct pollfd *set)
{
  int n = 0, peers = !watch->control->fds ? 0 : watch->control->process == 0 ? watch->control->processes : 1;
  set[n++] = (struct pollfd){watch->signal_fd, POLLIN, 0};
  set[n++] = (struct pollfd){watch->stop_fd, POLLIN, 0};
  for (int i = 0; i < peers; i++)
    if (watch->control->fds[i] >= 0) set[n++] = (struct pollfd){watch->control->fds[i], POLLRDHUP, 0};
  return n;
}

static void *watching(void *arg)
{
  struct perf_watch *watch = arg;
  char sentence[1024];
  struct pollfd *set = calloc((size_t)watch->control->processes + 2, sizeof(*set));
  if (!set) perf_watch_fail(watch, "out of memory");
  int n = poll_set(watch, set);
  for (;;) {
    int ready = poll(set, (nfds_t)n, 500);
    uint64_t deadline = atomic_load(&watch->deadline_ns);
    if (ready > 0 && set[1].revents) break;
    if (ready > 0 && set[0].revents) on_signal(watch);
    if (ready > 0) {
      enum perf_control_state state = perf_control_lost(watch->control, sentence, sizeof(sentence));
      if (state != PERF_CONTROL_OK) perf_watch_lost(watch, state, sentence);
    }
    if (deadline && now_ns() > deadline)
      perf_watch_fail(watch, "process %d: a measurement did not end within the time given by -T",
                      watch->control->process);
  }
  free(set);
  return NULL;
}

void perf_watch_start(struct perf_watch *watch)
{
  sigset_t signals = perf_signals();
  pthread_sigmask(SIG_BLOCK, &signals, NULL);
  watch->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  watch->stop_fd = eventfd(0, EFD_CLOEXEC);
  if (watch->signal_fd < 0 || watch->stop_fd < 0 || pthread_create(&watch->thread, NULL, watching, watch))
    perf_watch_fail(watch, "process %d cannot start its watching thread", watch->control->process);
}

void perf_watch_arm(struct perf_watch *watch, int seconds)
{
  atomic_store(&watch->deadline_ns, seconds ? now_ns() + (uint64_t)seconds * 1000000000u : 0);
}

void perf_watch_stop(struct perf_watch *watch)
{
  uint64_t one = 1;
  if (write(watch->stop_fd, &one, sizeof(one)) != sizeof(one))
    perf_watch_fail(watch, "cannot stop the watching thread");
  pthread_join(watch->thread, NULL);
  close(watch->stop_fd);
  close(watch->signal_fd);
}
