/* Launches of kernels, whatever they run. */
#include "base/check.h"
#include "kernels/cuda/attributes.h"
#include "kernels/cuda/executor.h"

/* Of the words most launches have few: to clear the rest takes as long as all other planning. */
void tt_cuda_launch_begin(const struct tt_device_context *context, struct tt_cuda_launch *launch)
{
  launch->mapped = context->mapped_at;
  launch->claim = context->executor->claim;
  launch->conns = context->executor->conns;
  launch->blob = NULL;
  launch->nitems = launch->nwords = launch->channels = launch->channel_quads = 0;
}

ncclResult_t tt_cuda_start(const struct tt_device_context *context, const void *kernel, unsigned nblocks,
                           unsigned threads, struct tt_cuda_launch *launch, cudaStream_t stream)
{
  void *arguments[] = {launch};
  dim3 grid = {nblocks, 1, 1}, block = {threads, 1, 1};
  struct tt_cuda_attribute_list *list = tt_cuda_attributes_of(context, nblocks), early;
  if (context->executor->begins_early) {
    early = list != NULL ? *list : (struct tt_cuda_attribute_list){0};
    tt_cuda_attributes_add_early(list = &early);
    context->executor->begins_early = false; /* nor is what this call may launch after it right behind the last one */
  }
  if (list == NULL || list->count == 0) {
    TT_CUDA_TRY(cudaLaunchKernel(kernel, grid, block, arguments, 0, stream), "launching a kernel");
    return ncclSuccess;
  }
  const cudaLaunchConfig_t config = {
      .gridDim = grid, .blockDim = block, .stream = stream, .attrs = list->attributes, .numAttrs = list->count};
  TT_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, arguments), "launching a kernel");
  return ncclSuccess;
}
