/* Tuner ABI v5: init is told the communicator's id, its domains and the constants of the cost model. */
#include "plugin/shim.h"
#include "plugin/tuner_shim.h"

ncclResult_t tt_tuner_v5_init(struct tt_tuner *tuner, struct tt_tuner_request *request)
{
  const ncclTuner_v5_t *abi = &tuner->plugin->abi.v5;
  if (!abi->init) return ncclSuccess;
  return abi->init(&tuner->ctx, request->comm_id, request->nranks, request->nnodes, tt_net_log, &request->domains,
                   &request->constants);
}

const struct tt_tuner_shim tt_tuner_shim_v5 = {
    .version = 5,
    .bytes = sizeof(ncclTuner_v5_t),
    .init = tt_tuner_v5_init,
    .ask = tt_tuner_v4_ask,
    .finalize = tt_tuner_v4_finalize,
};
