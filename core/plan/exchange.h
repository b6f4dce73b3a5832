/* A rank's messages of one group that go straight from the sender's buffer to the receiver's: algorithm Mapped, which
 * is one work for what the rank sends and what it receives (program/mapped_message.c).
 *
 * Mapped works run alone, one after another. So that no rank waits for a message behind another one that waits for this
 * rank, a group's messages go in place only if one work does all of them: at most one that is sent to another rank, and
 * one, of the same size, that is received, from the same rank or from another one. That work tells "ready" before it
 * waits for anything, and so behaves as messages that run beside each other. Of a group with more messages all are
 * copied, and so are both where one cannot go in place: who decides sees to that (pairs.h, offers.h).
 *
 * What is in place has no buffer between: who sends waits until the receiver has come to it. Users must not count on
 * buffers anyway, whose size they do not know; of what they do count on, offers.h says what is still possible. */
#ifndef TT_PLAN_EXCHANGE_H
#define TT_PLAN_EXCHANGE_H

#include "plan/plan.h"

struct tt_exchange {
  const struct tt_task *send, *recv; /* NULL: none */
  int to, from;                      /* -1: none */
  size_t bytes;                      /* of each */
  void *target;                      /* of `to`: where its output lies for this rank's device, once that is known */
};

/* Whether the messages of a group's tasks are such, and worth it. Local, and the same each time. */
bool tt_exchange_find(struct ncclComm *comm, const struct tt_task *tasks, struct tt_exchange *exchange);
/* Whether a task is a message of another rank's that would go in place if all else allows it, for its size. */
bool tt_exchange_may(struct ncclComm *comm, const struct tt_task *task);
/* Makes the work. */
ncclResult_t tt_exchange_plan(struct tt_plan *plan, const struct tt_exchange *exchange);
/* The ranks that a message's work sends to and receives from; -1: none. */
int tt_exchange_to(const struct tt_work *work);
int tt_exchange_from(const struct tt_work *work);

#endif
