/* netabi: tests a net plugin against the rules of tutti/net.h.
 *
 *     netabi PLUGIN.so [--abi N] [--only CLAUSE] [--deadline SECONDS] [--fuse] [--env1 NAME=VALUE]... [--list]
 *
 * Without --abi it takes the newest version that the plugin exports. --fuse uses the first two devices as one.
 *
 * One line a clause: PASS, FAIL or SKIP, its name, and the reason. Exit status 1 if a clause failed, 2 for wrong use.
 * Each clause runs in two new processes, so that whatever it breaks ends with it. */
#include "netabi.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "left.h"

const char *plugin_path;
bool fuse;
static int deadline_s = 20;
static char *side1_env[16]; /* set on side 1 only: the two sides need not be configured alike */
static int side1_envs;

struct outcome {
  int status;    /* of wait() */
  uint64_t time; /* of its report; 0 if it died without one */
  char reason[600];
};

static _Noreturn void run_side(const struct clause *clause, int abi, int index, int peer, int reports)
{
  side_begin(index, peer, reports, deadline_s);
  for (int i = 0; i < side1_envs && index == 1; i++) putenv(side1_env[i]);
  load_plugin(abi);
  if (!clause->bare) init_plugin();
  clause->run();
  if (!clause->bare) final_plugin();
  exit(0); /* runs leak checkers; _exit is for failures */
}

static void read_outcome(int fd, struct outcome *outcome)
{
  char text[sizeof outcome->time + sizeof outcome->reason] = "";
  size_t got = 0;
  ssize_t n;
  while (got + 1 < sizeof text && (n = read(fd, text + got, sizeof text - 1 - got)) > 0) got += (size_t)n;
  if (got < sizeof outcome->time) return;
  memcpy(&outcome->time, text, sizeof outcome->time);
  memcpy(outcome->reason, text + sizeof outcome->time, got - sizeof outcome->time);
}

/* Waits for both; the watchdog inside ends them, and this ends those in which it does not work. */
static void wait_both(const pid_t pids[2], struct outcome outcomes[2])
{
  time_t end = time(NULL) + deadline_s + 5;
  bool gone[2] = {false, false};
  while (!gone[0] || !gone[1]) {
    struct timespec nap = {.tv_nsec = 2000000};
    for (int i = 0; i < 2; i++)
      if (!gone[i] && waitpid(pids[i], &outcomes[i].status, WNOHANG) == pids[i]) gone[i] = true;
    for (int i = 0; i < 2; i++)
      if (!gone[i] && time(NULL) > end) kill(pids[i], SIGKILL);
    nanosleep(&nap, NULL);
  }
}

enum verdict { PASS, FAIL, SKIP };

/* If both sides failed, the first is the cause, unless both ran out of time and only the other knows in what. */
static bool tells_more(const struct outcome *new, const struct outcome *old)
{
  bool blocked = strncmp(new->reason, "blocked", 7) == 0, late = strncmp(old->reason, "did not end", 11) == 0;
  return (blocked && late) || new->time < old->time;
}

static enum verdict judge(const struct clause *clause, struct outcome outcomes[2], char *text, size_t size)
{
  bool dies = strncmp(clause->name, "killed", 6) == 0;
  int bad = -1;
  for (int i = 0; i < 2; i++) {
    int status = outcomes[i].status;
    bool ended = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
    if (ended || (dies && i == 1 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) continue;
    if (WIFSIGNALED(status))
      snprintf(outcomes[i].reason, sizeof outcomes[i].reason, "died of signal %d (%s)", WTERMSIG(status),
               strsignal(WTERMSIG(status)));
    else if (!outcomes[i].reason[0])
      snprintf(outcomes[i].reason, sizeof outcomes[i].reason, "ended with status %d", WEXITSTATUS(status));
    if (bad < 0 || tells_more(&outcomes[i], &outcomes[bad])) bad = i;
  }
  if (bad >= 0) {
    snprintf(text, size, "side %d: %s", bad, outcomes[bad].reason);
    return FAIL;
  }
  for (int i = 0; i < 2; i++)
    if (WIFEXITED(outcomes[i].status) && WEXITSTATUS(outcomes[i].status) == 77) {
      snprintf(text, size, "%s", outcomes[i].reason);
      return SKIP;
    }
  snprintf(text, size, "%s", clause->rule);
  return PASS;
}

static enum verdict run_clause(const struct clause *clause, int abi)
{
  static const char *const words[] = {"PASS", "FAIL", "SKIP"};
  int between[2], reports[2][2];
  pid_t pids[2];
  struct outcome outcomes[2];
  memset(outcomes, 0, sizeof outcomes);
  fflush(stdout);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, between) || pipe(reports[0]) || pipe(reports[1])) {
    perror("netabi: cannot start a clause");
    exit(2);
  }
  for (int i = 0; i < 2; i++) {
    pids[i] = fork();
    if (pids[i] < 0) {
      perror("netabi: fork");
      exit(2);
    }
    if (pids[i] == 0) {
      close(between[!i]);
      for (int k = 0; k < 2; k++) close(reports[k][0]);
      close(reports[!i][1]);
      run_side(clause, abi, i, between[i], reports[i][1]);
    }
  }
  for (int i = 0; i < 2; i++) {
    close(between[i]);
    close(reports[i][1]);
  }
  wait_both(pids, outcomes);
  for (int i = 0; i < 2; i++) {
    remove_left(pids[i]);
    read_outcome(reports[i][0], &outcomes[i]);
    close(reports[i][0]);
  }
  char text[700];
  enum verdict verdict = judge(clause, outcomes, text, sizeof text);
  printf("%s %-20s %s\n", words[verdict], clause->name, text);
  return verdict;
}

static const struct clause *const all_clauses[] = {setup_clauses,   data_clauses, group_clauses,   flow_clauses,
                                                   failure_clauses, life_clauses, counters_clauses};
#define LISTS (sizeof all_clauses / sizeof all_clauses[0])

static int usage(void)
{
  fprintf(stderr,
          "usage: netabi PLUGIN.so [--abi %d..%d] [--only CLAUSE] [--deadline SECONDS] [--fuse] [--env1 NAME=VALUE]... "
          "| netabi "
          "--list\n",
          OLDEST_ABI, NEWEST_ABI);
  return 2;
}

/* The newest version that the file exports, looked up in a process of its own; 0 if none, -1 if it cannot be opened. */
static int newest_exported(void)
{
  pid_t child = fork();
  int status = 0;
  if (child == 0) {
    struct net net;
    void *library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "netabi: cannot open %s: %s\n", plugin_path, dlerror());
    int abi = NEWEST_ABI;
    while (library && abi >= OLDEST_ABI && !net_find(library, abi, &net)) abi--;
    _exit(!library ? 255 : abi < OLDEST_ABI ? 0 : abi);
  }
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) == 255) return -1;
  return WEXITSTATUS(status);
}

/* A file in the current folder may be named without a slash, which dlopen would look for elsewhere. */
static const char *as_path(const char *name)
{
  static char path[PATH_MAX];
  return !strchr(name, '/') && access(name, R_OK) == 0 && realpath(name, path) ? path : name;
}

int main(int argc, char **argv)
{
  const char *only = NULL;
  int abi = 0, count[3] = {0};
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--list")) {
      for (size_t l = 0; l < LISTS; l++)
        for (const struct clause *c = all_clauses[l]; c->name; c++) printf("%-20s %s\n", c->name, c->rule);
      return 0;
    }
    if (!strcmp(argv[i], "--fuse")) {
      fuse = true;
      continue;
    }
    if (argv[i][0] != '-') {
      plugin_path = as_path(argv[i]);
      continue;
    }
    if (i + 1 == argc) return usage();
    if (!strcmp(argv[i], "--abi"))
      abi = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--only"))
      only = argv[++i];
    else if (!strcmp(argv[i], "--deadline"))
      deadline_s = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--env1") && side1_envs < 16 && strchr(argv[i + 1], '='))
      side1_env[side1_envs++] = argv[++i];
    else
      return usage();
  }
  if (!plugin_path || deadline_s < 1 || (abi != 0 && (abi < OLDEST_ABI || abi > NEWEST_ABI))) return usage();
  int newest = newest_exported();
  if (newest < 0) return 2;
  if (newest == 0) {
    fprintf(stderr, "netabi: %s exports no ncclNetPlugin_v%d to v%d\n", plugin_path, OLDEST_ABI, NEWEST_ABI);
    return 2;
  }
  if (abi == 0) abi = newest;
  printf("netabi: %s, ncclNetPlugin_v%d\n", plugin_path, abi);
  for (size_t l = 0; l < LISTS; l++)
    for (const struct clause *c = all_clauses[l]; c->name; c++)
      if (!only || !strcmp(only, c->name)) count[run_clause(c, abi)]++;
  if (count[PASS] + count[FAIL] + count[SKIP] == 0) {
    fprintf(stderr, "netabi: there is no clause \"%s\"; see --list\n", only);
    return 2;
  }
  printf("netabi: %d passed, %d failed, %d skipped\n", count[PASS], count[FAIL], count[SKIP]);
  /* A plugin that passes nothing was not tested. */
  return count[FAIL] || !count[PASS];
}
