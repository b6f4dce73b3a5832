/* Tuner ABI v2: one answer instead of a table. It becomes the cheapest figure of the table. */
#include "plugin/tuner_shim.h"

static bool possible(float cost)
{
  return cost >= 0;
}

static ncclResult_t ask(struct tt_tuner *tuner, const struct tt_tuner_question *question,
                        float (*table)[NCCL_NUM_PROTOCOLS], int nalgorithms, struct tt_tuner_reply *reply)
{
  int algorithm = NCCL_ALGO_UNDEF, protocol = NCCL_PROTO_UNDEF;
  int collnet = possible(table[NCCL_ALGO_COLLNET_CHAIN][NCCL_PROTO_SIMPLE]);
  int nvls =
      possible(table[NCCL_ALGO_NVLS][NCCL_PROTO_SIMPLE]) || possible(table[NCCL_ALGO_NVLS_TREE][NCCL_PROTO_SIMPLE]);
  ncclResult_t result =
      tuner->plugin->abi.v2.getCollInfo(tuner->ctx, (ncclFunc_t)question->collective, question->bytes, collnet, nvls,
                                        question->pipe_ops, &algorithm, &protocol, &reply->nchannels);
  if (result != ncclSuccess || (algorithm == NCCL_ALGO_UNDEF && protocol == NCCL_PROTO_UNDEF)) return result;
  reply->algorithm = algorithm;
  reply->protocol = protocol;
  reply->odd = algorithm < 0 || algorithm >= nalgorithms || protocol < 0 || protocol >= NCCL_NUM_PROTOCOLS;
  if (!reply->odd) table[algorithm][protocol] = 0;
  return ncclSuccess;
}

const struct tt_tuner_shim tt_tuner_shim_v2 = {
    .version = 2,
    .bytes = sizeof(ncclTuner_v2_t),
    .init = tt_tuner_v4_init,
    .ask = ask,
    .finalize = tt_tuner_v4_finalize,
};
