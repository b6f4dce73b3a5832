/* The log's settings as pure functions of their texts: levels, subsystems, file patterns, time stamps. */
#ifndef TT_BASE_LOG_FILTER_H
#define TT_BASE_LOG_FILTER_H

#include <stddef.h>
#include <time.h>

#include "base/log.h"

/* The level that `text` names in any case; -1 for an unknown name. */
int tt_log_level(const char *text);
/* The subsystem bits of a comma list, ^ in front: all but these. Unknown names are skipped and *unknown counts them. */
unsigned long tt_log_subsystems(const char *text, int *unknown);
/* One bit (1 << level) for each level of a comma list of level names or ALL, ^ in front: all but these. */
unsigned tt_log_level_bits(const char *text, int *unknown);
/* Expands %h, %p and %% of a file pattern; anything else is kept. False if it does not fit. */
bool tt_log_file_name(const char *pattern, const char *host, int pid, char *name, size_t size);
/* Formats `now` as strftime does, with %1f to %9f for decimals of a second and _ for a blank. */
void tt_log_time(const char *format, const struct timespec *now, char *text, size_t size);

#endif
