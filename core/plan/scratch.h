/* Scratch memory of a communicator's collectives, which run one after another and so share it. */
#ifndef TT_PLAN_SCRATCH_H
#define TT_PLAN_SCRATCH_H

#include <stddef.h>
#include "nccl.h"

struct ncclComm;

/* At least `bytes`, aligned to 64, of the device's memory or the host's. Where works may still run, or be repeated,
 * what they were given stays until tt_scratch_free. */
ncclResult_t tt_scratch_get(struct ncclComm *comm, size_t bytes, unsigned char **ptr);
void tt_scratch_free(struct ncclComm *comm);

#endif
