/* See communicator.h, and core/api/create.c for communicators that exist. */
#include "communicator.h"

#include "api/buffers.h"
#include "base/check.h"
#include "base/param.h"
#include "connect/connect.h" /* TT_MAX_CHANNELS */
#include "kernels/cuda/traits.h"
#include "kernels/host/host.h"
#include "tuning/limits.h"

static const struct tt_device *device_of(const struct tune_options *o)
{
  static const struct tt_device gpu = {.protocols = TT_CUDA_PROTOCOLS,
                                       .default_buffer = TT_CUDA_BUFFERS,
                                       .channels = TT_CUDA_CHANNELS,
                                       .peers = TT_CUDA_PEERS,
                                       .features = TT_DEVICE_MEMORY | TT_DEVICE_PEERS};
  return o->gpus ? &gpu : tt_host_device();
}

static void fill_ways(const struct tune_options *o, struct tt_tuning_input *input)
{
  bool one = o->nodes == 1, shared = !tt_param_int(TT_PARAM_NCCL_SHM_DISABLE);
  if (!o->gpus) {
    input->all_mapped = one && shared;
    input->nodes_mapped = shared;
    input->network_paths = 1;
    return;
  }
  bool peers = !tt_param_int(TT_PARAM_NCCL_P2P_DISABLE);
  input->all_mapped = one && (peers || shared);
  input->through_host = !peers && shared;
  input->torn_lines = !one || !peers;
  input->members_mapped = one && peers && !tt_param_int(TT_PARAM_NCCL_P2P_DIRECT_DISABLE) &&
                          !tt_param_int(TT_PARAM_NCCL_P2P_USE_CUDA_MEMCPY);
  input->engines = tt_tuning_engines_asked((int)tt_param_int(TT_PARAM_NCCL_CTA_POLICY));
  if (input->all_mapped) return;
  input->network = true;
  input->protocols &= ~(1u << TT_PROTO_LL128);
}

ncclResult_t tune_communicator(const struct tune_options *o, struct tt_tuning_input *input)
{
  const struct tt_device *device = device_of(o);
  struct tt_channel_limits limits;
  TT_TRY(tt_tuning_limits(1, TT_MAX_CHANNELS, TT_MAX_CHANNELS, &limits));
  *input = (struct tt_tuning_input){.kind = o->gpus ? TT_TUNING_GPU : TT_TUNING_HOST,
                                    .nranks = o->nranks,
                                    .nnodes = o->nodes,
                                    .max_ranks_per_node = (o->nranks + o->nodes - 1) / o->nodes,
                                    .protocols = device->protocols,
                                    .device_channels = device->channels,
                                    .most_peers = (int)device->peers,
                                    .min_channels = limits.least,
                                    .max_channels = limits.most};
  fill_ways(o, input);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) TT_TRY(tt_comm_buffer_bytes(device, p, &input->buffer_bytes[p]));
  tt_comm_fit_buffers(device, input->max_ranks_per_node, !input->all_mapped, input->buffer_bytes);
  return ncclSuccess;
}
