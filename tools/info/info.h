/* What tutti-info lists. Each section prints itself either as tab-indented "key: value" lines, as ibv_devinfo does, or
 * into a JSON object. */
#ifndef INFO_H
#define INFO_H

#include <stdbool.h>
#include "json.h"
#include "nccl.h"

struct info_out {
  struct tool_json *json; /* NULL: text on stdout */
};

/* A section's opening line "kind: name"; in JSON, an object in the array that is open. */
void info_begin(struct info_out *out, const char *kind, const char *name);
void info_end(struct info_out *out);
void info_text(struct info_out *out, const char *key, const char *value);
void info_number(struct info_out *out, const char *key, long long value);
/* A list of words; in JSON, an array. */
void info_words(struct info_out *out, const char *key, const char *const *words, int count);

void info_library(struct info_out *out, const char *path);
void info_devices(struct info_out *out);
void info_plugins(struct info_out *out);
void info_tuners(struct info_out *out);
void info_params(struct info_out *out, bool verbose);

/* Whether a communicator would take all parameters; ncclInvalidUsage names the first malformed one. */
ncclResult_t info_check(void);

/* What the communicators of a running process are at: prints its report. The program's exit status; a refusal is said
 * on stderr. */
int info_ask(int pid, bool as_json);

#endif
