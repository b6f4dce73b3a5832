/* Captured messages in place for the life of their graph (NCCL_GRAPH_REGISTER), between any two ranks of a host. Only
 * the ranks of a message tell each other of it; they mean the same one by its number, the k-th from one to the other.
 *
 * At the end of a group that is captured the receiver offers its buffer, and the sender takes it or declines. Nothing
 * of the group runs yet, so that it may wait for that; but nothing may come to stand still that ran before:
 *
 *   - The sender waits a second (TUTTI_CAPTURE_WAIT) for the offer, then declines that message for good. What it goes
 * on with counts on buffers from then on, so that it has nothing in place until the receiver has come to that message,
 * or a later one. So two ranks that both capture a send first, and a receive in a later group, copy both.
 *   - The receiver waits longer for the sender to come to the message, since it cannot end before that anyway, and then
 *     withdraws; the sender's library answers that, whatever its user does. So one thread may capture a rank's receive
 *     first and the send of another of its ranks then.
 *   - Both become shorter with each time that it was in vain with that rank, and are what they were after one that was
 *     not.
 *   - Whether a message is in place is decided in one place, the sender's, before it answers or by its library that it
 *     will not be; so both sides come to the same.
 *
 * What a rank sends and receives in a group is one work (exchange.h): both are in place, or both are copied. So it
 * takes an offer for what it sends only for the time being, if what it receives is not certain. Ranks that are each
 * other's partners may form a ring: each tells the next its own number as soon as it has that rank's offer and can use
 * it, and passes on those that are lower than its own. The rank whose number has come round knows that all have offers;
 * it says so, and each passes that on. A rank that has no offer, or cannot use it, tells the next that it declines,
 * which makes that one decline too. Ranks whose messages form a chain copy: there the last has nothing that it sends,
 * or the first nothing that it receives, which the offers tell, and they decline.
 *
 * What then runs keeps to the order of the captures. A message in place ends when both ranks have come to it; that they
 * were in groups at the same time when they were captured shows that they will, unless a program counts on how much
 * fits the buffers of others of its messages, which has no meaning in NCCL, whose sends may wait for their receivers.
 */
#ifndef TT_PLAN_OFFERS_H
#define TT_PLAN_OFFERS_H

#include "plan/exchange.h"

struct tt_offers; /* a communicator's; NULL: it has none, and the other calls do nothing */

/* On all ranks, before a barrier of the bootstrap, after tt_captured_open. */
ncclResult_t tt_offers_open(struct ncclComm *comm);

/* Finds what of a group's tasks is to be agreed on, if they are captured. Local. *wanted: there is something. */
ncclResult_t tt_offers_prepare(struct ncclComm *comm, const struct tt_task *tasks, bool *wanted);
/* Agrees with the ranks that it is about, or finds that it is not to be. One thread that has several of them needs
 * threads. Ends with the communicator's failure or abort, if a rank that is waited for is gone, or at the bootstrap's
 * deadline. */
ncclResult_t tt_offers_agree(struct ncclComm *comm);
/* What the group does in place; NULL: nothing was agreed. Until the group is over. */
const struct tt_exchange *tt_offers_find(const struct ncclComm *comm);
/* The group is over, whatever became of it. */
void tt_offers_forget(struct ncclComm *comm);

/* Messages to a rank and from it were numbered: what it says of those is answered. Cheap. */
void tt_offers_pass(struct ncclComm *comm, int peer);

#endif
