/* See sysfs.h. */
#include "sysfs.h"

#include <check.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *sysfs_path(const struct sysfs *s, const char *path)
{
  static char text[sizeof(s->root) + 4096];
  const int wrote = snprintf(text, sizeof(text), "%s/%s", s->root, path);
  ck_assert_int_lt(wrote, (int)sizeof(text));
  return text;
}

void sysfs_begin(struct sysfs *s)
{
  const char *base = getenv("TMPDIR");
  snprintf(s->root, sizeof(s->root), "%.40s/sysfs.XXXXXX", base ? base : "/tmp");
  ck_assert_ptr_nonnull(mkdtemp(s->root));
}

static int take(const char *path, const struct stat *status, int kind, struct FTW *place)
{
  (void)status, (void)kind, (void)place;
  return remove(path);
}

void sysfs_end(struct sysfs *s)
{
  nftw(s->root, take, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_folders(const char *path)
{
  char *folders = strdup(path);
  for (char *slash = strchr(folders + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    ck_assert(mkdir(folders, 0777) == 0 || errno == EEXIST);
    *slash = '/';
  }
  free(folders);
}

void sysfs_write(struct sysfs *s, const char *path, const char *text)
{
  const char *name = sysfs_path(s, path);
  make_folders(name);
  FILE *file = fopen(name, "w");
  ck_assert_ptr_nonnull(file);
  fputs(text, file);
  fclose(file);
}

void sysfs_link(struct sysfs *s, const char *path, const char *target)
{
  const char *name = sysfs_path(s, path);
  make_folders(name);
  ck_assert_int_eq(symlink(target, name), 0);
}

void sysfs_node(struct sysfs *s, int node, const char *cpumap)
{
  char path[128];
  snprintf(path, sizeof(path), "devices/system/node/node%d/%s", node, cpumap ? "cpumap" : "distance");
  sysfs_write(s, path, cpumap ? cpumap : "10\n");
}

void sysfs_device(struct sysfs *s, const char *path, const char *class, const char *speed, const char *width,
                  const char *numa)
{
  const struct {
    const char *name, *value;
  } files[] = {{"class", class},    {"max_link_speed", speed}, {"max_link_width", width},
               {"numa_node", numa}, {"vendor", "0x10de"},      {"uevent", ""}};
  char text[4096], target[4096];
  for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
    if (!files[i].value) continue;
    snprintf(text, sizeof(text), "devices/%s/%s", path, files[i].name);
    snprintf(target, sizeof(target), "%s\n", files[i].value);
    sysfs_write(s, text, target);
  }
  snprintf(text, sizeof(text), "bus/pci/devices/%s", strrchr(path, '/') + 1);
  snprintf(target, sizeof(target), "../../../devices/%s", path);
  sysfs_link(s, text, target);
}
