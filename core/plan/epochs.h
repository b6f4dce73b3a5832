/* Calls by their kind, for tuners that ask to be asked again: a kind's calls come in epochs, each of which goes by one
 * answer. Only counts; who asks, and where answers come from, is agreed.c's. One thread at a time.
 *
 * All ranks count alike, so that they come to the same questions at the same calls: a call counts when it is planned,
 * also one that is captured into a graph, whatever repeats that later. */
#ifndef TT_PLAN_EPOCHS_H
#define TT_PLAN_EPOCHS_H

#include "tuning/tuner.h"

/* Kinds that are kept at most. */
#define TT_EPOCHS_KINDS 32768

struct tt_epochs;

struct tt_epoch {
  struct tt_tuner_query query; /* its question */
  struct tt_tuner_answer answer;
  bool known;      /* `answer` is there */
  uint64_t made;   /* calls in it so far */
  uint64_t choice; /* not 0: the same for all answers of a kind that follow each other and say the same */
};

ncclResult_t tt_epochs_create(struct tt_epochs **out);
void tt_epochs_destroy(struct tt_epochs *epochs); /* NULL is allowed */

/* The epoch that calls of a kind are in; of the query only what says the kind is read. *out is NULL if there are too
 * many kinds. */
ncclResult_t tt_epochs_look(struct tt_epochs *epochs, const struct tt_tuner_query *kind, struct tt_epoch **out);
/* The same for one more call, which may begin a new one. */
ncclResult_t tt_epochs_count(struct tt_epochs *epochs, const struct tt_tuner_query *kind, struct tt_epoch **out);
/* Its answer is known from now on. */
void tt_epochs_learn(struct tt_epoch *epoch, const struct tt_tuner_answer *answer);
/* The last call of a kind did not take place; `choice` is of that kind. False: it lies too far back. */
bool tt_epochs_take_back(struct tt_epochs *epochs, uint64_t choice);

#endif
