/* Enqueueing works on streams, and waiting for them at the end. */
#include "plan/stream.h"

#include <unistd.h>
#include "base/check.h"
#include "device/context.h"
#include "plan/captured.h"
#include "plan/carrier.h"
#include "plan/graphs.h"
#include "plan/host_stream.h"
#include "plan/monitor.h"
#include "plan/watch.h"

/* How long one wait lasts before errors are looked at again, and how long stopped works may take to end. */
#define DRAIN_MS 20
#define STOPPED_MS 1000
/* What works have sent leaves soon after them. */
#define THROUGH_USEC 50

/* ---- Launches ---- */

static bool has_stream(const struct tt_plan *plan, const void *stream)
{
  bool has = stream == plan->stream;
  for (int s = 0; s < plan->nothers && !has; s++) has = plan->others[s] == stream;
  return has;
}

/* Streams of a group are few, whatever its tasks: NCCL's users give one a kind of work. */
static ncclResult_t add_stream(struct tt_plan *plan, void *stream)
{
  void **others;
  TT_TRY(TT_POOL_NEW(plan->comm->pool, &others, (size_t)plan->nothers + 1));
  for (int s = 0; s < plan->nothers; s++) others[s] = plan->others[s];
  others[plan->nothers++] = stream;
  tt_pool_give(plan->others);
  plan->others = others;
  return ncclSuccess;
}

static ncclResult_t check_graph(const struct tt_plan *plan, void *stream)
{
  const struct ncclComm *comm = plan->comm;
  uint64_t graph;
  TT_TRY(comm->device->capturing(comm->context->handle, stream, &graph));
  if (graph == plan->graph) return ncclSuccess;
  return TT_FAIL(
      ncclInvalidUsage,
      "rank %d: of the streams that a group gives to one communicator, %p is %s and %p is %s: capture all of "
      "them into one graph, or none",
      comm->rank, plan->stream, plan->graph != 0 ? "captured" : "not captured", stream,
      graph == 0         ? "not captured"
      : plan->graph == 0 ? "captured"
                         : "captured into another graph");
}

ncclResult_t tt_stream_find(struct tt_plan *plan, const struct tt_task *tasks)
{
  const struct ncclComm *comm = plan->comm;
  const void *last = plan->stream = tasks->stream;
  for (const struct tt_task *task = tasks; task != NULL; task = task->next) {
    if (task->stream == last) continue;
    last = task->stream;
    if (!has_stream(plan, last)) TT_TRY(add_stream(plan, task->stream));
  }
  if (!(comm->device->features & TT_DEVICE_GRAPHS)) return ncclSuccess;
  if (!tt_captured_graph(comm, plan->stream, &plan->graph))
    TT_TRY(comm->device->capturing(comm->context->handle, plan->stream, &plan->graph));
  for (int s = 0; s < plan->nothers; s++) TT_TRY(check_graph(plan, plan->others[s]));
  return ncclSuccess;
}

static ncclResult_t launch(struct tt_plan *plan)
{
  const struct tt_device *device = plan->comm->device;
  struct tt_device_context *context = plan->comm->context->handle;
  struct tt_launch *none = NULL;
  if (plan->graph != 0) TT_TRY(tt_graphs_note(plan->comm, plan->stream, plan->graph));
  for (int s = 0; s < plan->nothers; s++) TT_TRY(device->follow(context, plan->stream, plan->others[s]));
  TT_TRY(device->launch(plan->works, plan->nworks, plan->stream, &none));
  for (int s = 0; s < plan->nothers; s++) TT_TRY(device->follow(context, plan->others[s], plan->stream));
  return ncclSuccess;
}

ncclResult_t tt_stream_launch(struct tt_plan *plan)
{
  struct ncclComm *comm = plan->comm;
  if (plan->nworks == 0) return ncclSuccess;
  TT_TRY(tt_monitor_start(comm));
  TT_TRY(tt_carrier_launch(comm));
  tt_watch_begin(plan, 1);
  /* A graph repeats works as they are now, so what the peers compare in each slot must not count operations. */
  for (int w = 0; w < plan->nworks; w++) plan->works[w]->signature.sequence = 0;
  return launch(plan);
}

/* ---- The end ---- */

static ncclResult_t drain(struct ncclComm *comm, int timeout_ms, int *done)
{
  return comm->device->drain(comm->context->handle, timeout_ms, done);
}

static ncclResult_t stop(struct ncclComm *comm)
{
  int done = 0;
  comm->device->stop(comm->context->handle);
  TT_TRY(drain(comm, STOPPED_MS, &done));
  if (!done)
    TT_WARN("rank %d: works on %s device %d did not end within %d ms of being stopped", comm->rank, comm->device->name,
            comm->device_index, STOPPED_MS);
  return ncclSuccess;
}

static ncclResult_t say_aborted(const struct ncclComm *comm)
{
  return TT_FAIL(ncclInternalError, "rank %d: aborted, before what was launched was complete", comm->rank);
}

ncclResult_t tt_stream_drain_host(struct ncclComm *comm)
{
  if (atomic_load(&comm->host_pending) == 0) return ncclSuccess;
  TT_TRY(tt_host_drain(comm));
  ncclResult_t failed = (ncclResult_t)atomic_load(&comm->async_error);
  if (failed != ncclSuccess) tt_log_remember(comm->error_text);
  return failed;
}

ncclResult_t tt_stream_drain(struct ncclComm *comm)
{
  int done = 0;
  if (!tt_stream_device(comm)) return tt_stream_drain_host(comm);
  while (comm->monitor != NULL) {  /* else nothing was ever launched */
    bool over = tt_monitor_over(); /* then nobody would see what ends the works */
    TT_TRY(drain(comm, over ? STOPPED_MS : DRAIN_MS, &done));
    ncclResult_t failed = done ? tt_monitor_settle(comm) : (ncclResult_t)atomic_load(&comm->async_error);
    if (failed != ncclSuccess) {
      TT_TRY(stop(comm));
      return failed;
    }
    if (done && tt_carrier_through(comm)) break;
    if (over) return stop(comm);
    if (atomic_load(&comm->abort)) return say_aborted(comm);
    if (done) usleep(THROUGH_USEC);
  }
  return ncclSuccess;
}

/* What runs ends because its communicator has failed. */
void tt_stream_abort_host(struct ncclComm *comm)
{
  if (atomic_load(&comm->host_pending) == 0) return;
  tt_comm_fail(comm, say_aborted(comm));
  tt_host_abort(comm, STOPPED_MS);
}

void tt_stream_abort(struct ncclComm *comm)
{
  int done = 0;
  if (!tt_stream_device(comm)) {
    tt_stream_abort_host(comm);
    return;
  }
  if (comm->monitor == NULL) return;
  bool complete = drain(comm, 0, &done) == ncclSuccess && done && tt_carrier_through(comm);
  if (!complete) tt_comm_fail(comm, say_aborted(comm));
  stop(comm); /* what a graph repeats, too */
}

void tt_stream_end(struct ncclComm *comm)
{
  int done = 0;
  if (comm->monitor == NULL) return;
  tt_carrier_end(comm);
  tt_monitor_end(comm);
  if (drain(comm, 0, &done) != ncclSuccess || !done || tt_graphs_live(comm) > 0) stop(comm);
}
