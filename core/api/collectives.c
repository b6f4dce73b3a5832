/* The calls that move data: each checks its arguments and leaves a task in its group. */
#include "api/as_messages.h"
#include "api/check.h"
#include "api/export.h"
#include "api/group.h"
#include "api/handle.h"
#include "api/redop.h"
#include "base/check.h"
#include "plan/plan.h"
#include "program/emit.h"

static void log_call(const struct ncclComm *comm, const char *name, const struct tt_task *task, uint64_t op_count,
                     cudaStream_t stream)
{
  TT_INFO(TT_COLL,
          "%s: opCount %lx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d] stream %p",
          name, (unsigned long)op_count, task->input, task->output, task->count, (int)task->datatype, (int)task->op,
          task->root, (const void *)comm, comm->nranks, (void *)stream);
}

/* A collective of no elements is nothing; a send or receive of none still meets its partner. */
static bool is_nothing(const struct tt_task *task)
{
  return task->count == 0 && task->collective != TT_FUNC_SEND && task->collective != TT_FUNC_RECV;
}

static ncclResult_t enqueue(const char *function, struct ncclComm *comm, const struct tt_task *task,
                            cudaStream_t stream)
{
  struct tt_task on_stream = *task;
  on_stream.stream = stream;
  TT_TRY(tt_redop_resolve(function, comm, &on_stream));
  TT_TRY(tt_api_check_task(function, comm, &on_stream, stream));
  const bool messages = !is_nothing(task) && tt_api_is_as_messages(comm, task->collective);
  if (messages) TT_TRY(tt_api_check_messages(function, comm, &on_stream));
  tt_log_set_device(comm->device_index);
  if (!is_nothing(task)) TT_TRY(tt_group_join(comm));
  on_stream.op_count = tt_plan_number(comm, task);
  log_call(comm, function + 4, task, on_stream.op_count, stream);
  if (is_nothing(task)) return ncclSuccess;
  return messages ? tt_api_as_messages(comm, &on_stream) : tt_plan_add_task(comm, &on_stream);
}

static ncclResult_t call(const char *function, struct ncclComm *comm, const struct tt_task *task, cudaStream_t stream)
{
  tt_group_start();
  ncclResult_t result = tt_handle_hold_own(function, comm);
  if (result == ncclSuccess) {
    result = enqueue(function, comm, task, stream);
    tt_handle_let_go(comm); /* its group holds it from here on */
  }
  tt_group_note(result);
  ncclResult_t ended = tt_group_end();
  return result != ncclSuccess ? result : ended;
}

TT_EXPORT(ncclResult_t, ncclAllReduce,
          (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
           cudaStream_t stream))
{
  struct tt_task task = {.collective = TT_FUNC_ALL_REDUCE,
                         .input = sendbuff,
                         .output = recvbuff,
                         .count = count,
                         .datatype = datatype,
                         .op = op};
  return call("ncclAllReduce", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclReduce,
          (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
           ncclComm_t comm, cudaStream_t stream))
{
  struct tt_task task = {.collective = TT_FUNC_REDUCE,
                         .input = sendbuff,
                         .output = recvbuff,
                         .count = count,
                         .datatype = datatype,
                         .op = op,
                         .root = root};
  return call("ncclReduce", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclBroadcast,
          (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
           cudaStream_t stream))
{
  struct tt_task task = {.collective = TT_FUNC_BROADCAST,
                         .input = sendbuff,
                         .output = recvbuff,
                         .count = count,
                         .datatype = datatype,
                         .root = root};
  return call("ncclBroadcast", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclBcast,
          (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream))
{
  struct tt_task task = {.collective = TT_FUNC_BROADCAST,
                         .input = buff,
                         .output = buff,
                         .count = count,
                         .datatype = datatype,
                         .root = root};
  return call("ncclBcast", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclAllGather,
          (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
           cudaStream_t stream))
{
  struct tt_task task = {.collective = TT_FUNC_ALL_GATHER,
                         .input = sendbuff,
                         .output = recvbuff,
                         .count = sendcount,
                         .datatype = datatype};
  return call("ncclAllGather", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclReduceScatter,
          (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
           ncclComm_t comm, cudaStream_t stream))
{
  struct tt_task task = {.collective = TT_FUNC_REDUCE_SCATTER,
                         .input = sendbuff,
                         .output = recvbuff,
                         .count = recvcount,
                         .datatype = datatype,
                         .op = op};
  return call("ncclReduceScatter", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclAlltoAll,
          (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
           cudaStream_t stream))
{
  struct tt_task task = {
      .collective = TT_FUNC_ALL_TO_ALL, .input = sendbuff, .output = recvbuff, .count = count, .datatype = datatype};
  return call("ncclAlltoAll", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclGather,
          (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
           cudaStream_t stream))
{
  struct tt_task task = {.collective = TT_FUNC_GATHER,
                         .input = sendbuff,
                         .output = recvbuff,
                         .count = count,
                         .datatype = datatype,
                         .root = root};
  return call("ncclGather", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclScatter,
          (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
           cudaStream_t stream))
{
  struct tt_task task = {.collective = TT_FUNC_SCATTER,
                         .input = sendbuff,
                         .output = recvbuff,
                         .count = count,
                         .datatype = datatype,
                         .root = root};
  return call("ncclScatter", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclSend,
          (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream))
{
  struct tt_task task = {
      .collective = TT_FUNC_SEND, .input = sendbuff, .count = count, .datatype = datatype, .root = peer};
  return call("ncclSend", comm, &task, stream);
}

TT_EXPORT(ncclResult_t, ncclRecv,
          (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream))
{
  struct tt_task task = {
      .collective = TT_FUNC_RECV, .output = recvbuff, .count = count, .datatype = datatype, .root = peer};
  return call("ncclRecv", comm, &task, stream);
}
