/* See engines.h. */
#include "plan/engines.h"

#include <stdio.h>
#include <string.h>
#include "base/param.h"

/* From so many bytes of all ranks together engines save more than two launches and the start of the copies cost.
 * Estimate: engines move 391 bytes a nanosecond between two H100, kernels 365 (docs/performance.md), so that 24 MiB
 * leave 4 us earlier. */
#define LARGE_BYTES ((size_t)32 << 20)

static bool are_wanted(const struct ncclComm *comm, size_t bytes)
{
  int64_t setting = tt_param_int(TT_PARAM_TUTTI_COPY_ENGINES);
  if (setting >= 0) return setting == 1;
  return bytes >= LARGE_BYTES || (comm->config.CTAPolicy & NCCL_CTA_POLICY_ZERO);
}

void tt_engines_choose(const struct ncclComm *comm, const struct tt_task *task, size_t bytes, struct tt_choice *choice)
{
  bool moves = task->collective == TT_FUNC_ALL_GATHER || task->collective == TT_FUNC_ALL_TO_ALL;
  if (choice->algorithm != TT_ALGO_MAPPED || !moves || !(comm->device->features & TT_DEVICE_ENGINES) ||
      !are_wanted(comm, bytes))
    return;
  size_t used = strlen(choice->reason);
  choice->engines = true;
  choice->nchannels = 1;
  snprintf(choice->reason + used, sizeof(choice->reason) - used, ", by copy engines");
}
