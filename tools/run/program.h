/* Is a command one that LD_PRELOAD reaches? */
#ifndef RUN_PROGRAM_H
#define RUN_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

enum { RUN_CANNOT = 126, RUN_NOT_FOUND = 127 }; /* exit statuses, as shells use them */

/* Finds `command` as execvp would (PATH unless it has a slash). 0, or one of the above and `error` says why. */
int run_program_find(const char *command, const char *search, char *path, size_t size, char *error, size_t error_size);

/* False if the dynamic linker would not load, or not obey, LD_PRELOAD for this file: static, of another architecture,
 * setuid or setgid, or with file capabilities; for a script, the same of its interpreter. `error` has the sentence. */
bool run_program_preloads(const char *path, char *error, size_t size);

#endif
