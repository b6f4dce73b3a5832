/* See left.h. A file is PROCESS:USER:NUMBER, and nobody but its process ever removes it. */
#include "left.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void remove_left(pid_t ended)
{
  char begin[40];
  struct stat status;
  int bytes = snprintf(begin, sizeof begin, "%d:%u:", (int)ended, (unsigned)geteuid());
  DIR *folder = opendir("/dev/shm");
  if (!folder) return;
  for (const struct dirent *entry; (entry = readdir(folder));)
    if (strncmp(entry->d_name, begin, (size_t)bytes) == 0 &&
        fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == geteuid())
      unlinkat(dirfd(folder), entry->d_name, 0);
  closedir(folder);
}
