/* See system.h. */
#include "system.h"

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"

#define SPEED_UNKNOWN 10000 /* Mbps, what NCCL assumes too */

static _Atomic(ncclDebugLogger_t) loggers;

static void to_logger(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                      const char *text)
{
  ncclDebugLogger_t logger = atomic_load(&loggers);
  if (logger) logger((ncclDebugLogLevel)level, subsystems, level == TT_LOG_TRACE ? func : file, line, "%s", text);
}

void tt_system_log_to(ncclDebugLogger_t logger)
{
  atomic_store(&loggers, logger);
  tt_log_redirect(to_logger);
}

/* Interfaces without a link answer -1, virtual ones often nothing. */
int tt_system_interface_speed(const char *interface)
{
  char path[128], text[32];
  snprintf(path, sizeof path, "/sys/class/net/%.32s/speed", interface);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SPEED_UNKNOWN;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return SPEED_UNKNOWN;
  text[got] = 0;
  int speed = atoi(text);
  return speed > 0 ? speed : SPEED_UNKNOWN;
}

void tt_system_real_path(const char *link, char *out, size_t size)
{
  char real[PATH_MAX];
  *out = 0;
  if (realpath(link, real) && strlen(real) < size) memcpy(out, real, strlen(real) + 1);
}
