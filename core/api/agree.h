/* What must be equal on all ranks is compared when a communicator is made, and a difference is named. */
#ifndef TT_API_AGREE_H
#define TT_API_AGREE_H

#include <stdbool.h>
#include "nccl.h"
#include "bootstrap/bootstrap.h"

/* Compares versions, the device backend, the channel counts and collnetEnable of the config, and all parameters marked `agreed`.
 * *share: whether this rank would share its parent's memory; afterwards whether all would.
 * ncclInvalidUsage, on every rank, naming the first difference: which ranks, which setting, both values. */
ncclResult_t tt_agree_settings(struct tt_bootstrap *bootstrap, int rank, int nranks, const char *device,
                               const ncclConfig_t *config, bool *share);

#endif
