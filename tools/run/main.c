/* tutti-run CMD [ARG...]: starts CMD with Tutti's drop-in libnccl.so.2 preloaded, and says so if another NCCL is used.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "program.h"
#include "follow.h"

enum { USAGE = 2 };

static void help(FILE *out)
{
  fputs("usage: tutti-run [--print] COMMAND [ARGUMENT...]\n"
        "Starts COMMAND with Tutti in the place of NCCL: its drop-in libnccl.so.2 is preloaded (LD_PRELOAD), here and "
        "in\n"
        "all processes that COMMAND starts. While it runs, tutti-run looks at these processes, and reports where "
        "another\n"
        "libnccl.so has communicators, or the drop-in is missing. An NCCL that is linked into a program statically is\n"
        "not replaced, nor found. Signals are passed on to COMMAND; if tutti-run is killed, COMMAND gets a SIGTERM.\n\n"
        "  --print   print the setting of LD_PRELOAD and do nothing else\n\n"
        "Exit status: COMMAND's; 128 + N if signal N ended it; 127 not found; 126 cannot be run; 2 wrong usage.\n",
        out);
}

/* The drop-in beside this program, in a build tree or installed. */
static bool find_drop_in(char *path, char *error, size_t size)
{
  static const char *const places[] = {"lib/tutti/compat/libnccl.so.2", TUTTI_LIBDIR "/tutti/compat/libnccl.so.2"};
  char self[PATH_MAX], candidate[PATH_MAX + 128];
  ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
  self[n > 0 ? n : 0] = 0;
  for (int up = 0; up < 2; up++) {
    char *slash = strrchr(self, '/');
    if (slash) *slash = 0;
  }
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
    snprintf(candidate, sizeof(candidate), "%s/%s", self, places[i]);
    if (!realpath(candidate, path)) continue;
    if (!strpbrk(path, " :")) return true;
    snprintf(error, size, "%s: a path with blanks or colons cannot be preloaded; install Tutti elsewhere", path);
    return false;
  }
  snprintf(error, size, "no drop-in library at %s/%s; the installation is incomplete", self, places[0]);
  return false;
}

static void preload(const char *drop_in)
{
  const char *before = getenv("LD_PRELOAD");
  char *value = NULL;
  if (asprintf(&value, "%s%s%s", drop_in, before && *before ? ":" : "", before ? before : "") < 0 ||
      setenv("LD_PRELOAD", value, 1)) {
    fputs("tutti-run: out of memory\n", stderr);
    exit(RUN_CANNOT);
  }
  free(value);
}

int main(int argc, char **argv)
{
  char drop_in[PATH_MAX], path[PATH_MAX], error[PATH_MAX + 512];
  if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) return help(stdout), 0;
  bool print = argc > 1 && !strcmp(argv[1], "--print");
  char **command = argv + 1;
  if (!print && argc > 1 && !strcmp(argv[1], "--")) command++;
  if (!print && (!*command || (command == argv + 1 && **command == '-'))) {
    fprintf(stderr, "tutti-run: %s%s; see --help\n", *command ? *command : "",
            *command ? ": unknown flag" : "no command given");
    return USAGE;
  }
  if (!find_drop_in(drop_in, error, sizeof(error))) {
    fprintf(stderr, "tutti-run: %s\n", error);
    return RUN_CANNOT;
  }
  if (print) return printf("LD_PRELOAD=%s\n", drop_in), 0;
  int status = run_program_find(*command, getenv("PATH"), path, sizeof(path), error, sizeof(error));
  if (status) {
    fprintf(stderr, "tutti-run: %s\n", error);
    return status;
  }
  if (!run_program_preloads(path, error, sizeof(error))) {
    fprintf(stderr, "tutti-run: %s\n", error);
    return RUN_CANNOT;
  }
  run_follow_block();
  pid_t self = getpid(), child = fork();
  if (child == 0) {
    if (!run_follow_become(self)) _exit(RUN_CANNOT);
    preload(drop_in);
    execv(path, command);
    fprintf(stderr, "tutti-run: %s: %s\n", path, strerror(errno));
    _exit(RUN_CANNOT);
  }
  if (child < 0) {
    fprintf(stderr, "tutti-run: cannot start a process: %s\n", strerror(errno));
    return RUN_CANNOT;
  }
  return run_follow(child, drop_in, *command);
}
