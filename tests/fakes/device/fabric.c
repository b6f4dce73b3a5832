/* A fabric that spans hosts: a name is a process and a descriptor of its, by which another process of this machine
 * finds the file, whatever host it claims to be on. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

bool fake_has_fabric(void)
{
  return getenv("FAKE_FABRIC") != NULL;
}

void fake_fabric_name(int fd, unsigned char name[64])
{
  snprintf((char *)name, 64, "/proc/%d/fd/%d", (int)getpid(), fd);
}

int fake_fabric_open(const unsigned char name[64])
{
  char path[65];
  snprintf(path, sizeof path, "%.64s", (const char *)name);
  return open(path, O_RDWR | O_CLOEXEC);
}
