/* Argument checks. */
#include "api/check.h"

#include "api/group.h"
#include "base/check.h"
#include "base/param.h"
#include "device/context.h"
#include "plan/host_stream.h"
#include "plan/stream.h"
#include "program/emit.h"

ncclResult_t tt_api_check_pointer(const char *function, const char *argument, const void *pointer)
{
  if (pointer == NULL) return TT_FAIL(ncclInvalidArgument, "%s: argument %s is NULL", function, argument);
  return ncclSuccess;
}

bool tt_api_in_progress(const struct ncclComm *comm)
{
  if (atomic_load(&comm->in_group) == TT_COMM_IN_BACKGROUND) return true;
  return atomic_load(&comm->stage) != TT_STAGE_READY && atomic_load(&comm->async_error) == ncclSuccess;
}

ncclResult_t tt_api_check_ready(const char *function, const struct ncclComm *comm)
{
  if (tt_api_in_progress(comm))
    return TT_FAIL(ncclInvalidArgument,
                   "%s: an earlier call on this communicator, or its making, is in progress; ask "
                   "ncclCommGetAsyncError until it is not",
                   function);
  if (atomic_load(&comm->stage) != TT_STAGE_READY)
    return TT_FAIL((ncclResult_t)atomic_load(&comm->async_error),
                   "%s: the communicator could not be made (%s); abort it and make a new one", function,
                   comm->error_text);
  return ncclSuccess;
}

ncclResult_t tt_api_check_comm(const char *function, const struct ncclComm *comm)
{
  TT_TRY(tt_api_check_ready(function, comm));
  if (atomic_load(&comm->revoked))
    return TT_FAIL(ncclInvalidUsage,
                   "%s: the communicator was revoked; split or shrink it, or make a new one, and destroy it", function);
  return tt_api_check_parent(function, comm);
}

ncclResult_t tt_api_check_parent(const char *function, const struct ncclComm *comm)
{
  TT_TRY(tt_api_check_ready(function, comm));
  if (comm->finalized)
    return TT_FAIL(ncclInvalidArgument, "%s: the communicator was finalized; only ncclCommDestroy may follow",
                   function);
  int failed = atomic_load(&comm->async_error);
  if (failed != ncclSuccess && !atomic_load(&comm->revoked))
    return TT_FAIL(failed, "%s: the communicator failed earlier (%s); abort it and make a new one, or shrink it",
                   function, comm->error_text);
  return ncclSuccess;
}

static bool reads_input(const struct ncclComm *comm, const struct tt_task *task)
{
  if (task->collective == TT_FUNC_RECV) return false;
  bool root_only = task->collective == TT_FUNC_BROADCAST || task->collective == TT_FUNC_SCATTER;
  return !root_only || comm->rank == task->root;
}

static bool writes_output(const struct ncclComm *comm, const struct tt_task *task)
{
  if (task->collective == TT_FUNC_SEND) return false;
  bool root_only = task->collective == TT_FUNC_REDUCE || task->collective == TT_FUNC_GATHER;
  return !root_only || comm->rank == task->root;
}

static ncclResult_t check_reduction(const char *function, const struct ncclComm *comm, const struct tt_task *task)
{
  if (task->datatype != ncclFloat8e4m3 && task->datatype != ncclFloat8e5m2) return ncclSuccess;
  if (!(comm->device->features & TT_DEVICE_FP8))
    return TT_FAIL(ncclInvalidArgument,
                   "%s: datatype %d (fp8) cannot be reduced on the %s device; convert to half or bfloat16", function,
                   (int)task->datatype, comm->device->name);
  return ncclSuccess;
}

static ncclResult_t check_buffer(const char *function, const char *argument, const struct ncclComm *comm,
                                 const void *ptr, size_t bytes, bool write)
{
  struct tt_device_check check = {.size = sizeof check, .ptr = ptr, .bytes = bytes, .write = write};
  TT_TRY(comm->device->check_buffer(comm->context != NULL ? comm->context->handle : NULL, &check));
  check.why[sizeof check.why - 1] = 0;
  if (check.why[0] == 0) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument, "%s: %s is %p, %zu bytes: %s", function, argument, ptr, bytes, check.why);
}

/* What NCCL_CHECK_POINTERS asks for. A sum's scalar in memory is not looked at. */
static ncclResult_t check_memory(const char *function, const struct ncclComm *comm, const struct tt_task *task)
{
  const size_t bytes = task->count * tt_datatype_bytes(task->datatype), all = bytes * (size_t)comm->nranks;
  size_t in = bytes, out = bytes;
  switch (task->collective) {
  case TT_FUNC_ALL_GATHER:
  case TT_FUNC_GATHER:
    out = all;
    break;
  case TT_FUNC_REDUCE_SCATTER:
  case TT_FUNC_SCATTER:
    in = all;
    break;
  case TT_FUNC_ALL_TO_ALL:
    in = out = all;
    break;
  default:
    break;
  }
  if (reads_input(comm, task)) TT_TRY(check_buffer(function, "sendbuff", comm, task->input, in, false));
  return writes_output(comm, task) ? check_buffer(function, "recvbuff", comm, task->output, out, true) : ncclSuccess;
}

/* Buffers may be NULL where nothing is read from or written to them. */
static ncclResult_t check_buffers(const char *function, const struct ncclComm *comm, const struct tt_task *task)
{
  if (task->count == 0) return ncclSuccess;
  if (reads_input(comm, task)) TT_TRY(tt_api_check_pointer(function, "sendbuff", task->input));
  if (writes_output(comm, task)) TT_TRY(tt_api_check_pointer(function, "recvbuff", task->output));
  size_t element = tt_datatype_bytes(task->datatype);
  size_t blocks = tt_collective_has_blocks(task->collective) ? (size_t)comm->nranks : 1;
  size_t limit = (size_t)PTRDIFF_MAX / element / blocks;
  if (task->count > limit)
    return TT_FAIL(ncclInvalidArgument, "%s: count %zu of %zu-byte elements is more than memory can hold", function,
                   task->count, element);
  return comm->check_pointers ? check_memory(function, comm, task) : ncclSuccess;
}

/* Of the thread's open group, for the communicator. */
static bool is_first_stream(const struct ncclComm *comm, const void *stream)
{
  return tt_group_has(comm) && comm->tasks != NULL && comm->tasks->stream == stream;
}

/* Whether a communicator of a device with streams can take it. NCCL joins the streams of a group's calls, and so do
 * host streams and devices that can. The stream that the group began with was looked at then. */
static ncclResult_t check_device_stream(const char *function, const struct ncclComm *comm, cudaStream_t stream)
{
  const struct tt_device *device = comm->device;
  if (is_first_stream(comm, stream)) return ncclSuccess;
  if (tt_host_stream_like(stream))
    return TT_FAIL(ncclInvalidArgument,
                   "%s: stream is %p, of tuttiStreamCreate: the host device takes it; this communicator is of the %s "
                   "device, which takes streams of its own",
                   function, (void *)stream, device->name);
  if (device->features & TT_DEVICE_JOIN) {
    ncclResult_t result = device->check_stream(comm->context->handle, stream);
    if (result == ncclSuccess) return ncclSuccess;
    return TT_FAIL(result, "%s: stream is %p: %s", function, (void *)stream, tt_log_thread_error());
  }
  if (comm->tasks == NULL) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "%s: stream is %p, and another call of this group on this communicator has stream %p; give all calls "
                 "of a communicator in a group the same stream, since the %s device cannot join several",
                 function, (void *)stream, comm->tasks->stream, device->name);
}

static ncclResult_t check_stream(const char *function, const struct ncclComm *comm, cudaStream_t stream)
{
  if (tt_stream_device(comm)) return check_device_stream(function, comm, stream);
  return stream == NULL ? ncclSuccess : tt_host_stream_check(function, stream);
}

ncclResult_t tt_api_check_task(const char *function, const struct ncclComm *comm, const struct tt_task *task,
                               cudaStream_t stream)
{
  bool peer = task->collective == TT_FUNC_SEND || task->collective == TT_FUNC_RECV;
  TT_TRY(tt_api_check_comm(function, comm));
  if (task->root < 0 || task->root >= comm->nranks)
    return TT_FAIL(ncclInvalidArgument, "%s: %s is %d; the communicator has ranks 0 to %d", function,
                   peer ? "peer" : "root", task->root, comm->nranks - 1);
  if (tt_datatype_bytes(task->datatype) == 0)
    return TT_FAIL(ncclInvalidArgument, "%s: datatype is %d; allowed are ncclInt8 (0) to ncclFloat8e5m2 (11)", function,
                   (int)task->datatype);
  if (tt_collective_reduces(task->collective)) TT_TRY(check_reduction(function, comm, task));
  TT_TRY(check_buffers(function, comm, task));
  return check_stream(function, comm, stream);
}
