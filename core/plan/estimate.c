/* How long the tasks of an open group would take, by the tuning's cost model. Runs nothing. */
#include "base/check.h"
#include "plan/plan.h"
#include "program/emit.h"

/* The collectives of a communicator run one after another; messages between ranks run beside each other, so that the
 * longest counts. */
ncclResult_t tt_plan_estimate(const struct ncclComm *comm, float *microseconds)
{
  float messages = 0;
  *microseconds = 0;
  if (comm->nranks == 1) return ncclSuccess; /* copies, of which the model says nothing */
  for (const struct tt_task *task = comm->tasks; task != NULL; task = task->next) {
    bool message = task->collective == TT_FUNC_SEND || task->collective == TT_FUNC_RECV;
    size_t blocks = tt_collective_has_blocks(task->collective) ? (size_t)comm->nranks : 1;
    size_t bytes = task->count * tt_datatype_bytes(task->datatype) * blocks;
    struct tt_choice choice;
    if (message)
      TT_TRY(tt_tuning_choose(comm->tuning, TT_FUNC_SEND_RECV, bytes, &choice));
    else
      TT_TRY(tt_plan_choose(comm, task, bytes, false, &choice));
    if (message)
      messages = TT_MAX(messages, choice.microseconds);
    else
      *microseconds += choice.microseconds;
  }
  *microseconds += messages;
  return ncclSuccess;
}
