/* Configuration files: lines NAME=VALUE, # in front of a comment, blanks around name and value ignored. */
#ifndef TT_BASE_PARAM_FILE_H
#define TT_BASE_PARAM_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/param.h"

struct tt_param_setting {
  char *name, *value;
  const char *file; /* in tt_param_files */
  int line;
  enum tt_param_origin origin;
  bool exported; /* put into the environment by tt_param_files_export */
};

/* Empty when zeroed. Settings of the file with precedence come first, so the first of a name counts. */
struct tt_param_files {
  struct tt_param_setting *settings;
  int nsettings;
  char **problems; /* sentences that begin with file:line */
  int nproblems;
  char *paths[2];
  int npaths;
};

/* Adds the settings of one file. A file that does not exist is a problem only if it is `required`. */
void tt_param_files_read(struct tt_param_files *files, const char *path, enum tt_param_origin origin, bool required);
/* Adds the settings of a text, as if it were the file `path`. */
void tt_param_files_parse(struct tt_param_files *files, const char *path, enum tt_param_origin origin, const char *text,
                          size_t bytes);
const struct tt_param_setting *tt_param_files_find(const struct tt_param_files *files, const char *name);
/* Puts all NCCL_* settings into the environment, where plugins look, unless it has the name already. */
void tt_param_files_export(struct tt_param_files *files);
/* Takes them out again, if nobody changed them, and frees all. */
void tt_param_files_free(struct tt_param_files *files);

#endif
