/* What a tuner says, and what becomes of it: a question is put to a plugin, its changed table becomes an answer of
 * plain bytes, which can travel to other ranks, and an answer becomes a choice and a sentence that explains it. Nothing
 * here talks to other ranks: see plan/agreed.h.
 *
 * The table holds what NCCL_ALGO and NCCL_PROTO leave, so that these win over tuners. */
#ifndef TT_TUNING_TUNER_H
#define TT_TUNING_TUNER_H

#include "plugin/tuner.h"
#include "tuning/tuning.h"

/* What is asked; a question has one answer for a communicator's whole life. Plain bytes, no padding. All but `calls`
 * says which question it is, and all but the last two members which kind of calls it is about. */
struct tt_tuner_query {
  int32_t collective; /* TT_FUNC_BROADCAST to TT_FUNC_ALL_REDUCE */
  uint32_t without;   /* TT_WITHOUT_* */
  uint64_t bytes;
  /* Of tuners that ask to be asked again, else 0: questions about this kind before this one, and calls since the last.
   */
  uint64_t epoch, calls;
};

enum tt_tuner_said {
  TT_SAID_NOTHING,     /* it changed nothing: the core chooses */
  TT_SAID_PAIR,        /* `algorithm` with `protocol`, whose figure it changed, is the cheapest */
  TT_SAID_REST,        /* the cheapest figure is one that it left alone, or of an algorithm of which it does not know */
  TT_SAID_IMPOSSIBLE,  /* it only gave figures to pairs that are no candidates */
  TT_SAID_FORBADE_ALL, /* nothing is left */
  TT_SAID_ODD,         /* numbers that do not exist, or half an answer */
  TT_SAID_FAILED,      /* getCollInfo returned `result` */
  TT_SAID_TOO_MUCH,    /* it was not asked: there is no room for more answers */
};

/* Plain bytes, no padding. */
struct tt_tuner_answer {
  int32_t said;
  int32_t algorithm, protocol;                 /* of PAIR and REST */
  int32_t refused_algorithm, refused_protocol; /* the cheapest pair that is no candidate and got a figure; -1: none */
  int32_t nchannels;                           /* as it was written */
  int32_t result, chunk_result;                /* of getCollInfo, getChunkSize */
  uint64_t chunk;                              /* as getChunkSize wrote it; 0: it left it alone */
  uint64_t again;                              /* calls after which it is asked again; 0: never */
};

/* From the table before and after, of `nalgorithms` rows of which the tuner knows, to its answer. Both have all rows of
 * Tutti's. Pure. */
void tt_tuner_weigh(const float before[TT_NUM_ALGORITHMS][TT_NUM_PROTOCOLS],
                    const float after[TT_NUM_ALGORITHMS][TT_NUM_PROTOCOLS], int nalgorithms,
                    const struct tt_tuner_reply *reply, struct tt_tuner_answer *answer);

/* Asks a plugin. */
void tt_tuner_answer(const struct tt_tuning *tuning, struct tt_tuner *tuner, const struct tt_tuner_query *query,
                     struct tt_tuner_answer *answer);

/* The choice that follows from an answer; its reason tells what the tuner had to do with it. An answer that this
 * communicator cannot have is ncclInternalError. */
ncclResult_t tt_tuner_obey(const struct tt_tuning *tuning, const struct tt_tuner_query *query,
                           const struct tt_tuner_answer *answer, struct tt_choice *choice);

/* "Ring with LL, 4 channels", "an error (3)": what was said. */
void tt_tuner_describe(const struct tt_tuner_answer *answer, char *text, size_t size);
/* Whether the answer deserves a warning: the tuner failed, or said what cannot be. */
bool tt_tuner_is_wrong(const struct tt_tuner_answer *answer);

/* NCCL's constants, as far as Tutti's cost model has the like. */
void tt_tuner_fill_constants(enum tt_tuning_kind kind, ncclTunerConstants_v6_t *constants);

#endif
