/* See maps.h. */
#include "maps.h"

#include <dirent.h>
#include <string.h>

/* libnccl.so, libnccl.so.2, libnccl.so.2.21.5, but not libnccl-net.so, which is a plugin. */
static bool is_nccl(const char *path)
{
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  return !strncmp(name, "libnccl.so", 10) && (name[10] == 0 || name[10] == '.');
}

void run_maps_scan(FILE *file, const char *ours, struct run_maps *maps)
{
  char line[PATH_MAX + 128];
  *maps = (struct run_maps){.readable = true};
  while (fgets(line, sizeof(line), file)) {
    char *path = strchr(line, '/');
    if (!path) continue;
    path[strcspn(path, "\n")] = 0;
    char *deleted = strstr(path, " (deleted)");
    if (deleted && !deleted[10]) *deleted = 0;
    if (strstr(path, "/libc.so") || strstr(path, "/libc-") || strstr(path, "/ld-musl")) maps->loaded = true;
    if (!strcmp(path, ours))
      maps->ours = true;
    else if (is_nccl(path))
      snprintf(maps->other, sizeof(maps->other), "%s", path);
  }
}

/* NCCL's communicators have threads whose names begin so; Tutti's begin with "tutti-", PyTorch's with "pt_nccl". */
static bool nccl_works(pid_t pid)
{
  char path[64 + NAME_MAX], name[32];
  bool found = false;
  snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
  DIR *threads = opendir(path);
  struct dirent *entry;
  while (threads && !found && (entry = readdir(threads))) {
    snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)pid, entry->d_name);
    FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
    if (!file) continue;
    found = fgets(name, sizeof(name), file) && !strncmp(name, "NCCL ", 5);
    fclose(file);
  }
  if (threads) closedir(threads);
  return found;
}

void run_maps_look(pid_t pid, const char *ours, struct run_maps *maps)
{
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
  FILE *file = fopen(path, "re");
  *maps = (struct run_maps){0};
  if (!file) return;
  run_maps_scan(file, ours, maps);
  fclose(file);
  if (maps->other[0]) maps->works = nccl_works(pid);
}
