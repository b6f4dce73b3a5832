/* Parameters: one table (param_table.h) defines each one's name, type, default, range and help. Parsing, error
 * messages, `tutti-info`'s listing and the documentation all come from it.
 *
 * Precedence: environment, then the user's file (NCCL_CONF_FILE, else ~/.nccl.conf), then /etc/nccl.conf. A value is
 * read once per process, at first use; what was set and from where is logged once (INFO, ENV). A malformed or
 * out-of-range value is an error that names the variable, the value and what is allowed. Any thread. */
#ifndef TT_BASE_PARAM_H
#define TT_BASE_PARAM_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include "nccl.h"

/* TT_PARAM_NCCL_DEBUG and so on: one per row of the table. */
enum tt_param_id {
#define TT_PARAM(name, ...) TT_PARAM_##name,
#include "base/param_table.h"
#undef TT_PARAM
  TT_PARAM_COUNT
};

enum tt_param_type { TT_PARAM_INT, TT_PARAM_BOOL, TT_PARAM_STRING };

struct tt_param {
  const char *name;
  enum tt_param_type type;
  int64_t default_int; /* INT and BOOL */
  int64_t min, max;    /* INT: the allowed range, both ends included */
  bool agreed;         /* must be equal on all ranks: compared when a communicator is made */
  const char *help;    /* one sentence; units; special values */
};

enum tt_param_origin { TT_PARAM_FROM_DEFAULT, TT_PARAM_FROM_ENV, TT_PARAM_FROM_USER_FILE, TT_PARAM_FROM_SYSTEM_FILE };

/* The value of an INT or BOOL parameter; the default when unset or malformed (malformed ones are reported by
 * tt_param_check). */
int64_t tt_param_int(enum tt_param_id id);
/* The value of a STRING parameter, or NULL when unset or empty. Lives as long as the process. */
const char *tt_param_string(enum tt_param_id id);
/* Where the value comes from; *file is set for the two kinds of file. */
enum tt_param_origin tt_param_origin(enum tt_param_id id, const char **file);
/* The text of the value as it was set, or NULL. */
const char *tt_param_text(enum tt_param_id id);
const struct tt_param *tt_param_describe(enum tt_param_id id);

/* Reads config files, checks every value, and reports unknown NCCL_* and TUTTI_* variables once with the nearest known
 * name. ncclInvalidUsage naming the first malformed one. Called at the start of communicator creation; cheap after the
 * first time (the result is remembered). */
ncclResult_t tt_param_check(void);

/* The error of who finds a value wrong that tt_param_check does not know: ncclInvalidUsage with a sentence that names
 * the parameter, its value, where it was set, and `allowed`; NULL: the range of an INT or BOOL. */
ncclResult_t tt_param_refuse(enum tt_param_id id, const char *allowed);

/* A hash of all parameters marked `agreed`, and the printable form "NAME=value" of number i of them (NULL past the
 * end), so that ranks can compare and name a difference. */
uint64_t tt_param_agreed_hash(void);
const char *tt_param_agreed(int i, char *text, size_t size);

/* Forgets everything read; for tests. Not thread-safe. */
void tt_param_reset(void);
/* Forgets and frees everything, texts handed out too: for a plugin with its own copy of this file that is unloaded. */
void tt_param_unload(void);

#endif
