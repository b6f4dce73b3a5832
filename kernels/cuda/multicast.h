/* Multicast memory of the CUDA backend: the steps of a team (see tt_device), and the kernels that use it. */
#ifndef TT_KERNELS_CUDA_MULTICAST_H
#define TT_KERNELS_CUDA_MULTICAST_H

#include <stdbool.h>
#include "kernels/cuda/context.h"

/* multicast.c */
ncclResult_t tt_cuda_team_check(int index, struct tt_device_multicast *out);
ncclResult_t tt_cuda_team_create(struct tt_device_context *context, const struct tt_device_team_config *config,
                                 struct tt_device_export *out, struct tt_device_team **team);
ncclResult_t tt_cuda_team_import(struct tt_device_context *context, const struct tt_device_team_config *config,
                                 const struct tt_device_export *in, struct tt_device_team **team);
ncclResult_t tt_cuda_team_add(struct tt_device_context *context, struct tt_device_team *team);
ncclResult_t tt_cuda_team_bind(struct tt_device_context *context, struct tt_device_team *team, void **own, void **all);
void tt_cuda_team_leave(struct tt_device_context *context, struct tt_device_team *team);

/* nvls.c. Whether there are kernels: those need an architecture of 9.0 or later. */
bool tt_cuda_nvls_is_built(void);
/* Loads their code for the thread's device, so that none is loaded while another kernel waits for a peer. */
ncclResult_t tt_cuda_nvls_load(void);
/* Of a data type, as cudaLaunchKernel takes it; NULL: there is none. */
const void *tt_cuda_nvls_kernel(int datatype);

#endif
