/* Tuner ABI v4: a table of costs, and whether buffers are registered. */
#include "plugin/shim.h"
#include "plugin/tuner_shim.h"

ncclResult_t tt_tuner_v4_init(struct tt_tuner *tuner, struct tt_tuner_request *request)
{
  const ncclTuner_v4_t *abi = &tuner->plugin->abi.v4;
  return abi->init ? abi->init(request->nranks, request->nnodes, tt_net_log, &tuner->ctx) : ncclSuccess;
}

ncclResult_t tt_tuner_v4_ask(struct tt_tuner *tuner, const struct tt_tuner_question *question,
                             float (*table)[NCCL_NUM_PROTOCOLS], int nalgorithms, struct tt_tuner_reply *reply)
{
  return tuner->plugin->abi.v4.getCollInfo(tuner->ctx, (ncclFunc_t)question->collective, question->bytes,
                                           question->pipe_ops, (float **)table, nalgorithms, NCCL_NUM_PROTOCOLS,
                                           question->reg_buff, &reply->nchannels);
}

ncclResult_t tt_tuner_v4_finalize(struct tt_tuner *tuner)
{
  const ncclTuner_v4_t *abi = &tuner->plugin->abi.v4;
  return abi->destroy ? abi->destroy(tuner->ctx) : ncclSuccess;
}

const struct tt_tuner_shim tt_tuner_shim_v4 = {
    .version = 4,
    .bytes = sizeof(ncclTuner_v4_t),
    .init = tt_tuner_v4_init,
    .ask = tt_tuner_v4_ask,
    .finalize = tt_tuner_v4_finalize,
};
