/* Works on streams: a device with TT_DEVICE_STREAMS enqueues them, and nobody waits for them but who ends the
 * communicator. Of other devices' operations on host streams, only that end is here. */
#ifndef TT_PLAN_STREAM_H
#define TT_PLAN_STREAM_H

#include <stdbool.h>
#include "plan/plan.h"

/* One that could not be made may have no device. */
static inline bool tt_stream_device(const struct ncclComm *comm)
{
  return comm->device != NULL && (comm->device->features & TT_DEVICE_STREAMS) != 0;
}

/* Notes the streams of the tasks, and the graph that they are captured into. ncclInvalidUsage for streams of which
 * some are captured and others are not, or into another graph. */
ncclResult_t tt_stream_find(struct tt_plan *plan, const struct tt_task *tasks);
/* Enqueues all works of the plan on its first stream, as one launch. It runs when all that was on the plan's streams
 * before is done, and what comes after it on any of them waits for it. */
ncclResult_t tt_stream_launch(struct tt_plan *plan);
/* Waits until what was launched is done. The communicator's failure if that ended it. */
ncclResult_t tt_stream_drain(struct ncclComm *comm);
/* The same of what the communicator has on host streams only. */
ncclResult_t tt_stream_drain_host(struct ncclComm *comm);
/* Ends what runs and what is to run, and waits for that at most a second. If there was something, it is a failure,
 * which the others are told. */
void tt_stream_abort(struct ncclComm *comm);
/* The same of what the communicator has on host streams only; at any moment, from any thread. */
void tt_stream_abort_host(struct ncclComm *comm);
/* Stops what runs, if anything does, and what graphs would still repeat; looks after nothing any more. */
void tt_stream_end(struct ncclComm *comm);

#endif
