/* ncclGroupSimulateEnd: what a group would cost. */
#include <string.h>
#include "api/check.h"
#include "api/export.h"
#include "api/group.h"
#include "base/check.h"

#define SIM_MAGIC 0x74685283u

/* A program's struct may be of a release with fewer members or with more. */
static ncclResult_t check_info(const ncclSimInfo_t *info)
{
  const ncclSimInfo_t wanted = NCCL_SIM_INFO_INITIALIZER;
  TT_TRY(tt_api_check_pointer("ncclGroupSimulateEnd", "simInfo", info));
  if (info->size < offsetof(ncclSimInfo_t, estimatedTime) + sizeof info->estimatedTime || info->magic != SIM_MAGIC)
    return TT_FAIL(ncclInvalidArgument,
                   "ncclGroupSimulateEnd: simInfo has size %zu and magic 0x%x, not %zu and 0x%x: start from "
                   "NCCL_SIM_INFO_INITIALIZER",
                   info->size, info->magic, wanted.size, wanted.magic);
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * simInfo))
{
  float microseconds = 0;
  ncclResult_t checked = tt_group_note(check_info(simInfo)); /* the group ends in any case */
  ncclResult_t result = tt_group_simulate(&microseconds);
  if (checked != ncclSuccess) return checked;
  if (result == ncclSuccess) simInfo->estimatedTime = microseconds;
  return result;
}
