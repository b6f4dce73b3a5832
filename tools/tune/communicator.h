/* Communicators that are made up: what their ranks would agree on. */
#ifndef TUNE_COMMUNICATOR_H
#define TUNE_COMMUNICATOR_H

#include "options.h"
#include "tuning/tuning.h"

/* From the numbers of ranks and nodes, and the environment. Ranks are on the host device, or on GPUs of the CUDA
 * backend, which use each other's memory over NVLink on a node, and host memory to reach a network. A node has one
 * NIC, and nobody CollNet or NVLS. ncclInvalidUsage if a variable asks for what cannot be. */
ncclResult_t tune_communicator(const struct tune_options *options, struct tt_tuning_input *input);

#endif
