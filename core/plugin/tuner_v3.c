/* Tuner ABI v3: a table of costs. */
#include "plugin/tuner_shim.h"

static ncclResult_t ask(struct tt_tuner *tuner, const struct tt_tuner_question *question,
                        float (*table)[NCCL_NUM_PROTOCOLS], int nalgorithms, struct tt_tuner_reply *reply)
{
  return tuner->plugin->abi.v3.getCollInfo(tuner->ctx, (ncclFunc_t)question->collective, question->bytes,
                                           question->pipe_ops, (float **)table, nalgorithms, NCCL_NUM_PROTOCOLS,
                                           &reply->nchannels);
}

const struct tt_tuner_shim tt_tuner_shim_v3 = {
    .version = 3,
    .bytes = sizeof(ncclTuner_v3_t),
    .init = tt_tuner_v4_init,
    .ask = ask,
    .finalize = tt_tuner_v4_finalize,
};
