/* Whether a communicator uses a tuner plugin. */
#ifndef TT_API_TUNER_H
#define TT_API_TUNER_H

#include "plan/comm.h"

/* Takes part of all ranks, once the tuning is made: opens the tuner if there is one, and lets the ranks agree on it. A
 * tuner whose init fails on some rank is a failure on all; one that is not the same on all ranks is not used, and a
 * warning says so. */
ncclResult_t tt_comm_open_tuner(struct ncclComm *comm, enum tt_tuning_kind kind);

#endif
