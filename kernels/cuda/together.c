/* Short works side by side in one kernel: the sends and receives of a group, and its copies. Each block runs a channel
 * of one of them as if that work had been launched alone. */
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"

/* Works of a chain follow each other, and all blocks must run at once, since works wait for those of peers that may
 * wait for others here. */
static bool are_independent(const struct tt_device_context *context, struct tt_work *const *works, int nworks,
                            uint32_t *nblocks)
{
  *nblocks = 0;
  for (int w = 0; w < nworks; w++) {
    *nblocks += works[w]->nchannels;
    if (*nblocks > (uint32_t)context->processors || works[w]->signature.collective != TT_FUNC_SEND_RECV) return false;
    for (int other = 0; other < w; other++)
      if (works[other]->order == works[w]->order) return false;
  }
  return true;
}

/* Writes them all in one form; none of them is in `shape` if that cannot be. */
static ncclResult_t put_all(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                            enum tt_cuda_phase phase, struct tt_cuda_launch *launch, struct tt_cuda_short_shape *shape)
{
  uint32_t words[TT_CUDA_PARAM_WORDS], nblocks = launch->nitems, item = 0;
  const bool exchanges = phase == TT_CUDA_WHOLE;
  struct tt_cuda_short_shape all = {.form = exchanges ? TT_CUDA_FORM_EXCHANGE : TT_CUDA_FORM_SHORT}, one;
  all.nwords = (nblocks + 3) / 4 * 4;
  for (int w = 0; w < nworks; w++) {
    TT_TRY(tt_cuda_get_short(context, works[w], phase, words, &one));
    if (one.nwords == 0 || one.form == TT_CUDA_FORM_MAPPED || all.nwords + one.nwords > TT_CUDA_PARAM_WORDS ||
        tt_cuda_is_exchange(one.form) != exchanges)
      return ncclSuccess;
    memcpy(launch->words + all.nwords, words, one.nwords * sizeof(*words));
    for (uint32_t c = 0; c < works[w]->nchannels; c++)
      launch->words[item++] = all.nwords / 4 | (exchanges ? all.nwords / 4 + one.channels + c * one.channel_quads : c)
                                                   << 16;
    all.nwords += (one.nwords + 3) / 4 * 4;
    all.nsteps += one.nsteps;
    all.threads = TT_MAX(all.threads, one.threads);
    if (one.form == TT_CUDA_FORM_EXCHANGE_DEEP) all.form = one.form;
  }
  *shape = all;
  return ncclSuccess;
}

ncclResult_t tt_cuda_put_together(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                                  struct tt_cuda_launch *launch, struct tt_cuda_short_shape *shape)
{
  *shape = (struct tt_cuda_short_shape){0};
  if (!are_independent(context, works, nworks, &launch->nitems)) return ncclSuccess;
  TT_TRY(put_all(context, works, nworks, TT_CUDA_WHOLE, launch, shape));
  if (shape->nwords == 0) TT_TRY(put_all(context, works, nworks, TT_CUDA_GENERAL, launch, shape));
  launch->nwords = shape->nwords;
  return ncclSuccess;
}
