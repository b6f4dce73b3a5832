/* Allocation that reports its failure. */
#include "base/check.h"

#include <stdlib.h>

ncclResult_t tt_check_calloc(void **out, size_t count, size_t size, const char *file, int line, const char *func)
{
  bool possible = size == 0 || count <= PTRDIFF_MAX / size;
  *out = possible ? calloc(count ? count : 1, size) : NULL;
  if (*out) return ncclSuccess;
  return tt_log_fail(ncclSystemError, file, line, func, "out of memory: %zu objects of %zu bytes", count, size);
}
