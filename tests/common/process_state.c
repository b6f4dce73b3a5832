/* See process_state.h. The test's own time limit is the only bound. */
#include "tests/common/process_state.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Z for one that is gone altogether. The name, which is before the letter, may hold anything, and is in parentheses. */
static char state_of(pid_t pid)
{
  char path[32], line[512];
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "r");
  const char *end = file && fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
  if (file) fclose(file);
  return end && end[1] ? end[2] : 'Z';
}

void await_stopped(pid_t pid)
{
  while (state_of(pid) != 'T') usleep(1000);
}

void await_dead(pid_t pid)
{
  while (!strchr("ZX", state_of(pid))) usleep(1000);
}
