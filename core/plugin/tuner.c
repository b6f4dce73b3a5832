/* Calls into tuners; see tuner.h. Finding and loading them is in tuner_list.c. */
#include "plugin/tuner.h"

#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "plugin/shim.h"
#include "plugin/tuner_list.h"
#include "plugin/tuner_shim.h"

const struct tt_tuner_shim *tt_tuner_shim_of(int version)
{
  static const struct tt_tuner_shim *const shims[] = {&tt_tuner_shim_v2, &tt_tuner_shim_v3, &tt_tuner_shim_v4,
                                                      &tt_tuner_shim_v5, &tt_tuner_shim_v6};
  return version < TT_TUNER_OLDEST || version > TT_TUNER_NEWEST ? NULL : shims[version - TT_TUNER_OLDEST];
}

const char *tt_tuner_bind(struct tt_tuner_plugin *plugin, const struct tt_tuner_shim *shim, const void *symbol,
                          const void *extension)
{
  const tuttiTunerExtension_v1_t *more = extension;
  memset(plugin, 0, sizeof *plugin);
  plugin->shim = shim;
  memcpy(&plugin->abi, symbol, shim->bytes);
  if (!plugin->abi.v6.name) plugin->abi.v6.name = "unnamed";
  if (more && more->size >= offsetof(tuttiTunerExtension_v1_t, asksAgain) && shim->version > 2) { /* v2 has no table */
    memcpy(&plugin->extension, more, TT_MIN(more->size, sizeof *more));
    plugin->features = more->features & TUTTI_TUNER_ALL_ALGORITHMS;
  }
  return plugin->abi.v6.getCollInfo ? NULL : "getCollInfo";
}

const char *tt_tuner_name(const struct tt_tuner *tuner)
{
  return tuner->plugin->abi.v6.name;
}

int tt_tuner_version(const struct tt_tuner *tuner)
{
  return tuner->plugin->shim->version;
}

uint64_t tt_tuner_features(const struct tt_tuner *tuner)
{
  return tuner->plugin->features;
}

bool tt_tuner_asks_again(const struct tt_tuner *tuner)
{
  return tuner->asks_again;
}

const char *tt_tuner_path(const struct tt_tuner *tuner)
{
  return tuner->library->path;
}

static ncclResult_t ask_epoch(struct tt_tuner *tuner, const struct tt_tuner_question *question,
                              float (*table)[NCCL_NUM_PROTOCOLS], int nalgorithms, struct tt_tuner_reply *reply)
{
  const tuttiTunerEpoch_v1_t epoch = {.size = sizeof epoch,
                                      .collType = (ncclFunc_t)question->collective,
                                      .nBytes = question->bytes,
                                      .numPipeOps = question->pipe_ops,
                                      .regBuff = question->reg_buff,
                                      .variant = question->variant,
                                      .epoch = question->epoch,
                                      .calls = question->calls,
                                      .netStats = tuner->net_stats,
                                      .core = tuner->core};
  return tuner->plugin->extension.getEpochInfo(tuner->ctx, &epoch, (float **)table, nalgorithms, NCCL_NUM_PROTOCOLS,
                                               &reply->nchannels, &reply->again);
}

ncclResult_t tt_tuner_ask(struct tt_tuner *tuner, const struct tt_tuner_question *question,
                          float (*table)[NCCL_NUM_PROTOCOLS], int nalgorithms, struct tt_tuner_reply *reply)
{
  memset(reply, 0, sizeof *reply);
  pthread_mutex_lock(&tuner->lock);
  tt_net_before();
  ncclResult_t result = tuner->asks_again ? ask_epoch(tuner, question, table, nalgorithms, reply)
                                          : tuner->plugin->shim->ask(tuner, question, table, nalgorithms, reply);
  pthread_mutex_unlock(&tuner->lock);
  return result;
}

ncclResult_t tt_tuner_ask_chunk(struct tt_tuner *tuner, const struct tt_tuner_question *question, int algorithm,
                                int protocol, int nchannels, size_t *chunk)
{
  const ncclTuner_v6_t *abi = &tuner->plugin->abi.v6; /* older versions have zeros there */
  if (!abi->getChunkSize) return ncclSuccess;
  pthread_mutex_lock(&tuner->lock);
  tt_net_before();
  ncclResult_t result = abi->getChunkSize(tuner->ctx, (ncclFunc_t)question->collective, question->bytes, algorithm,
                                          protocol, nchannels, chunk);
  pthread_mutex_unlock(&tuner->lock);
  return result;
}

/* "Example (v5)", or "none (libnccl-tuner.so: not installed)". */
static void describe(const struct tt_tuner_offer *offer, char *text, size_t size)
{
  const int name = TT_TUNER_NAME_BYTES - 1, reason = (int)sizeof offer->reason - 1;
  if (offer->name[0])
    snprintf(text, size, "%.*s (v%d)", name, offer->name, (int)offer->version);
  else
    snprintf(text, size, "none (%.*s)", reason, offer->reason);
}

bool tt_tuner_agree(const struct tt_tuner_offer *offers, int nranks, char *why, size_t why_size)
{
  char zero[320], other[320];
  for (int r = 1; r < nranks; r++) {
    if (strncmp(offers[r].name, offers[0].name, TT_TUNER_NAME_BYTES) == 0 && offers[r].version == offers[0].version &&
        offers[r].features == offers[0].features)
      continue;
    describe(&offers[0], zero, sizeof zero);
    describe(&offers[r], other, sizeof other);
    snprintf(why, why_size, "rank 0 has %s, rank %d has %s", zero, r, other);
    return false;
  }
  return true;
}
