/* Ranks of a communicator that use the same device. Their works wait for each other, on some devices for ever, so it
 * takes TUTTI_ALLOW_DUPLICATE_DEVICE, and is for tests. */
#ifndef TT_API_DUPLICATES_H
#define TT_API_DUPLICATES_H

#include "plan/comm.h"

/* ncclInvalidUsage, naming the ranks, if there are such and they are not allowed. Once the ranks know of each other. */
ncclResult_t tt_duplicates_check(const struct ncclComm *comm);
/* Channels that the device likes to use at most (tt_device.channels). Kernels of ranks that share one must all fit it
 * together, also those of a few communicators: such ranks have few. The same on all ranks. */
int tt_duplicates_channels(const struct ncclComm *comm);

#endif
