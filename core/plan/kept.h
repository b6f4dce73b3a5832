/* Works that are kept for the next call like theirs. Planning a collective takes longer than all else that the host
 * does for it, and on devices with streams a work may be used again as it is: launching it copied what was needed. So
 * who needs a work takes one out, and gives it back when it was launched. A work is known by what its signature says.
 * Its number, tt_work.repeat, tells the device that it comes again; who makes works leaves it 0. One thread at a time.
 */
#ifndef TT_PLAN_KEPT_H
#define TT_PLAN_KEPT_H

#include "plan/plan.h"

/* A kept work for the task, with its connections, pointed at the task's buffers; NULL: there is none. `mapped`: as for
 * tt_plan_choose, since other works are chosen then; they have room for the members' buffers. `answer`: as
 * tt_agreed_count has it, since a tuner that is asked again may want another one; 0: there is none. */
struct tt_work *tt_kept_take(struct ncclComm *comm, const struct tt_task *task, bool mapped, uint64_t answer);
/* Keeps a work that was launched, in place of the one that was used last longest ago if there is no room; frees what
 * cannot be kept. */
void tt_kept_give(struct ncclComm *comm, struct tt_work *work);
void tt_kept_free(struct ncclComm *comm);

#endif
