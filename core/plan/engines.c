/* See engines.h. */
#include "plan/engines.h"

#include <stdio.h>
#include <string.h>
#include "base/param.h"
#include "program/emit.h"

static bool are_wanted(const struct ncclComm *comm, int collective, size_t bytes)
{
  int64_t setting = tt_param_int(TT_PARAM_TUTTI_COPY_ENGINES);
  if (setting >= 0) return setting == 1;
  return (comm->config.CTAPolicy & NCCL_CTA_POLICY_ZERO) || tt_tuning_engines_win(comm->tuning, collective, bytes);
}

void tt_engines_choose(const struct ncclComm *comm, const struct tt_task *task, size_t bytes, struct tt_choice *choice)
{
  if (choice->algorithm != TT_ALGO_MAPPED || tt_collective_reduces(task->collective) ||
      !(comm->device->features & TT_DEVICE_ENGINES) || !are_wanted(comm, task->collective, bytes))
    return;
  size_t used = strlen(choice->reason);
  choice->engines = true;
  choice->nchannels = 1;
  snprintf(choice->reason + used, sizeof(choice->reason) - used, ", by copy engines");
}
