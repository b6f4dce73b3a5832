/* Works on streams: a device with TT_DEVICE_STREAMS enqueues them, and nobody waits for them but who ends the
 * communicator. */
#ifndef TT_PLAN_STREAM_H
#define TT_PLAN_STREAM_H

#include <stdbool.h>
#include "plan/plan.h"

static inline bool tt_stream_device(const struct ncclComm *comm)
{
  return (comm->device->features & TT_DEVICE_STREAMS) != 0;
}

/* Enqueues all works of the plan on its stream, as one launch. */
ncclResult_t tt_stream_launch(struct tt_plan *plan);
/* Waits until what was launched is done. The communicator's failure if that ended it. */
ncclResult_t tt_stream_drain(struct ncclComm *comm);
/* Ends what runs, and waits for that at most a second. If something ran, it is a failure, which the others are told. */
void tt_stream_abort(struct ncclComm *comm);
/* Stops what runs, if anything does, and looks after nothing any more. */
void tt_stream_end(struct ncclComm *comm);

#endif
