/* Collectives whose buffers all ranks have mapped: then ranks may read and write each other's (TT_ALGO_MAPPED). Whether
 * they do is the same on all ranks without asking them: windows are opened by all together, and a user promises to use
 * them at one offset on all ranks; where one group has all ranks, it is found out once for all of them (plan/plain.h);
 * of what is captured ranks have told each other (plan/captured.h). */
#ifndef TT_PLAN_MAPPED_H
#define TT_PLAN_MAPPED_H

#include "plan/plan.h"

/* By rank, as this rank's device reaches them. They live as long as the group is planned. */
struct tt_mapped_buffers {
  bool all; /* what a program uses of them is mapped by all; else the arrays mean nothing */
  void **inputs, **outputs;
};

/* There is a program for members' buffers for it, wherever they are. */
bool tt_mapped_possible(const struct ncclComm *comm, const struct tt_task *task);
/* Whether windows alone can tell all ranks that its buffers are mapped: what others touch must be what all ranks have,
 * and so at one offset. */
bool tt_mapped_by_windows(const struct tt_task *task);
/* Bytes of a rank's buffers that other ranks read or write; 0: none. */
struct tt_mapped_touched {
  size_t input, output;
};
/* Of a collective that has a program for members' buffers. */
struct tt_mapped_touched tt_mapped_touched(const struct ncclComm *comm, const struct tt_task *task, int rank);
/* What has to lie in windows, of this rank's buffers, for all ranks to choose alike by windows alone. */
struct tt_mapped_touched tt_mapped_promised(const struct ncclComm *comm, const struct tt_task *task);
/* It is in place, and there is no such program for that. */
bool tt_mapped_overlaps(const struct ncclComm *comm, const struct tt_task *task);

/* Looks the task's buffers up. Once for each collective of a plan, in their order. */
ncclResult_t tt_mapped_find(struct tt_plan *plan, const struct tt_task *task, struct tt_mapped_buffers *buffers);
/* Gives a work made with room for them the addresses; nothing if it has none. */
void tt_mapped_place(const struct tt_mapped_buffers *buffers, struct tt_work *work);
/* Whether a program uses members' buffers. Its work then has a single loop. */
bool tt_mapped_is(const struct tt_program *program);

#endif
