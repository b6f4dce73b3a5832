/* See pairs.h: a process for each setting, one after another. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "launch.h"
#include "launcher.h"
#include "pairs.h"

static struct perf_pairs *make(int ranks)
{
  size_t values = (size_t)PERF_SETTINGS * PERF_PAIR_MEASURES * (size_t)ranks * (size_t)ranks;
  size_t bytes = sizeof(struct perf_pairs) + values * sizeof(double);
  struct perf_pairs *pairs = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pairs == MAP_FAILED) return NULL;
  pairs->ranks = ranks;
  pairs->bytes = bytes;
  return pairs;
}

/* The status of the setting's process. */
static int run_setting(const struct perf_options *options, struct perf_pairs *pairs, int setting, int argc, char **argv,
                       int (*go_on)(struct perf_options *options, int argc, char **argv))
{
  pid_t parent = getpid();
  int status = 0;
  pairs->setting = setting;
  fflush(NULL);
  pid_t pid = fork();
  if (pid < 0) {
    fprintf(stderr, "%s: cannot start a process: %s\n", options->program, strerror(errno));
    return PERF_EXIT_ERROR;
  }
  if (pid == 0) {
    struct perf_options mine = *options;
    const struct perf_setting *s = perf_setting_at(setting);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(PERF_EXIT_ERROR);
    for (int v = 0; v < 2 && s->variables[v].name; v++) setenv(s->variables[v].name, s->variables[v].value, 1);
    mine.pairs = pairs;
    mine.json = NULL; /* all settings have one file */
    exit(go_on(&mine, argc, argv));
  }
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static const char *environment(const char *name)
{
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

int perf_pairs_run(const struct perf_options *o, int argc, char **argv,
                   int (*go_on)(struct perf_options *options, int argc, char **argv))
{
  struct perf_launcher launcher;
  char error[1024] = "";
  int statuses[PERF_SETTINGS];
  if (!perf_launcher_detect(&launcher, environment, error, sizeof(error)) || launcher.size > 1) {
    fprintf(stderr, "%s: pairs: starts its own processes (-n) or threads (-t), and not under %s\n", o->program,
            error[0] ? "a launcher" : launcher.name);
    return PERF_EXIT_USAGE;
  }
  struct perf_pairs *pairs = make((o->processes ? o->processes : 1) * o->threads);
  if (!pairs) {
    fprintf(stderr, "%s: out of memory\n", o->program);
    return PERF_EXIT_ERROR;
  }
  for (int s = 0; s < PERF_SETTINGS; s++) {
    statuses[s] = o->settings & (1u << s) ? run_setting(o, pairs, s, argc, argv, go_on) : -1;
    /* Ctrl-C is for all. */
    if (statuses[s] >= 128) return statuses[s];
  }
  int worst = perf_pairs_worst(pairs, o, statuses);
  perf_pairs_print(pairs, o, statuses, stdout);
  bool saved = !o->json || perf_pairs_save(pairs, o, statuses, argc, argv, error, sizeof(error));
  if (!saved) fprintf(stderr, "%s: %s\n", o->program, error);
  munmap(pairs, pairs->bytes);
  return saved && !fflush(stdout) ? worst : PERF_EXIT_ERROR;
}
