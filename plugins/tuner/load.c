/* Finds and reads the file of rules; see table.h. */
#include "table.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "base/regular.h"

#define DEFAULT_FILE "nccl_tuner.conf" /* as NCCL's example tuner has it */
#define MOST_BYTES ((off_t)16 << 20)   /* far more than rules that people or scripts write */

/* Reads to the end, which may have moved since the file's size was asked for. */
static ncclResult_t read_file(const char *path, int fd, off_t size, char **text, size_t *bytes)
{
  ssize_t got = 1;
  *bytes = 0;
  if (size > MOST_BYTES)
    return TT_FAIL(ncclInvalidUsage,
                   "tuner rules: %s has %lld bytes, of which at most %lld are read; name a file of "
                   "rules in NCCL_TUNER_CONFIG_FILE",
                   path, (long long)size, (long long)MOST_BYTES);
  size_t room = (size_t)size + 1;
  TT_TRY(TT_CALLOC(text, room));
  while (*bytes < room && got > 0) {
    got = read(fd, *text + *bytes, room - *bytes);
    if (got < 0 && errno == EINTR)
      got = 1;
    else if (got > 0)
      *bytes += (size_t)got;
  }
  if (got < 0) return TT_FAIL(ncclSystemError, "tuner rules: %s cannot be read: %s", path, strerror(errno));
  if (*bytes == room)
    return TT_FAIL(ncclSystemError, "tuner rules: %s grew while it was read; write it elsewhere and rename it", path);
  return ncclSuccess;
}

ncclResult_t tt_table_load(struct tt_table_rules *rules, char *path)
{
  const char *named = tt_param_string(TT_PARAM_NCCL_TUNER_CONFIG_FILE), *file = named ? named : DEFAULT_FILE;
  struct tt_table_mistake mistake;
  ncclResult_t result = ncclSuccess;
  char *text = NULL, real[PATH_MAX];
  size_t bytes;
  memset(rules, 0, sizeof *rules);
  path[0] = '\0';
  struct stat status;
  const char *why;
  int fd = tt_regular_open(file, &status, &why);
  if (fd < 0 && !named && errno == ENOENT) return ncclSuccess;
  if (fd < 0)
    return TT_FAIL(ncclSystemError, "tuner rules: %s%s cannot be opened: %s%s", file,
                   named ? ", which NCCL_TUNER_CONFIG_FILE names," : " in the working directory", why,
                   named ? "; correct the variable, or unset it to go without rules" : "");
  strcpy(path, realpath(file, real) ? real : file);
  TT_TRY_GOTO(read_file(path, fd, status.st_size, &text, &bytes), result, out);
  result = tt_table_parse(text, bytes, rules, &mistake);
  if (result != ncclSuccess)
    result = TT_FAIL(result, "tuner rules: %s:%u:%u: %s", path, mistake.line, mistake.column, mistake.text);
out:
  free(text);
  close(fd);
  return result;
}
