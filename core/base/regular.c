/* See regular.h. */
#include "base/regular.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int tt_regular_open(const char *path, struct stat *status, const char **why)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  int error = fd < 0 || fstat(fd, status) != 0 ? errno : 0;
  if (error == 0 && S_ISREG(status->st_mode)) return fd;
  *why = error ? strerror(error) : "it is no regular file";
  if (fd >= 0) close(fd);
  errno = error ? error : EINVAL;
  return -1;
}
