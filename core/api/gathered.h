/* What the calls of a group have gathered, and the doing of it: in the call that ends the group, or, for non-blocking
 * communicators, in background, on a thread of the library. */
#ifndef TT_API_GATHERED_H
#define TT_API_GATHERED_H

#include "api/jobs.h"

enum tt_blocking { TT_BLOCKING_UNKNOWN, TT_BLOCKING, TT_NON_BLOCKING };

struct tt_gathered {
  enum tt_blocking blocking;           /* what all its communicators are */
  struct ncclComm *comms, **comms_end; /* whose calls it has, by group_next; in_group says so */
  struct tt_job *jobs, **jobs_end;
};

void tt_gathered_clear(struct tt_gathered *gathered);
/* Does it, and forgets it. */
ncclResult_t tt_gathered_run(struct tt_gathered *gathered);
/* Begins to do it in background: ncclInProgress. The communicators are TT_COMM_IN_BACKGROUND until it is done and
 * forgotten; a failure is theirs. If it cannot be begun, that is the result, and it is forgotten. */
ncclResult_t tt_gathered_start(struct tt_gathered *gathered);
/* Drops it, done or not. */
void tt_gathered_forget(struct tt_gathered *gathered);
/* Drops all that it has of one communicator, whose handle was taken. */
void tt_gathered_forget_comm(struct tt_gathered *gathered, struct ncclComm *comm);

#endif
