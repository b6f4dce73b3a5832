/* The launch gate (NCCL_LAUNCH_MODE=GROUP): what one rank launches on a device with streams waits for the ranks of this
 * process to be ready to launch theirs.
 *
 * A launched work runs until its peers' works run too. Nothing that the library calls waits for works (tutti/device.h),
 * and all that a group needs is made before any of it is launched, so that the library needs no gate. But what a
 * program calls on another rank's thread may: an allocation or release that waits until devices are idle waits for a
 * work that waits for that thread. Behind the gate nothing runs before every rank of the process that it needs has come
 * to the same call. The price is that a call waits for other threads, so that these must make their calls in an order
 * that allows it; a thread that drives several ranks puts their calls in one group. */
#ifndef TT_PLAN_GATE_H
#define TT_PLAN_GATE_H

#include "plan/plan.h"

struct tt_gate; /* one rank's; NULL: it has none, and the other calls do nothing */

/* Makes the gate of a communicator that has other ranks in this process, if the mode asks for it. Before a barrier of
 * all ranks. */
ncclResult_t tt_gate_open(struct ncclComm *comm);
/* What the others of this process wait for is then an error, but not what this rank has launched before. */
void tt_gate_close(struct ncclComm *comm);

/* All that was planned until now is ready to be launched. */
void tt_gate_arrive(struct ncclComm *comm);
/* Waits until the ranks of this process that take part in the plan have arrived: at its first collective, and at the
 * first message of each pair. Ends with the communicator's failure, abort or revocation, and after TUTTI_LATE_TIMEOUT.
 * After tt_gate_arrive. */
ncclResult_t tt_gate_wait(const struct tt_plan *plan);

#endif
