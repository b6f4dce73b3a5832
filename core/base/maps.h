/* Whether memory of this process can be read or written, found out without touching it: /proc/self/maps says it of
 * every page, needs no privilege, and raises no signal. What lies behind the end of a file that is mapped counts as
 * memory. Takes as long as the process has mappings: tens of microseconds and more. Any thread. */
#ifndef TT_BASE_MAPS_H
#define TT_BASE_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"

/* *wrong: the first address in [ptr, ptr + bytes) that cannot be read, or with `write` written; NULL: there is none.
 * *mapped: there is memory at that address, which does not allow it. Another thread may change all of it at any time.
 * ncclSystemError where the file cannot be read. */
ncclResult_t tt_maps_check(const void *ptr, size_t bytes, bool write, const void **wrong, bool *mapped);

#endif
