/* See scarce.h: the limit is lowered, and what is free below it is taken. */
#include "tests/common/scarce.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* More than any test has open when it begins. */
enum { LIMIT = 256 };

static struct rlimit before;
static int taken[LIMIT], count;

static void set_limit(const struct rlimit *limit)
{
  if (setrlimit(RLIMIT_NOFILE, limit) == 0) return;
  perror("setrlimit");
  abort();
}

void scarce_begin(int left)
{
  int fd;
  getrlimit(RLIMIT_NOFILE, &before);
  struct rlimit limit = before;
  limit.rlim_cur = LIMIT;
  set_limit(&limit);
  for (count = 0; (fd = dup(STDERR_FILENO)) >= 0; count++) taken[count] = fd;
  while (left-- > 0 && count > 0) close(taken[--count]);
}

int scarce_left(void)
{
  int left = 0;
  for (int fd = 0; fd < LIMIT; fd++) left += fcntl(fd, F_GETFD) < 0;
  return left;
}

void scarce_end(void)
{
  while (count > 0) close(taken[--count]);
  set_limit(&before);
}
