/* Whether works can use a user's buffer: any memory of the process will do that may be read, or written. */
#include <stdio.h>
#include "base/check.h"
#include "base/maps.h"
#include "kernels/host/executor.h"

ncclResult_t tt_host_check_buffer(struct tt_device_context *context, struct tt_device_check *check)
{
  const void *wrong;
  bool mapped;
  (void)context;
  check->why[0] = 0;
  TT_TRY(tt_maps_check(check->ptr, check->bytes, check->write != 0, &wrong, &mapped));
  if (wrong == NULL) return ncclSuccess;
  const size_t good = (size_t)((const char *)wrong - (const char *)check->ptr);
  if (mapped)
    snprintf(check->why, sizeof(check->why),
             "memory at %p, %zu bytes on, may not be %s (mmap, mprotect); pass memory that may", wrong, good,
             check->write ? "written" : "read");
  else if (good == 0)
    snprintf(check->why, sizeof(check->why),
             "there is no memory: it was freed, or is no address of this process; pass memory that lives until the "
             "operation is done");
  else
    snprintf(
        check->why, sizeof(check->why),
        "memory ends at %p, after %zu bytes: it was freed in part, or is shorter than the count says; allocate all "
        "of it, or lower the count",
        wrong, good);
  return ncclSuccess;
}
