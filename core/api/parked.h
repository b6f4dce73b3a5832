/* Communicators that were destroyed while graphs hold works of them. A graph may still be launched, and its works then
 * end at once, since they were stopped, but they look at the communicator's memory first. So that stays until the
 * graphs are gone, whose end is told on a thread of the driver's, which must not free anything: a thread of the
 * library's does. It is there while there are such communicators. */
#ifndef TT_API_PARKED_H
#define TT_API_PARKED_H

#include "plan/comm.h"

/* Takes a communicator that has left the others over if graphs hold works of it, and frees it with `release` once they
 * are gone. Waits a moment for graphs that were just destroyed. False: none holds any, and it stays the caller's. */
bool tt_comm_park(struct ncclComm *comm, void (*release)(struct ncclComm *comm));

#endif
