/* See as_messages.h. */
#include "api/as_messages.h"

#include "base/check.h"
#include "plan/plan.h"
#include "tuning/tuning.h"

bool tt_api_is_as_messages(const struct ncclComm *comm, int collective)
{
  return comm->tuning != NULL && tt_tuning_as_messages(comm->tuning, collective);
}

static ncclResult_t add(struct ncclComm *comm, const struct tt_task *task, int collective, const void *input,
                        void *output, int peer)
{
  struct tt_task message = *task;
  message.collective = collective;
  message.input = input;
  message.output = output;
  message.root = peer;
  return tt_plan_add_task(comm, &message);
}

/* Block `peer` of a buffer that has one for each rank. */
static char *block(const struct tt_task *task, const void *buffer, int peer)
{
  return (char *)(uintptr_t)buffer + (size_t)peer * task->count * tt_datatype_bytes(task->datatype);
}

static ncclResult_t add_send(struct ncclComm *comm, const struct tt_task *task, int peer)
{
  const void *from = task->collective == TT_FUNC_GATHER ? task->input : block(task, task->input, peer);
  return add(comm, task, TT_FUNC_SEND, from, NULL, peer);
}

static ncclResult_t add_receive(struct ncclComm *comm, const struct tt_task *task, int peer)
{
  void *to = task->collective == TT_FUNC_SCATTER ? task->output : block(task, task->output, peer);
  return add(comm, task, TT_FUNC_RECV, NULL, to, peer);
}

ncclResult_t tt_api_check_messages(const char *function, const struct ncclComm *comm, const struct tt_task *task)
{
  if (task->collective != TT_FUNC_ALL_TO_ALL || tt_plan_apart(comm, task)) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "%s: sendbuff and recvbuff overlap, which among %d ranks of device %s, whose programs name %u others "
                 "at most, cannot be done: receive into another buffer",
                 function, comm->nranks, comm->device->name, comm->device->peers);
}

ncclResult_t tt_api_as_messages(struct ncclComm *comm, const struct tt_task *task)
{
  bool all = task->collective == TT_FUNC_ALL_TO_ALL, root = comm->rank == task->root;
  bool gathers = task->collective == TT_FUNC_GATHER;
  for (int peer = 0; peer < comm->nranks; peer++) {
    if (all || (gathers ? peer == task->root : root)) TT_TRY(add_send(comm, task, peer));
    if (all || (gathers ? root : peer == task->root)) TT_TRY(add_receive(comm, task, peer));
  }
  return ncclSuccess;
}
