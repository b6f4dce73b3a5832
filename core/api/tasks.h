/* What the calls of a group asked for is done here. */
#ifndef TT_API_TASKS_H
#define TT_API_TASKS_H

#include "plan/comm.h"

/* Does the tasks of a group's communicators, a list by group_next: they are complete when it returns, or enqueued by
 * their device. The tasks stay in the communicators. */
ncclResult_t tt_tasks_run(struct ncclComm *comms);

#endif
