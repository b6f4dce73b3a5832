/* What the other ranks of a run say, looked at while this one waits. */
#include "plan/watch.h"

#include <stdio.h>
#include <unistd.h>
#include "base/check.h"
#include "base/timer.h"
#include "program/signature.h"

/* How long a failure may wait for another rank's account of its cause, and how often that is looked for. */
#define CAUSE_NS 500000000ull
#define CAUSE_USEC 1000

static bool has_work(const struct tt_plan *plan)
{
  return plan->comm->health != NULL && plan->nworks > 0;
}

static bool is_collective(const struct tt_work *work)
{
  return work->signature.collective != TT_FUNC_SEND_RECV;
}

void tt_watch_begin(const struct tt_plan *plans, int nplans)
{
  for (int p = 0; p < nplans; p++)
    for (int w = 0; has_work(&plans[p]) && w < plans[p].nworks; w++)
      if (is_collective(plans[p].works[w])) tt_health_begin(plans[p].comm->health, &plans[p].works[w]->signature);
}

ncclResult_t tt_watch_check(const struct tt_plan *plans, int nplans, bool idle)
{
  for (int p = 0; p < nplans; p++)
    if (has_work(&plans[p])) TT_TRY(tt_health_check(plans[p].comm->health, idle));
  return ncclSuccess;
}

ncclResult_t tt_watch_cause(const struct tt_plan *plans, int nplans, ncclResult_t result)
{
  for (uint64_t start = tt_timer_ns(); tt_timer_ns() - start < CAUSE_NS; usleep(CAUSE_USEC))
    TT_TRY(tt_watch_check(plans, nplans, true));
  return result;
}

/* Sends and receives meet one peer each; of collectives the ranks tell each other (core/health). */
static ncclResult_t check_peers(const struct tt_plan *plan)
{
  for (int w = 0; w < plan->nworks; w++) {
    const struct tt_program *program = plan->works[w]->channels[0].program;
    if (plan->works[w]->complete || is_collective(plan->works[w]) || program->npeers == 0) continue;
    int peer = program->peers[0];
    if (tt_bootstrap_left(plan->comm->bootstrap, peer))
      return TT_FAIL(ncclRemoteError,
                     "rank %d waits in a %s rank %d, which has left the communicator: it destroyed or "
                     "aborted it before this operation",
                     plan->comm->rank, program->collective == TT_FUNC_SEND ? "send to" : "receive from", peer);
  }
  return ncclSuccess;
}

/* One line for who wonders why nothing happens. Being late is no error. */
static void report(const struct tt_plan *plan, int seconds)
{
  char text[300], late[160] = "";
  const struct tt_work *work = NULL;
  for (int w = 0; w < plan->nworks && work == NULL; w++)
    if (!plan->works[w]->complete) work = plan->works[w];
  if (work == NULL) return;
  const struct tt_program *program = work->channels[0].program;
  tt_signature_describe(&work->signature, text, sizeof text);
  if (is_collective(work))
    tt_health_late(plan->comm->health, late, sizeof late);
  else if (program->npeers > 0)
    snprintf(late, sizeof late, "%d", program->peers[0]);
  TT_WARN("rank %d has waited %d s in %s; %s%s", plan->comm->rank, seconds, text,
          late[0] ? "not heard of in it: rank " : "all ranks are in it", late);
}

ncclResult_t tt_watch_stalled(const struct tt_plan *plans, int nplans, int report_seconds)
{
  for (int p = 0; p < nplans; p++) {
    if (!has_work(&plans[p])) continue;
    tt_health_stalled(plans[p].comm->health);
    if (report_seconds > 0) report(&plans[p], report_seconds);
    TT_TRY(check_peers(&plans[p]));
  }
  return ncclSuccess;
}
