/* Writes JSON: a text is built in memory, and saved by renaming, so that a reader never sees half of it. */
#ifndef TOOL_JSON_H
#define TOOL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tool_json {
  char *text;
  size_t used, room;
  bool failed; /* out of memory */
  bool first;  /* nothing yet in the innermost bracket */
};

/* `key` is NULL inside an array and for the outermost value. `bracket` is '{' or '['. */
void tool_json_open(struct tool_json *json, const char *key, char bracket);
void tool_json_close(struct tool_json *json, char bracket);
void tool_json_string(struct tool_json *json, const char *key, const char *value); /* NULL: null */
void tool_json_integer(struct tool_json *json, const char *key, int64_t value);
void tool_json_real(struct tool_json *json, const char *key, double value); /* infinite or NaN: null */
void tool_json_bool(struct tool_json *json, const char *key, bool value);
void tool_json_null(struct tool_json *json, const char *key);

/* Saves and frees. False: `error` says why. */
bool tool_json_save(struct tool_json *json, const char *path, char *error, size_t size);

#endif
