/* Choices in which a tuner has a say, the same on all ranks: rank 0's answers hold.
 *
 * A rank with a question that it has not had before asks its own tuner, sends question and answer to rank 0, and waits
 * for rank 0's answer. Rank 0's service thread replies, and asks its tuner if its user has not come to that question
 * yet. So nobody waits for a user's call, whatever the order in which ranks use their communicators, and ranks that
 * disagree on what they call get an answer each, before their signatures are compared. An answer never changes; who
 * answers otherwise than rank 0 is named.
 *
 * With a tuner that asks to be asked again (tt_tuner_asks_again) only rank 0's is asked, since it may go by what it has
 * seen, and a kind of calls has a question for each of its epochs (epochs.h). Rank 0 keeps an answer until all ranks
 * have it. Where some are far behind others, epochs become longer: by twice for each answer more that it has to keep.
 */
#ifndef TT_PLAN_AGREED_H
#define TT_PLAN_AGREED_H

#include "bootstrap/bootstrap.h"
#include "tuning/tuner.h"

struct tt_agreed;

struct tt_agreed_config {
  struct tt_bootstrap *bootstrap;
  const struct tt_tuning *tuning;
  struct tt_tuner *tuner; /* outlives the object, as the others do */
  int rank, nranks;
};

/* On all ranks, before a barrier of the bootstrap: rank 0 answers from now on. */
ncclResult_t tt_agreed_create(const struct tt_agreed_config *config, struct tt_agreed **out);
/* NULL is allowed. `fine`: rank 0 leaves behind, for ranks that are late, the answers by which it went. */
void tt_agreed_destroy(struct tt_agreed *agreed, bool fine);

/* Before a collective is chosen for: counts a call of its kind. `*choice` is 0 if the tuner does not ask to be asked
 * again; else tt_agreed_choose has another outcome than for a call of the kind with another number. May wait like that.
 */
ncclResult_t tt_agreed_count(struct tt_agreed *agreed, const struct tt_tuner_query *kind, uint64_t *choice);
/* The last call that was counted of the kind of `choice` does not take place. False: more were taken back than can be.
 */
bool tt_agreed_take_back(struct tt_agreed *agreed, uint64_t choice);

/* The choice of a collective that tuners are asked about; of the query what says its kind is read. May wait for rank 0;
 * ends if it is gone, with the abort flag, or at the bootstrap's deadline. One thread at a time. */
ncclResult_t tt_agreed_choose(struct tt_agreed *agreed, const struct tt_tuner_query *query, struct tt_choice *choice);

#endif
