/* See follow.h.
 *
 * Why the maps, and not a word from the drop-in itself: that it was loaded proves little, since a program may map a
 * second NCCL later, by its path, and call that one. The maps show both, in every process that the command starts, at
 * any time, and the library needs nothing for it. What they cannot show is an NCCL that is linked into the program.
 *
 * A second NCCL that is only mapped is no news beside the drop-in: PyTorch opens its own by its path when it is
 * imported, and yet all its calls are bound to what was preloaded. It is news once it has communicators, which is to be
 * seen by its threads (versions older than those of the NCCL 2.2x series may not name them). */
#include "follow.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "maps.h"

/* First looks come fast, since programs may be short; then a look costs little beside what runs a long time. */
enum { FIRST_LOOK_MS = 5, LAST_LOOK_MS = 2000, MOST_REPORTS = 8, SETTLED_MS = 300 };

struct family {
  pid_t root;
  const char *ours, *command;
  pid_t reported[MOST_REPORTS];
  int reports;
  long elapsed_ms;
};

/* What others may send to the command by way of this program, and the end of the command. */
static sigset_t signals(void)
{
  static const int named[] = {SIGCHLD, SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT};
  sigset_t set;
  sigemptyset(&set);
  for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) sigaddset(&set, named[i]);
  for (int number = SIGRTMIN; number <= SIGRTMAX; number++) sigaddset(&set, number);
  return set;
}

/* Ctrl-C reaches the command by itself, as it is in the same process group. */
static bool is_from_terminal(const siginfo_t *info)
{
  return (info->si_signo == SIGINT || info->si_signo == SIGQUIT) && info->si_code == SI_KERNEL;
}

/* As this program found it. */
static struct {
  sigset_t blocked;
  void (*child_ends)(int);
} before;

/* A child that ends while SIGCHLD is ignored, as some that start this program leave it, is nobody's to wait for. */
void run_follow_block(void)
{
  sigset_t set = signals();
  before.child_ends = signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_BLOCK, &set, &before.blocked);
}

/* SIGTERM and not SIGKILL: a command that starts others, as mpirun does, can end them. The parent may have gone before
 * it could be asked for. */
bool run_follow_become(pid_t parent)
{
  signal(SIGCHLD, before.child_ends);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigprocmask(SIG_SETMASK, &before.blocked, NULL);
  return getppid() == parent;
}

static pid_t parent_of(pid_t pid)
{
  char path[64], line[512];
  int parent = 0;
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  if (fgets(line, sizeof(line), file)) {
    char *end = strrchr(line, ')'); /* the name before it may hold anything */
    if (!end || sscanf(end + 1, " %*c %d", &parent) != 1) parent = 0;
  }
  fclose(file);
  return parent;
}

static bool descends(pid_t pid, pid_t root)
{
  for (int depth = 0; pid > 1 && depth < 64; depth++, pid = parent_of(pid))
    if (pid == root) return true;
  return false;
}

static void look_at(struct family *family, pid_t pid)
{
  struct run_maps maps;
  for (int i = 0; i < family->reports; i++)
    if (family->reported[i] == pid) return;
  if (family->reports == MOST_REPORTS) return;
  run_maps_look(pid, family->ours, &maps);
  if (!maps.readable || !maps.loaded) return;
  if (maps.works)
    fprintf(stderr,
            "tutti-run: process %d of %s calls another NCCL: %s has communicators there, beside Tutti (%s). Find who "
            "loads it by its path (LD_DEBUG=files), and remove it, or name Tutti's path there\n",
            (int)pid, family->command, maps.other, family->ours);
  else if (maps.other[0] && !maps.ours)
    fprintf(stderr,
            "tutti-run: process %d of %s has another NCCL mapped: %s, and not Tutti (%s): LD_PRELOAD was removed or "
            "ignored\n",
            (int)pid, family->command, maps.other, family->ours);
  else if (!maps.ours && pid == family->root && family->elapsed_ms >= SETTLED_MS)
    fprintf(stderr, "tutti-run: process %d of %s runs without Tutti's drop-in: LD_PRELOAD was removed or ignored\n",
            (int)pid, family->command);
  else
    return;
  family->reported[family->reports++] = pid;
}

static void look_at_all(struct family *family)
{
  DIR *processes = opendir("/proc");
  struct dirent *entry;
  if (!processes) return;
  while ((entry = readdir(processes))) {
    pid_t pid = (pid_t)atoi(entry->d_name);
    if (pid > 1 && descends(pid, family->root)) look_at(family, pid);
  }
  closedir(processes);
}

int run_follow(pid_t child, const char *ours, const char *command)
{
  struct family family = {.root = child, .ours = ours, .command = command};
  sigset_t set = signals();
  for (long pause = FIRST_LOOK_MS;;) {
    struct timespec limit = {pause / 1000, pause % 1000 * 1000000};
    siginfo_t info;
    int status, number = sigtimedwait(&set, &info, &limit);
    if (number > 0 && number != SIGCHLD && !is_from_terminal(&info)) kill(child, number);
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (number > 0) continue; /* a look is due at its own time */
    family.elapsed_ms += pause;
    look_at_all(&family);
    pause = pause * 2 < LAST_LOOK_MS ? pause * 2 : LAST_LOOK_MS;
  }
}
