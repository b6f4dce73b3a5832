/* A loaded tuner of any version, and the shim that presents it as v6. One file a version, tuner_vN.c; a function that
 * suits several versions lives in the newest of them. */
#ifndef TT_PLUGIN_TUNER_SHIM_H
#define TT_PLUGIN_TUNER_SHIM_H

#include <pthread.h>
#include "plugin/tuner.h"

struct tt_tuner_shim;
struct tt_tuner_library; /* tuner_list.h */

/* A plugin's struct, copied and never written after that, zero behind what its version has. */
struct tt_tuner_plugin {
  const struct tt_tuner_shim *shim;
  union {
    ncclTuner_v2_t v2;
    ncclTuner_v3_t v3;
    ncclTuner_v4_t v4;
    ncclTuner_v5_t v5;
    ncclTuner_v6_t v6;
  } abi;
  uint64_t features;
  tuttiTunerExtension_v1_t extension; /* zero where it has none, and behind what it has */
};

struct tt_tuner {
  const struct tt_tuner_plugin *plugin;
  struct tt_tuner_library *library;
  pthread_mutex_t lock; /* held during calls */
  void *ctx;
  bool asks_again;
  ncclResult_t (*net_stats)(void *core, tuttiNetStats_t *stats); /* of the request */
  void *core;
};

struct tt_tuner_shim {
  int version;
  size_t bytes; /* of the plugin's struct */
  ncclResult_t (*init)(struct tt_tuner *tuner, struct tt_tuner_request *request);
  ncclResult_t (*ask)(struct tt_tuner *tuner, const struct tt_tuner_question *question,
                      float (*table)[NCCL_NUM_PROTOCOLS], int nalgorithms, struct tt_tuner_reply *reply);
  ncclResult_t (*finalize)(struct tt_tuner *tuner);
};

#define TT_TUNER_OLDEST 2
#define TT_TUNER_NEWEST 6
extern const struct tt_tuner_shim tt_tuner_shim_v2, tt_tuner_shim_v3, tt_tuner_shim_v4, tt_tuner_shim_v5,
    tt_tuner_shim_v6;

/* The shim of a version, or NULL. */
const struct tt_tuner_shim *tt_tuner_shim_of(int version);
/* Copies the struct at `symbol`, and notes the extension if there is one. Returns the name of a member that is NULL and
 * must not be, or NULL. */
const char *tt_tuner_bind(struct tt_tuner_plugin *plugin, const struct tt_tuner_shim *shim, const void *symbol,
                          const void *extension);

ncclResult_t tt_tuner_v5_init(struct tt_tuner *tuner, struct tt_tuner_request *request);
ncclResult_t tt_tuner_v4_init(struct tt_tuner *tuner, struct tt_tuner_request *request);
ncclResult_t tt_tuner_v4_ask(struct tt_tuner *tuner, const struct tt_tuner_question *question,
                             float (*table)[NCCL_NUM_PROTOCOLS], int nalgorithms, struct tt_tuner_reply *reply);
ncclResult_t tt_tuner_v4_finalize(struct tt_tuner *tuner);

#endif
