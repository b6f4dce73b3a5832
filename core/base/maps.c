/* Reading /proc/self/maps; see maps.h. */
#include "base/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"

#define PATH "/proc/self/maps"
/* A line begins with "first-end rwxp": of the rest nothing is wanted. */
#define LINE_START 64
/* The kernel takes no lock from one read to the next. It then leaves out no mapping that was there all the time, but
 * what is moved, split or joined meanwhile may be missing: so bad news is heard several times. */
#define TRIES 3

struct walk {
  uintptr_t at, end; /* all before `at` can be used */
  char allowed;      /* 'r' or 'w' */
  bool wrong, mapped;
};

static bool is_over(const struct walk *walk)
{
  return walk->wrong || walk->at >= walk->end;
}

/* Lines come in the order of their addresses. */
static void take_line(struct walk *walk, const char *line)
{
  char *next;
  uintptr_t first = strtoull(line, &next, 16);
  if (*next != '-') return;
  uintptr_t end = strtoull(next + 1, &next, 16);
  if (*next != ' ' || end <= walk->at || is_over(walk)) return;
  walk->mapped = first <= walk->at;
  walk->wrong = !walk->mapped || next[walk->allowed == 'r' ? 1 : 2] != walk->allowed;
  if (!walk->wrong) walk->at = end;
}

static ncclResult_t read_lines(int fd, struct walk *walk)
{
  char buffer[4096], line[LINE_START];
  size_t used = 0;
  ssize_t bytes = 0;
  while (!is_over(walk) && (bytes = read(fd, buffer, sizeof(buffer))) != 0) {
    if (bytes < 0 && errno != EINTR) return TT_FAIL(ncclSystemError, "reading " PATH ": %s", strerror(errno));
    for (ssize_t i = 0; i < bytes; i++) {
      if (buffer[i] != '\n') {
        if (used + 1 < sizeof(line)) line[used++] = buffer[i];
        continue;
      }
      line[used] = 0;
      used = 0;
      take_line(walk, line);
    }
  }
  if (!is_over(walk)) { /* nothing lies above */
    walk->wrong = true;
    walk->mapped = false;
  }
  return ncclSuccess;
}

static ncclResult_t look(struct walk *walk)
{
  int fd = open(PATH, O_RDONLY | O_CLOEXEC);
  char hint[100];
  if (fd < 0)
    return TT_FAIL(ncclSystemError, "opening " PATH ", which says what memory there is: %s%s", strerror(errno),
                   tt_host_file_hint(errno, hint, sizeof(hint)));
  ncclResult_t result = read_lines(fd, walk);
  close(fd);
  return result;
}

ncclResult_t tt_maps_check(const void *ptr, size_t bytes, bool write, const void **wrong, bool *mapped)
{
  const uintptr_t start = (uintptr_t)ptr, end = bytes > UINTPTR_MAX - start ? UINTPTR_MAX : start + bytes;
  struct walk walk = {.wrong = true};
  for (int i = 0; i < TRIES && walk.wrong; i++) {
    walk = (struct walk){.at = start, .end = end, .allowed = write ? 'w' : 'r'};
    TT_TRY(look(&walk));
  }
  *mapped = walk.mapped;
  *wrong = walk.wrong ? (const void *)walk.at : NULL;
  return ncclSuccess;
}
