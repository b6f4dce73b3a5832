/* Parameters for the log and for tests: values without a log line, since the log itself is configured by them. */
#ifndef TT_BASE_PARAM_SOURCE_H
#define TT_BASE_PARAM_SOURCE_H

#include "base/param.h"

/* As tt_param_string and tt_param_int, without the line that says where the value comes from. */
const char *tt_param_source_string(enum tt_param_id id);
int64_t tt_param_source_int(enum tt_param_id id);
/* That line, once per parameter. */
void tt_param_source_announce(enum tt_param_id id);
/* Forgets the values of the log's own parameters, so that they are read again. */
void tt_param_source_forget_log(void);
/* The file read in place of /etc/nccl.conf after the next tt_param_reset, NULL for /etc/nccl.conf itself. For tests;
 * the text must outlive the use. */
void tt_param_source_system_file(const char *path);

#endif
