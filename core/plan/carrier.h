/* What works on streams send over a network: a thread a communicator carries it, from the first launch with such a
 * connection on, since nobody waits for these works and graphs repeat them without a call. */
#ifndef TT_PLAN_CARRIER_H
#define TT_PLAN_CARRIER_H

#include <stdbool.h>
#include "plan/comm.h"

/* Before a launch: sees to it that what it sends is carried. */
ncclResult_t tt_carrier_launch(struct ncclComm *comm);
/* Whether all that devices have sent has left this rank. */
bool tt_carrier_through(struct ncclComm *comm);
/* Ends it, if it runs. */
void tt_carrier_end(struct ncclComm *comm);

#endif
