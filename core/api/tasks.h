/* What the calls of a group asked for is done here: on the calling thread, or on the threads of host streams. */
#ifndef TT_API_TASKS_H
#define TT_API_TASKS_H

#include "plan/comm.h"

/* Does the tasks of a group's communicators, a list by group_next. Those on host streams are enqueued, and their
 * communicators lose them here; the others are complete when it returns, or enqueued by their device. */
ncclResult_t tt_tasks_run(struct ncclComm *comms);
/* Ends a communicator that was aborted and that no thread uses: what it has on host streams is ended, and it is freed,
 * here, or by the last of these if that takes long. */
void tt_tasks_end(struct ncclComm *comm);

#endif
