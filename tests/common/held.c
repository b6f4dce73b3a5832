/* See held.h. */
#include "tests/common/held.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int entries(const char *folder)
{
  int count = 0;
  DIR *dir = opendir(folder);
  if (dir == NULL) return 0;
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) count += entry->d_name[0] != '.';
  closedir(dir);
  return count;
}

int held_threads(void)
{
  return entries("/proc/self/task");
}

/* Reading the folder takes one. */
int held_descriptors(void)
{
  return entries("/proc/self/fd") - 1;
}

static int held_mappings(void)
{
  char line[600];
  int count = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
    count += strstr(line, "memfd:") != NULL || strstr(line, "/dev/shm/") != NULL;
  if (maps != NULL) fclose(maps);
  return count;
}

struct held held_now(void)
{
  return (struct held){held_threads(), held_descriptors(), held_mappings()};
}

bool held_settles(struct held before, int ms, struct held *now)
{
  for (int waited = 0;; waited++) {
    *now = held_now();
    if (now->threads <= before.threads && now->descriptors <= before.descriptors && now->mappings <= before.mappings)
      return true;
    if (waited >= ms) return false;
    usleep(1000);
  }
}
