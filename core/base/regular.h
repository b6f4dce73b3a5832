/* Opening files that somebody names. */
#ifndef TT_BASE_REGULAR_H
#define TT_BASE_REGULAR_H

#include <sys/stat.h>

/* Opens a regular file for reading and tells its status; -1 with *why otherwise, and errno. Anything else is refused,
 * with EINVAL: to open a pipe, or to read from one or from a device, may take for ever. */
int tt_regular_open(const char *path, struct stat *status, const char **why);

#endif
