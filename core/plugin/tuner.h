/* Tuners: finding and loading tuner plugins of any ABI version, and asking them. NCCL_TUNER_PLUGIN names them as NCCL
 * does; a comma list means alternatives. What answers come to is for core/tuning.
 *
 * Threads: any. The members of one context are called one at a time. */
#ifndef TT_PLUGIN_TUNER_H
#define TT_PLUGIN_TUNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tutti/tuner.h"

struct tt_tuner; /* a plugin with its context for one communicator */

/* What init is told. */
struct tt_tuner_request {
  uint64_t comm_id;
  size_t nranks, nnodes;
  ncclNvlDomainInfo_v6_t domains;
  ncclTunerConstants_v6_t constants;
  const char *net_path; /* of the net plugin's library, which may hold a tuner too; NULL: there is none */
  /* For tuners that ask to be asked again, as in tuttiTunerEpoch_v1_t; NULL: nothing is counted. */
  ncclResult_t (*net_stats)(void *core, tuttiNetStats_t *stats);
  void *core;
};

/* What came of it on one rank; plain bytes, for ranks to compare. */
#define TT_TUNER_NAME_BYTES 64
#define TT_TUNER_ASKS_AGAIN (UINT64_C(1) << 63) /* no bit of the ABI */
struct tt_tuner_offer {
  char name[TT_TUNER_NAME_BYTES]; /* "" if there is no tuner */
  int32_t version;
  int32_t result;    /* of its init: ncclSuccess if that did not fail */
  uint64_t features; /* TUTTI_TUNER_*, TT_TUNER_ASKS_AGAIN */
  char reason[256];  /* where there is none: what was tried */
};

/* Opens the first tuner that can be. *out is NULL, and the offer says why, if there is none or its init fails; a failed
 * init is reported. Says in the log, at INFO, what was chosen and passed over; warns of names in NCCL_TUNER_PLUGIN if
 * none of them came to anything. */
void tt_tuner_open(const struct tt_tuner_request *request, struct tt_tuner **out, struct tt_tuner_offer *offer);
/* Ends the context; the last one of a library unloads it. NULL is allowed. */
void tt_tuner_close(struct tt_tuner *tuner);

/* Whether all ranks have the same tuner, or none; else `why` names the first two that differ. */
bool tt_tuner_agree(const struct tt_tuner_offer *offers, int nranks, char *why, size_t why_size);

const char *tt_tuner_name(const struct tt_tuner *tuner);
const char *tt_tuner_path(const struct tt_tuner *tuner); /* of its library */
int tt_tuner_version(const struct tt_tuner *tuner);
uint64_t tt_tuner_features(const struct tt_tuner *tuner); /* TUTTI_TUNER_*, 0 for what its version cannot do */

/* Whether it asks to be asked again about a kind of calls. */
bool tt_tuner_asks_again(const struct tt_tuner *tuner);

struct tt_tuner_question {
  int collective; /* ncclFuncBroadcast to ncclFuncAllReduce */
  size_t bytes;
  int pipe_ops, reg_buff;
  /* For tuners that ask to be asked again: see tuttiTunerEpoch_v1_t. */
  uint32_t variant;
  uint64_t epoch, calls;
};
struct tt_tuner_reply {
  int nchannels;  /* 0: no opinion */
  uint64_t again; /* after so many calls it wants to be asked again; 0: never */
  /* v2 that set one of the two only, or numbers that do not exist: they are here and not in the table. */
  bool odd;
  int algorithm, protocol;
};
/* Lets the tuner change the table of `nalgorithms` rows. v2's answer becomes a figure of 0, even where the table says
 * that the choice is impossible. An error is not reported here, and the table
 * may then hold anything. */
ncclResult_t tt_tuner_ask(struct tt_tuner *tuner, const struct tt_tuner_question *question,
                          float (*table)[NCCL_NUM_PROTOCOLS], int nalgorithms, struct tt_tuner_reply *reply);
/* Lets it change the bytes that a channel sends at once. Nothing happens where it has no getChunkSize. */
ncclResult_t tt_tuner_ask_chunk(struct tt_tuner *tuner, const struct tt_tuner_question *question, int algorithm,
                                int protocol, int nchannels, size_t *chunk);

/* ---- Looking: what would be loaded, for tutti-info ---- */

struct tt_tuner_report {
  char asked[256];      /* an entry of NCCL_TUNER_PLUGIN, or a file that is looked for without one */
  const char *asked_by; /* who names it */
  char path[1024];      /* the file that was loaded; "" if none */
  char name[TT_TUNER_NAME_BYTES];
  int version; /* the ABI version that would be used; 0: none */
  bool usable; /* of these the first is taken, if its init does not fail */
  char reason[384];
};

/* Fills *report for candidate i, in order of preference; false past the end. Loads it for the time of the call, and
 * begins no context. `net_path`: of the net plugin that would be used, whose library may hold a tuner too, or NULL. */
bool tt_tuner_report(int i, const char *net_path, struct tt_tuner_report *report);

/* Forgets the list of libraries, so that the environment is read anew; for tests. ncclInvalidUsage while any is used.
 */
ncclResult_t tt_tuner_reset(void);

#endif
