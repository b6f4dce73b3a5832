/* See timings.h. */
#include "api/timings.h"

#include <stdio.h>
#include "base/check.h"
#include "base/timer.h"
#include "plugin/net.h"

static uint64_t lap(struct tt_timings *timings)
{
  uint64_t now = tt_timer_ns(), took = now - timings->last;
  timings->last = now;
  return took;
}

void tt_timings_start(struct tt_timings *timings)
{
  *timings = (struct tt_timings){.start = tt_timer_ns()};
  timings->last = timings->start;
}

void tt_timings_device(struct tt_timings *timings)
{
  timings->device = lap(timings);
}

void tt_timings_enter(struct tt_timings *timings, struct ncclComm *comm, enum tt_stage stage)
{
  int before = atomic_load(&comm->stage);
  if (before < TT_STAGE_READY) timings->stages[before] += lap(timings);
  atomic_store(&comm->stage, stage);
}

void tt_timings_log(struct tt_timings *timings, const struct ncclComm *comm, const char *function)
{
  static const char *const names[TT_STAGE_READY] = {
      [TT_STAGE_JOINING] = "bootstrap", [TT_STAGE_AGREEING] = "agreement and network",
      [TT_STAGE_SHARING] = "memory",    [TT_STAGE_SEARCHING] = "topology and graphs",
      [TT_STAGE_TUNING] = "tuning",     [TT_STAGE_LAST_BARRIER] = "last barrier"};
  char text[320];
  int at = snprintf(text, sizeof text, "device %.4f", (double)timings->device / 1e9);
  int stage = atomic_load(&comm->stage);
  if (stage < TT_STAGE_READY) timings->stages[stage] += lap(timings);
  for (int s = 0; s < TT_STAGE_READY; s++)
    if (timings->stages[s] > 0)
      at += snprintf(text + at, sizeof text - (size_t)at, ", %s %.4f", names[s], (double)timings->stages[s] / 1e9);
  TT_INFO(TT_INIT, "Init timings - %s: rank %d nranks %d total %.4f (%s): %d ranks on %d hosts, device %s, network %s",
          function, comm->rank, comm->nranks, (double)(timings->last - timings->start) / 1e9, text, comm->nranks,
          comm->nnodes, comm->device->name, comm->net != NULL ? tt_net_name(comm->net) : "none");
}
