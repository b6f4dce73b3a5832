/* Turns: calls that take part of all ranks over the communicator's bootstrap, as making a child or opening a window,
 * are carried out one after another in the order in which they were made, which all ranks have in common; whatever
 * thread carries them out. */
#ifndef TT_API_TURN_H
#define TT_API_TURN_H

#include "plan/comm.h"

/* The turn of a call that is made now. */
uint64_t tt_turn_take(struct ncclComm *comm);
/* Waits until all earlier calls had theirs. Fails if the communicator is aborted. */
ncclResult_t tt_turn_wait(const char *function, struct ncclComm *comm, uint64_t turn);
/* Lets the next one come; once for each turn, whether it was waited for or not. */
void tt_turn_end(struct ncclComm *comm);

#endif
