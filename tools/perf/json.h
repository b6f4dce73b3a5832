/* Writes JSON: a text is built in memory, and saved by renaming, so that a reader never sees half of it. */
#ifndef PERF_JSON_H
#define PERF_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct perf_json {
  char *text;
  size_t used, room;
  bool failed; /* out of memory */
  bool first;  /* nothing yet in the innermost bracket */
};

/* `key` is NULL inside an array and for the outermost value. `bracket` is '{' or '['. */
void perf_json_open(struct perf_json *json, const char *key, char bracket);
void perf_json_close(struct perf_json *json, char bracket);
void perf_json_string(struct perf_json *json, const char *key, const char *value); /* NULL: null */
void perf_json_integer(struct perf_json *json, const char *key, int64_t value);
void perf_json_real(struct perf_json *json, const char *key, double value); /* infinite or NaN: null */
void perf_json_bool(struct perf_json *json, const char *key, bool value);
void perf_json_null(struct perf_json *json, const char *key);

/* Saves and frees. False: `error` says why. */
bool perf_json_save(struct perf_json *json, const char *path, char *error, size_t size);

#endif
