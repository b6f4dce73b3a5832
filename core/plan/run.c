/* Running a group. Works of devices with streams are enqueued; for those of the host one thread drives the executors
 * and the proxies of all communicators until all is done. */
#include "plan/plan.h"

#include <string.h>
#include "base/check.h"
#include "base/doorbell.h"
#include "base/timer.h"
#include "plan/gate.h"
#include "plan/host_stream.h"
#include "plan/pending.h"
#include "plan/stream.h"
#include "plan/watch.h"

/* The longest sleep in microseconds, which only bounds how late an abort is seen. With network requests open it is
 * shorter, since the net plugins' ABI has nothing to wait on. */
#define SLEEP_USEC 1000
struct run {
  struct tt_plan *plans;
  int nplans;
  struct tt_work **works; /* of all plans */
  int nworks;
  struct tt_launch *launch;
  struct tt_doorbell **bells;
  int nbells;
  struct tt_watch_clock clock;
};

static ncclResult_t collect(struct run *run)
{
  int total = 0, at = 0;
  for (int p = 0; p < run->nplans; p++) total += run->plans[p].nworks;
  run->nworks = total;
  struct tt_pool *pool = run->plans[0].comm->pool;
  TT_TRY(TT_POOL_NEW(pool, &run->works, (size_t)TT_MAX(total, 1)));
  TT_TRY(TT_POOL_NEW(pool, &run->bells, (size_t)run->nplans));
  for (int p = 0; p < run->nplans; p++) {
    struct tt_plan *plan = &run->plans[p];
    for (int w = 0; w < plan->nworks; w++) {
      plan->works[w]->order |= (uint64_t)p << 40; /* communicators do not wait for each other */
      run->works[at++] = plan->works[w];
    }
    if (plan->comm->env != NULL) run->bells[run->nbells++] = plan->comm->env->bell;
  }
  return ncclSuccess;
}

/* One pass over everything that can move. */
static ncclResult_t advance(struct run *run, bool *moved, bool *done, bool *network)
{
  int launch_moved = 0, launch_done = 0;
  TT_TRY(run->plans[0].comm->device->progress(run->launch, &launch_moved, &launch_done));
  *moved = launch_moved != 0;
  *done = launch_done != 0;
  *network = false;
  for (int p = 0; p < run->nplans; p++) {
    struct ncclComm *comm = run->plans[p].comm;
    if (comm->env == NULL || comm->env->proxy == NULL) continue;
    bool proxy_moved, proxy_idle;
    ncclResult_t result = tt_proxy_progress(comm->env->proxy, &proxy_moved, &proxy_idle);
    if (result != ncclSuccess) return tt_watch_cause(run->plans, run->nplans, result);
    *moved |= proxy_moved;
    *done &= proxy_idle;
    *network |= !proxy_idle;
  }
  return ncclSuccess;
}

/* Ranks that share this host, as far as the run's communicators know; those that this thread drives count once. Or host
 * streams of this process, if more of them run. */
static int crowd(const struct run *run)
{
  int most = 1;
  for (int p = 0; p < run->nplans; p++) most = TT_MAX(most, run->plans[p].comm->local_ranks - run->nplans + 1);
  return TT_MAX(most, tt_host_running());
}

static ncclResult_t drive(struct run *run)
{
  struct tt_waiter waiter;
  ncclResult_t result;
  bool moved, done, network;
  tt_watch_begin(run->plans, run->nplans);
  TT_TRY(run->plans[0].comm->device->launch(run->works, run->nworks, NULL, &run->launch));
  tt_waiter_init(&waiter, run->bells, run->nbells, crowd(run));
  for (uint64_t pass = 1;; pass++) {
    result = advance(run, &moved, &done, &network);
    atomic_store_explicit(&run->clock.passes, pass, memory_order_relaxed);
    if (result != ncclSuccess || done) break;
    if (moved) {
      tt_waiter_progress(&waiter);
      tt_watch_moved(&run->clock);
      continue;
    }
    struct tt_watch_due due = tt_watch_idle(&run->clock, tt_timer_ns());
    result = tt_watch_check(run->plans, run->nplans, due.look);
    if (result == ncclSuccess && due.stalled) result = tt_watch_stalled(run->plans, run->nplans, &run->clock, &due);
    if (result != ncclSuccess) break;
    if (network)
      tt_waiter_idle_polled(&waiter);
    else
      tt_waiter_idle(&waiter, SLEEP_USEC);
  }
  tt_waiter_done(&waiter);
  return result;
}

static ncclResult_t run_here(struct tt_plan *plans, int nplans)
{
  struct run run = {.plans = plans, .nplans = nplans};
  ncclResult_t result = collect(&run);
  for (int p = 0; p < nplans; p++) tt_pending_run(plans[p].comm, &run.clock);
  if (result == ncclSuccess && run.nworks > 0) result = drive(&run);
  for (int p = 0; p < nplans; p++) tt_pending_end(plans[p].comm);
  if (run.launch != NULL) plans[0].comm->device->finish(run.launch);
  if (result != ncclSuccess)
    for (int p = 0; p < nplans; p++) tt_comm_fail(plans[p].comm, result);
  tt_pool_give(run.works);
  tt_pool_give(run.bells);
  return result;
}

/* Moves the plans of devices with streams to the front. Returns their number. */
static int streams_first(struct tt_plan *plans, int nplans)
{
  int front = 0;
  for (int p = 0; p < nplans; p++) {
    if (!tt_stream_device(plans[p].comm)) continue;
    struct tt_plan plan = plans[p];
    memmove(&plans[front + 1], &plans[front], (size_t)(p - front) * sizeof *plans);
    plans[front++] = plan;
  }
  return front;
}

/* All of them: the others count on those of this group that can run. */
static ncclResult_t launch_all(struct tt_plan *plans, int nplans)
{
  ncclResult_t first = ncclSuccess;
  for (int p = 0; p < nplans; p++) tt_gate_arrive(plans[p].comm);
  for (int p = 0; p < nplans; p++) {
    tt_pending_gate(plans[p].comm);
    ncclResult_t result = tt_gate_wait(&plans[p]);
    tt_pending_end(plans[p].comm); /* the device knows from here on */
    if (result == ncclSuccess) result = tt_stream_launch(&plans[p]);
    tt_comm_fail(plans[p].comm, result);
    plans[p].launched = result == ncclSuccess;
    if (first == ncclSuccess) first = result;
  }
  return first;
}

ncclResult_t tt_plan_run(struct tt_plan *plans, int nplans)
{
  int streams = streams_first(plans, nplans);
  ncclResult_t first = launch_all(plans, streams);
  if (streams == nplans) return first;
  ncclResult_t result = run_here(plans + streams, nplans - streams);
  return first != ncclSuccess ? first : result;
}
