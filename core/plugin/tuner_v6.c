/* Tuner ABI v6: what v5 has, and getChunkSize behind it, which tuner.c calls. */
#include "plugin/tuner_shim.h"

const struct tt_tuner_shim tt_tuner_shim_v6 = {
    .version = 6,
    .bytes = sizeof(ncclTuner_v6_t),
    .init = tt_tuner_v5_init,
    .ask = tt_tuner_v4_ask,
    .finalize = tt_tuner_v4_finalize,
};
