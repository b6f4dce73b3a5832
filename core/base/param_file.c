/* Reading configuration files. What is wrong with them is collected, and reported by who may log. */
#include "base/param_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/regular.h"

#define FILE_MOST (1 << 20)

static void add_problem(struct tt_param_files *files, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Where memory is short, a problem is lost rather than made worse. */
static void add_problem(struct tt_param_files *files, const char *format, ...)
{
  char **grown = realloc(files->problems, ((size_t)files->nproblems + 1) * sizeof(*grown));
  if (!grown) return;
  files->problems = grown;
  va_list args;
  va_start(args, format);
  if (vasprintf(&grown[files->nproblems], format, args) >= 0) files->nproblems++;
  va_end(args);
}

static bool good_name(const char *name, size_t bytes)
{
  if (bytes == 0 || isdigit((unsigned char)name[0])) return false;
  for (size_t i = 0; i < bytes; i++)
    if (!isalnum((unsigned char)name[i]) && name[i] != '_') return false;
  return true;
}

static void add_setting(struct tt_param_files *files, const struct tt_param_setting *where, const char *name,
                        size_t name_bytes, const char *value, size_t value_bytes)
{
  struct tt_param_setting setting = *where;
  struct tt_param_setting *grown = realloc(files->settings, ((size_t)files->nsettings + 1) * sizeof(*files->settings));
  if (!grown) return;
  files->settings = grown;
  setting.name = strndup(name, name_bytes);
  setting.value = strndup(value, value_bytes);
  if (!setting.name || !setting.value) {
    free(setting.name);
    free(setting.value);
    return;
  }
  for (int i = 0; i < files->nsettings; i++)
    if (files->settings[i].file == where->file && strcmp(files->settings[i].name, setting.name) == 0)
      add_problem(files, "%s:%d: %s is set a second time; line %d counts", where->file, where->line, setting.name,
                  files->settings[i].line);
  files->settings[files->nsettings++] = setting;
}

static void trim(const char **start, const char **end)
{
  while (*start < *end && isspace((unsigned char)**start)) (*start)++;
  while (*start < *end && isspace((unsigned char)(*end)[-1])) (*end)--;
}

static void parse_line(struct tt_param_files *files, const struct tt_param_setting *where, const char *start,
                       const char *end)
{
  trim(&start, &end);
  if (start == end || *start == '#') return;
  if (memchr(start, 0, (size_t)(end - start))) {
    add_problem(files, "%s:%d: a zero byte; the line is ignored", where->file, where->line);
    return;
  }
  const char *equals = memchr(start, '=', (size_t)(end - start));
  const char *name_end = equals ? equals : end;
  const char *name = start;
  trim(&name, &name_end);
  if (!equals || !good_name(name, (size_t)(name_end - name))) {
    add_problem(files, "%s:%d: \"%.*s\" is not NAME=VALUE; the line is ignored", where->file, where->line,
                (int)(end - start > 80 ? 80 : end - start), start);
    return;
  }
  const char *value = equals + 1;
  trim(&value, &end);
  size_t bytes = (size_t)(name_end - name);
  if (bytes == strlen("NCCL_CONF_FILE") && memcmp(name, "NCCL_CONF_FILE", bytes) == 0)
    add_problem(files, "%s:%d: NCCL_CONF_FILE counts only in the environment; the line is ignored", where->file,
                where->line);
  else
    add_setting(files, where, name, bytes, value, (size_t)(end - value));
}

void tt_param_files_parse(struct tt_param_files *files, const char *path, enum tt_param_origin origin, const char *text,
                          size_t bytes)
{
  if (files->npaths == 2) return;
  char *copy = strdup(path);
  if (!copy) return;
  files->paths[files->npaths++] = copy;
  struct tt_param_setting where = {.file = copy, .line = 0, .origin = origin};
  const char *end = text + bytes;
  while (text < end) {
    const char *newline = memchr(text, '\n', (size_t)(end - text));
    where.line++;
    parse_line(files, &where, text, newline ? newline : end);
    text = newline ? newline + 1 : end;
  }
}

/* Reads up to FILE_MOST bytes of a regular file. NULL, with *why, if it cannot. */
static char *read_file(const char *path, size_t *bytes, const char **why)
{
  struct stat stat;
  char *text = NULL;
  int fd = tt_regular_open(path, &stat, why);
  if (fd < 0) return NULL;
  if (stat.st_size > FILE_MOST)
    *why = "longer than 1 MiB";
  else if (!(text = malloc((size_t)stat.st_size + 1)))
    *why = "out of memory";
  *bytes = 0;
  while (text && *bytes < (size_t)stat.st_size) {
    ssize_t got = read(fd, text + *bytes, (size_t)stat.st_size - *bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      *why = strerror(errno);
      free(text);
      text = NULL;
    }
    if (got <= 0) break;
    *bytes += (size_t)got;
  }
  close(fd);
  return text;
}

void tt_param_files_read(struct tt_param_files *files, const char *path, enum tt_param_origin origin, bool required)
{
  size_t bytes;
  const char *why = NULL;
  int saved = errno;
  errno = 0;
  char *text = read_file(path, &bytes, &why);
  bool absent = !text && (errno == ENOENT || errno == ENOTDIR);
  errno = saved;
  if (text)
    tt_param_files_parse(files, path, origin, text, bytes);
  else if (required || !absent)
    add_problem(files, "%s: cannot be read: %s; its settings do not count", path, why);
  free(text);
}

const struct tt_param_setting *tt_param_files_find(const struct tt_param_files *files, const char *name)
{
  for (int i = 0; i < files->nsettings; i++)
    if (strcmp(files->settings[i].name, name) == 0) return &files->settings[i];
  return NULL;
}

void tt_param_files_export(struct tt_param_files *files)
{
  for (int i = 0; i < files->nsettings; i++) {
    struct tt_param_setting *setting = &files->settings[i];
    if (strncmp(setting->name, "NCCL_", 5) != 0 || getenv(setting->name)) continue;
    setting->exported = setenv(setting->name, setting->value, 0) == 0;
  }
}

void tt_param_files_free(struct tt_param_files *files)
{
  for (int i = 0; i < files->nsettings; i++) {
    struct tt_param_setting *setting = &files->settings[i];
    const char *now = getenv(setting->name);
    if (setting->exported && now && strcmp(now, setting->value) == 0) unsetenv(setting->name);
    free(setting->name);
    free(setting->value);
  }
  for (int i = 0; i < files->nproblems; i++) free(files->problems[i]);
  for (int i = 0; i < files->npaths; i++) free(files->paths[i]);
  free(files->settings);
  free(files->problems);
  memset(files, 0, sizeof(*files));
}
