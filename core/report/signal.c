/* See signal.h. */
#include "report/signal.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "base/text.h"
#include "report/report.h"

/* Where the handler writes; -1: nowhere. Who closes it first says so, and then waits for handlers that may have read
 * it. */
static _Atomic int target = -1;
static _Atomic int handling;

static void on_signal(int number)
{
  int saved = errno;
  uint64_t one = 1;
  (void)number;
  atomic_fetch_add(&handling, 1);
  int fd = atomic_load(&target);
  if (fd >= 0 && write(fd, &one, sizeof one) < 0) saved = errno == EAGAIN ? saved : errno; /* full: it is readable */
  atomic_fetch_sub(&handling, 1);
  errno = saved;
}

/* 0: no such signal, which was logged. */
static int wanted_signal(const char *name)
{
  int64_t number;
  const char *word = strncasecmp(name, "SIG", 3) == 0 ? name + 3 : name;
  if (strcasecmp(word, "USR1") == 0) return SIGUSR1;
  if (strcasecmp(word, "USR2") == 0) return SIGUSR2;
  if (tt_text_int(name, &number) && number >= SIGRTMIN && number <= SIGRTMAX) return (int)number;
  TT_WARN("TUTTI_REPORT_SIGNAL is %s; it must be USR1, USR2 or a number from %d to %d: no signal makes reports", name,
          SIGRTMIN, SIGRTMAX);
  return 0;
}

static bool install(int number, const char *name)
{
  struct sigaction old, action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  if (sigaction(number, NULL, &old) != 0) {
    TT_WARN("TUTTI_REPORT_SIGNAL is %s, which cannot be handled: %s; no signal makes reports", name, strerror(errno));
    return false;
  }
  if (!(old.sa_flags & SA_SIGINFO) && old.sa_handler == on_signal) return true;
  if ((old.sa_flags & SA_SIGINFO) || old.sa_handler != SIG_DFL) {
    TT_WARN("TUTTI_REPORT_SIGNAL is %s, which the application handles or ignores: that stays, and no signal makes "
            "reports; choose another one",
            name);
    return false;
  }
  if (sigaction(number, &action, NULL) == 0) return true;
  TT_WARN("TUTTI_REPORT_SIGNAL is %s, which cannot be handled: %s; no signal makes reports", name, strerror(errno));
  return false;
}

int tt_report_signal_open(void)
{
  const char *name = tt_param_string(TT_PARAM_TUTTI_REPORT_SIGNAL);
  int number = name != NULL ? wanted_signal(name) : 0;
  if (number == 0 || !install(number, name)) return -1;
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  char hint[100];
  if (fd < 0)
    TT_WARN("no eventfd for reports on a signal: %s%s", strerror(errno), tt_host_file_hint(errno, hint, sizeof(hint)));
  atomic_store(&target, fd);
  return fd;
}

void tt_report_signal_close(int fd)
{
  if (fd < 0) return;
  atomic_store(&target, -1);
  while (atomic_load(&handling) != 0) sched_yield();
  close(fd);
}

void tt_report_signalled(int fd)
{
  uint64_t count;
  char *text;
  size_t bytes;
  if (read(fd, &count, sizeof count) < 0 || tt_report_write(NULL, false, &text, &bytes) != ncclSuccess) return;
  tt_log_report(text);
  free(text);
}
