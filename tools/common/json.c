/* See json.h. */
#include "json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void add(struct tool_json *json, const char *text, size_t bytes)
{
  if (json->used + bytes + 1 > json->room) {
    size_t room = (json->used + bytes + 1) * 2;
    char *grown = realloc(json->text, room);
    if (!grown) {
      json->failed = true;
      return;
    }
    json->text = grown;
    json->room = room;
  }
  memcpy(json->text + json->used, text, bytes);
  json->used += bytes;
  json->text[json->used] = 0;
}

/* A string with what JSON cannot hold escaped. Bytes above 127 pass: names and messages are UTF-8. */
static void add_quoted(struct tool_json *json, const char *text)
{
  add(json, "\"", 1);
  for (; *text; text++) {
    char escape[8];
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      snprintf(escape, sizeof(escape), "\\%c", c);
    else if (c < 0x20)
      snprintf(escape, sizeof(escape), "\\u%04x", c);
    else
      snprintf(escape, sizeof(escape), "%c", c);
    add(json, escape, strlen(escape));
  }
  add(json, "\"", 1);
}

static void begin(struct tool_json *json, const char *key)
{
  if (json->used && !json->first) add(json, ",", 1);
  if (json->used) add(json, "\n", 1);
  json->first = false;
  if (!key) return;
  add_quoted(json, key);
  add(json, ": ", 2);
}

void tool_json_open(struct tool_json *json, const char *key, char bracket)
{
  begin(json, key);
  add(json, &bracket, 1);
  json->first = true;
}

void tool_json_close(struct tool_json *json, char bracket)
{
  add(json, bracket == '{' ? "}" : "]", 1);
  json->first = false;
}

void tool_json_string(struct tool_json *json, const char *key, const char *value)
{
  begin(json, key);
  if (value)
    add_quoted(json, value);
  else
    add(json, "null", 4);
}

void tool_json_integer(struct tool_json *json, const char *key, int64_t value)
{
  char text[32];
  begin(json, key);
  add(json, text, (size_t)snprintf(text, sizeof(text), "%" PRId64, value));
}

void tool_json_real(struct tool_json *json, const char *key, double value)
{
  char text[40];
  begin(json, key);
  if (isfinite(value))
    add(json, text, (size_t)snprintf(text, sizeof(text), "%.9g", value));
  else
    add(json, "null", 4);
}

void tool_json_bool(struct tool_json *json, const char *key, bool value)
{
  begin(json, key);
  add(json, value ? "true" : "false", value ? 4 : 5);
}

void tool_json_null(struct tool_json *json, const char *key)
{
  tool_json_string(json, key, NULL);
}

static bool write_file(struct tool_json *json, const char *path)
{
  FILE *file = fopen(path, "we");
  if (!file) return false;
  bool written = fwrite(json->text, 1, json->used, file) == json->used && fputc('\n', file) != EOF;
  int cause = errno;
  if (fclose(file)) return false;
  errno = cause;
  return written;
}

/* A file comes into being complete, under its name, or not at all. What is there and no file (a device, a pipe, a link
 * such as /dev/stdout) is written to, and must not be replaced by a file. */
static bool save(struct tool_json *json, const char *path, const char *temporary)
{
  struct stat there;
  if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode)) return write_file(json, path);
  if (write_file(json, temporary) && rename(temporary, path) == 0) return true;
  int cause = errno;
  unlink(temporary);
  errno = cause;
  return false;
}

bool tool_json_save(struct tool_json *json, const char *path, char *error, size_t size)
{
  char *temporary = NULL;
  bool saved = false;
  if (json->failed || !json->text || asprintf(&temporary, "%s.%d.tmp", path, (int)getpid()) < 0) {
    snprintf(error, size, "%s: out of memory", path);
    temporary = NULL;
  } else if (!save(json, path, temporary)) {
    snprintf(error, size, "%s: %s", path, strerror(errno));
  } else {
    saved = true;
  }
  free(temporary);
  free(json->text);
  *json = (struct tool_json){0};
  return saved;
}
