/* Enqueueing works on streams, and waiting for them at the end. */
#include "plan/stream.h"

#include <unistd.h>
#include "base/check.h"
#include "device/context.h"
#include "plan/carrier.h"
#include "plan/host_stream.h"
#include "plan/monitor.h"
#include "plan/watch.h"

/* How long one wait lasts before errors are looked at again, and how long stopped works may take to end. */
#define DRAIN_MS 20
#define STOPPED_MS 1000
/* What works have sent leaves soon after them. */
#define THROUGH_USEC 50

ncclResult_t tt_stream_launch(struct tt_plan *plan)
{
  struct ncclComm *comm = plan->comm;
  struct tt_launch *none = NULL;
  if (plan->nworks == 0) return ncclSuccess;
  TT_TRY(tt_monitor_start(comm));
  TT_TRY(tt_carrier_launch(comm));
  tt_watch_begin(plan, 1);
  /* A graph repeats works as they are now, so what the peers compare in each slot must not count operations. */
  for (int w = 0; w < plan->nworks; w++) plan->works[w]->signature.sequence = 0;
  return comm->device->launch(plan->works, plan->nworks, plan->stream, &none);
}

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
  if (drain(comm, 0, &done) != ncclSuccess || !done) stop(comm);
}
