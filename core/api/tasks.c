/* The tasks of a group: planned, connected and run. */
#include "api/tasks.h"

#include <stdlib.h>
#include "api/create.h"
#include "api/group.h"
#include "api/host_stream.h"
#include "base/check.h"
#include "plan/captured.h"
#include "plan/host_stream.h"
#include "plan/offers.h"
#include "plan/pairs.h"
#include "plan/plain.h"
#include "plan/plan.h"
#include "plan/stream.h"

/* ---- Connections ---- */

struct comm_job {
  struct tt_job job;
  struct ncclComm *comm;
};

static ncclResult_t run_connect(struct tt_job *job)
{
  struct ncclComm *comm = ((struct comm_job *)job)->comm;
  tt_log_set_device(comm->device_index);
  return tt_comm_fail(comm, tt_connect_run(comm->connect));
}

static void drop_job(struct tt_job *job)
{
  free(job);
}

/* Brings up what the plans need; communicators wait for each other here when one thread drives several ranks, so each
 * gets a thread. */
static ncclResult_t connect_all(struct tt_plan *plans, int nplans)
{
  struct tt_job *jobs = NULL, **end = &jobs;
  ncclResult_t result = ncclSuccess;
  for (int p = 0; p < nplans; p++) {
    struct ncclComm *comm = plans[p].comm;
    if (comm->connect == NULL || !tt_connect_pending(comm->connect)) continue;
    struct comm_job *connect;
    TT_TRY_GOTO(TT_CALLOC(&connect, 1), result, out);
    connect->job = (struct tt_job){.run = run_connect, .drop = drop_job};
    connect->comm = comm;
    *end = &connect->job;
    end = &connect->job.next;
  }
  result = tt_group_run_jobs(jobs);
out:
  tt_group_drop_jobs(jobs);
  return result;
}

/* ---- Captured operations ---- */

static ncclResult_t run_agree(struct tt_job *job)
{
  struct ncclComm *comm = ((struct comm_job *)job)->comm;
  tt_log_set_device(comm->device_index);
  TT_TRY(tt_captured_agree(comm));
  return tt_offers_agree(comm);
}

/* What there is to agree on of a part; where the group itself tells of the buffers, ranks need no words for it. */
static ncclResult_t prepare(const struct tt_host_part *part, const struct tt_plain *plain, const struct tt_pairs *pairs,
                            bool *wanted)
{
  bool of_collectives = false, of_messages = false;
  if (!tt_plain_has(plain, part->comm)) TT_TRY(tt_captured_prepare(part->comm, part->tasks, &of_collectives));
  if (tt_pairs_find(pairs, part->comm) == NULL) TT_TRY(tt_offers_prepare(part->comm, part->tasks, &of_messages));
  *wanted = of_collectives || of_messages;
  return ncclSuccess;
}

/* Ranks agree on the buffers of what is captured, each on a thread of its own, as above. */
static ncclResult_t agree_all(const struct tt_host_part *parts, int nparts, const struct tt_plain *plain,
                              const struct tt_pairs *pairs)
{
  struct tt_job *jobs = NULL, **end = &jobs;
  ncclResult_t result = ncclSuccess;
  for (int p = 0; p < nparts; p++) {
    struct comm_job *agree;
    bool wanted;
    TT_TRY_GOTO(prepare(&parts[p], plain, pairs, &wanted), result, out);
    if (!wanted) continue;
    TT_TRY_GOTO(TT_CALLOC(&agree, 1), result, out);
    agree->job = (struct tt_job){.run = run_agree, .drop = drop_job};
    agree->comm = parts[p].comm;
    *end = &agree->job;
    end = &agree->job.next;
  }
  result = tt_group_run_jobs(jobs);
out:
  tt_group_drop_jobs(jobs);
  return result;
}

/* ---- Running ---- */

/* Runs the parts together, with room for their plans. */
static ncclResult_t run_planned(const struct tt_host_part *parts, int nparts, struct tt_plan *plans)
{
  int nplans = 0;
  bool ran = false;
  struct tt_plain *plain = NULL;
  struct tt_pairs *pairs = NULL;
  ncclResult_t result = ncclSuccess;
  TT_TRY_GOTO(tt_plain_open(parts, nparts, &plain), result, out);
  TT_TRY_GOTO(tt_pairs_open(parts, nparts, &pairs), result, out);
  TT_TRY_GOTO(agree_all(parts, nparts, plain, pairs), result, out);
  for (int p = 0; p < nparts; p++)
    TT_TRY_GOTO(tt_plan_build(parts[p].comm, parts[p].tasks, parts[p].ntasks, plain, pairs, &plans[nplans++]), result,
                out);
  TT_TRY_GOTO(connect_all(plans, nplans), result, out);
  for (int p = 0; p < nplans; p++) TT_TRY_GOTO(tt_plan_bind(&plans[p]), result, out);
  ran = true;
  result = tt_plan_run(plans, nplans);
out:
  /* Nothing of the group runs, and the other ranks wait for all of it. A mistake in usage may be put right and tried
   * again; after anything else this rank cannot be counted on. */
  if (result != ncclSuccess && result != ncclInvalidUsage && result != ncclInvalidArgument)
    for (int p = 0; p < nparts; p++) tt_comm_fail(parts[p].comm, result);
  for (int p = 0; p < nplans; p++) ran ? tt_plan_free(&plans[p]) : tt_plan_take_back(&plans[p]);
  for (int p = 0; p < nparts; p++) tt_captured_forget(parts[p].comm);
  for (int p = 0; p < nparts; p++) tt_offers_forget(parts[p].comm);
  tt_pairs_close(pairs);
  tt_plain_close(plain);
  return result;
}

/* Most groups have one communicator. */
static ncclResult_t run_parts(const struct tt_host_part *parts, int nparts)
{
  struct tt_plan one, *plans = &one;
  if (nparts == 0) return ncclSuccess;
  if (nparts > 1) TT_TRY(TT_POOL_NEW(parts[0].comm->pool, &plans, (size_t)nparts));
  ncclResult_t result = run_planned(parts, nparts, plans);
  if (nparts > 1) tt_pool_give(plans);
  return result;
}

/* An item of a host stream. Communicators that failed meanwhile are left out. Nobody hears of a failure but by its
 * communicators and the stream, so that even a mistake in usage, which is found when it is too late to try again, is
 * the communicators'. */
static ncclResult_t run_item(struct tt_host_part *parts, int nparts)
{
  ncclResult_t first = ncclSuccess;
  int good = 0;
  for (int p = 0; p < nparts; p++) {
    ncclResult_t failed = tt_host_not_begun(parts[p].comm);
    if (first == ncclSuccess) first = failed;
    if (failed != ncclSuccess) continue;
    struct tt_host_part part = parts[p];
    parts[p] = parts[good];
    parts[good++] = part;
  }
  ncclResult_t result = run_parts(parts, good);
  for (int p = 0; p < good; p++) tt_comm_fail(parts[p].comm, result);
  return result != ncclSuccess ? result : first;
}

void tt_tasks_end(struct ncclComm *comm)
{
  tt_stream_abort(comm);
  if (tt_host_leave(comm)) tt_comm_destroy(comm);
}

/* What is to be complete when the call returns: after what the communicators have on host streams. */
static ncclResult_t run_here(struct tt_host_part *parts, int nparts)
{
  ncclResult_t result = ncclSuccess;
  for (int p = 0; p < nparts && result == ncclSuccess; p++) result = tt_stream_drain_host(parts[p].comm);
  if (result == ncclSuccess) return run_parts(parts, nparts);
  for (int p = 0; p < nparts; p++) tt_comm_fail(parts[p].comm, result); /* the other ranks wait for all of it */
  return result;
}

ncclResult_t tt_tasks_run(struct ncclComm *comms)
{
  int ncomms = 0, nparts = 0;
  struct tt_host_part one, *parts = &one;
  struct tt_host_items items = {0};
  for (struct ncclComm *comm = comms; comm != NULL; comm = comm->group_next) ncomms++;
  if (ncomms == 0) return ncclSuccess;
  if (ncomms > 1) TT_TRY(TT_POOL_NEW(comms->pool, &parts, (size_t)ncomms));
  ncclResult_t result = tt_host_items_make(comms, ncomms, run_item, tt_comm_destroy, &items);
  if (result == ncclSuccess) result = tt_host_enqueue(items.items, items.count);
  bool enqueued = result == ncclSuccess;
  for (struct ncclComm *comm = comms; comm != NULL; comm = comm->group_next)
    if (comm->ntasks > 0)
      parts[nparts++] = (struct tt_host_part){.comm = comm, .tasks = comm->tasks, .ntasks = comm->ntasks};
  if (enqueued) result = run_here(parts, nparts);
  ncclResult_t waited = tt_host_items_end(&items, enqueued);
  if (ncomms > 1) tt_pool_give(parts);
  return result != ncclSuccess ? result : waited;
}
