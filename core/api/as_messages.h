/* All-to-all, gather and scatter as the sends and receives that they are: for communicators with more ranks than a
 * program of the device can name (TT_DEVICE_PEERS), where each message is a work of its own. */
#ifndef TT_API_AS_MESSAGES_H
#define TT_API_AS_MESSAGES_H

#include "plan/comm.h"

/* The same on all ranks. */
bool tt_api_is_as_messages(const struct ncclComm *comm, int collective);
/* ncclInvalidUsage for an all-to-all whose buffers overlap: what is sent would be overwritten before. To be asked
 * before the task has a number and is in a group: a call that is refused leaves nothing. */
ncclResult_t tt_api_check_messages(const char *function, const struct ncclComm *comm, const struct tt_task *task);
/* Adds the messages of a checked task, with its stream and number, to the communicator's group. The caller holds the
 * communicator. */
ncclResult_t tt_api_as_messages(struct ncclComm *comm, const struct tt_task *task);

#endif
