/* See launch.h. The parent takes no part in the run: it holds no socket of it and only waits for signals. */
#include "launch.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "signals.h"

enum {
  GRACE_SECONDS = 5, /* between asking processes to end and killing them */
  SIGNAL_SECONDS = 3 /* between a signal's arrival in a child and here, if it is for all */
};

struct family {
  const char *program;
  pid_t *pids; /* 0: not started, or ended and waited for */
  int processes, running, ranks_each;
  int status; /* what to exit with */
  bool ending;
  bool asked; /* ending because this process, or a child, was asked to */
  time_t kill_at;
  char alone[256]; /* what to say if only a child was asked */
};

static time_t seconds_now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec;
}

static void kill_all(const struct family *family)
{
  for (int p = 0; family->pids && p < family->processes; p++)
    if (family->pids[p] > 0) kill(family->pids[p], SIGKILL);
}

static void end_all(struct family *family, int status)
{
  if (family->ending) return;
  family->ending = true;
  family->status = status;
  family->kill_at = seconds_now() + GRACE_SECONDS;
  for (int p = 0; family->pids && p < family->processes; p++) {
    if (family->pids[p] <= 0) continue;
    if (family->asked)
      kill(family->pids[p], status - 128);
    else
      sigqueue(family->pids[p], SIGTERM, (union sigval){.sival_int = PERF_ORDER_FAILED});
  }
}

static void describe_end(const struct family *family, int p, int wait_status, char *text, size_t size)
{
  char ranks[48], what[96];
  pid_t pid = family->pids[p];
  if (family->ranks_each == 1)
    snprintf(ranks, sizeof(ranks), "rank %d", p);
  else
    snprintf(ranks, sizeof(ranks), "ranks %d-%d", p * family->ranks_each, (p + 1) * family->ranks_each - 1);
  if (WIFSIGNALED(wait_status))
    snprintf(what, sizeof(what), "was killed by signal %d (%s)", WTERMSIG(wait_status),
             strsignal(WTERMSIG(wait_status)));
  else
    snprintf(what, sizeof(what), "ended with status %d", WEXITSTATUS(wait_status));
  snprintf(text, size, "%s: %s (process %d) %s; ending the others\n", family->program, ranks, (int)pid, what);
}

static void report_end(const struct family *family, int p, int wait_status)
{
  char text[256];
  describe_end(family, p, wait_status, text, sizeof(text));
  fputs(text, stderr);
}

/* A killed process closes its sockets before it can be waited for, so another that noticed may be seen to end first;
 * a signal that did not come from here is the cause all the same. */
static bool killed_by_another(const struct family *family, int wait_status)
{
  if (!WIFSIGNALED(wait_status) || WTERMSIG(wait_status) == SIGTERM) return false;
  return WTERMSIG(wait_status) != SIGKILL || seconds_now() < family->kill_at;
}

static bool ends_runs(int number)
{
  return number == SIGINT || number == SIGTERM || number == SIGHUP;
}

/* A verdict (PERF_EXIT_FAILED) is agreed among all processes, and each ends with it by itself. A signal for all may end
 * a process before it reaches this one. */
static void note_end(struct family *family, int p, int wait_status)
{
  int status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
  if (status == PERF_EXIT_FAILED && !family->ending) {
    family->status = status;
  } else if (ends_runs(status - 128) && !family->ending) {
    describe_end(family, p, wait_status, family->alone, sizeof(family->alone));
    family->pids[p] = 0;
    family->asked = true;
    end_all(family, status);
  } else if (status && !family->ending) {
    report_end(family, p, wait_status);
    family->pids[p] = 0;
    end_all(family, status);
  } else if (family->ending && !family->asked && killed_by_another(family, wait_status)) {
    report_end(family, p, wait_status);
    family->status = status;
  }
  family->pids[p] = 0;
  family->running--;
}

static void reap(struct family *family)
{
  int wait_status;
  pid_t pid;
  while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0)
    for (int p = 0; p < family->processes; p++)
      if (family->pids[p] == pid) note_end(family, p, wait_status);
}

/* Whether one of `signals` came to this process within some time, and ends the run. */
static bool heed(struct family *family, const sigset_t *signals, time_t seconds)
{
  int number = sigtimedwait(signals, NULL, &(struct timespec){seconds, 0});
  if (!ends_runs(number)) return false;
  family->asked = true;
  family->alone[0] = 0;
  end_all(family, 128 + number);
  return true;
}

static int supervise(struct family *family, const sigset_t *signals)
{
  sigset_t ends = *signals;
  sigdelset(&ends, SIGCHLD);
  while (family->running > 0) {
    heed(family, signals, 1);
    reap(family);
    if (family->ending && seconds_now() >= family->kill_at) kill_all(family);
  }
  if (family->alone[0] && !heed(family, &ends, SIGNAL_SECONDS)) fputs(family->alone, stderr);
  return family->status;
}

/* In the child: keeps its own ends of the sockets. */
static void child_setup(struct perf_control *control, int process, int processes, int (*pairs)[2], pid_t parent)
{
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  int *fds = malloc(sizeof(int) * (size_t)(process == 0 ? processes : 1));
  if (!fds) _exit(1);
  if (process == 0) fds[0] = -1;
  for (int p = 1; p < processes; p++) {
    if (process == 0)
      fds[p] = pairs[p][0];
    else
      close(pairs[p][0]);
    if (process == p)
      fds[0] = pairs[p][1];
    else
      close(pairs[p][1]);
  }
  perf_control_open(control, process, processes, fds);
}

int perf_launch(struct perf_control *control, int processes, int ranks_each, const char *program, char *error,
                size_t size)
{
  struct family family = {.program = program, .processes = processes, .ranks_each = ranks_each};
  int(*pairs)[2] = calloc((size_t)processes, sizeof(*pairs));
  family.pids = calloc((size_t)processes, sizeof(*family.pids));
  pid_t parent = getpid();
  sigset_t signals = perf_signals();
  int made = 1, cause = 0;
  if (!pairs || !family.pids) cause = ENOMEM;
  for (; !cause && made < processes; made++)
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pairs[made])) {
      cause = errno;
      break;
    }
  sigaddset(&signals, SIGCHLD);
  sigprocmask(SIG_BLOCK, &signals, NULL);
  for (int p = 0; !cause && p < processes; p++) {
    pid_t pid = fork();
    if (pid == 0) {
      child_setup(control, p, processes, pairs, parent);
      free(pairs);
      free(family.pids);
      return -1;
    }
    if (pid < 0)
      cause = errno;
    else
      family.pids[p] = pid, family.running++;
  }
  for (int p = 1; p < made; p++) close(pairs[p][0]), close(pairs[p][1]);
  free(pairs);
  if (cause) {
    snprintf(error, size, "cannot start %d processes: %s", processes, strerror(cause));
    end_all(&family, PERF_EXIT_ERROR);
  }
  int status = supervise(&family, &signals);
  free(family.pids);
  return status;
}
