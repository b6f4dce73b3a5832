/* See mapped.h. */
#include "plan/mapped.h"

#include <string.h>
#include "base/check.h"
#include "plan/captured.h"
#include "plan/plain.h"
#include "program/emit.h"
#include "transport/user_buffers.h"

/* Of a rank's part, as devices count its bytes, in steps of what a block moves at once. */
#define MOST_BYTES (UINT32_MAX - 65536)

bool tt_mapped_is(const struct tt_program *program)
{
  return program->nmembers > 0 && program->shared_blocks == 0;
}

/* A factor that a user chose may differ on each rank, and inputs are read by others. */
bool tt_mapped_possible(const struct ncclComm *comm, const struct tt_task *task)
{
  return comm->nranks > 1 && comm->nnodes == 1 && comm->env != NULL && comm->env->users != NULL &&
         tt_program_supports(task->collective, TT_ALGO_MAPPED) && !task->scaled && task->count > 0 &&
         task->count <= MOST_BYTES / tt_datatype_bytes(task->datatype);
}

/* Of these the root has a buffer that it alone knows of. A broadcast's is copied to its output first. */
bool tt_mapped_by_windows(const struct tt_task *task)
{
  return task->collective != TT_FUNC_REDUCE && task->collective != TT_FUNC_SCATTER &&
         task->collective != TT_FUNC_GATHER;
}

/* Only those buffers have to be mapped that others touch: what a rank alone reads or writes may lie anywhere. */
struct tt_mapped_touched tt_mapped_touched(const struct ncclComm *comm, const struct tt_task *task, int rank)
{
  size_t block = task->count * tt_datatype_bytes(task->datatype), all = block * (size_t)comm->nranks;
  bool root = rank == task->root;
  switch (task->collective) {
  case TT_FUNC_ALL_REDUCE:
    return (struct tt_mapped_touched){.input = block, .output = block};
  case TT_FUNC_REDUCE_SCATTER:
    return (struct tt_mapped_touched){.input = all};
  case TT_FUNC_BROADCAST:
    return (struct tt_mapped_touched){.output = block};
  case TT_FUNC_REDUCE:
    return (struct tt_mapped_touched){.input = block, .output = root ? block : 0};
  case TT_FUNC_SCATTER:
    return (struct tt_mapped_touched){.input = root ? all : 0};
  case TT_FUNC_GATHER:
    return (struct tt_mapped_touched){.output = root ? all : 0};
  default: /* all-gather, all-to-all */
    return (struct tt_mapped_touched){.output = all};
  }
}

/* An all-to-all in place has no program. Whether it is, a rank sees of itself alone: but where inputs lie in windows as
 * outputs do, it is so on all ranks or on none. */
struct tt_mapped_touched tt_mapped_promised(const struct ncclComm *comm, const struct tt_task *task)
{
  struct tt_mapped_touched touched = tt_mapped_touched(comm, task, comm->rank);
  if (task->collective == TT_FUNC_ALL_TO_ALL) touched.input = touched.output;
  return touched;
}

bool tt_mapped_overlaps(const struct ncclComm *comm, const struct tt_task *task)
{
  return !tt_program_in_place(task->collective, TT_ALGO_MAPPED) && !tt_plan_apart(comm, task);
}

/* Looks up one buffer. Its window is kept by the graph, if the task is captured, whatever will be chosen. */
static ncclResult_t find(struct ncclComm *comm, void *stream, const void *ptr, size_t bytes, void **at, bool *all)
{
  struct tt_user_place place;
  if (bytes == 0) return ncclSuccess;
  TT_TRY(tt_user_buffers_find(comm->env->users, ptr, bytes, &place, at));
  *all = *all && place.window != NULL && place.everywhere;
  return *all ? tt_user_window_keep(comm->env->users, place.window, stream) : ncclSuccess;
}

static void take_plain(const struct tt_plan *plan, const struct tt_task *const *tasks,
                       struct tt_mapped_buffers *buffers)
{
  for (int r = 0; r < plan->comm->nranks; r++) {
    struct tt_mapped_touched touched = tt_mapped_touched(plan->comm, tasks[r], r);
    if (touched.input > 0) buffers->inputs[r] = (void *)tasks[r]->input;
    if (touched.output > 0) buffers->outputs[r] = tasks[r]->output;
  }
  buffers->all = true;
}

ncclResult_t tt_mapped_find(struct tt_plan *plan, const struct tt_task *task, struct tt_mapped_buffers *buffers)
{
  struct ncclComm *comm = plan->comm;
  bool possible = tt_mapped_possible(comm, task), overlaps = tt_mapped_overlaps(comm, task), all = true;
  const struct tt_task *const *plain = tt_plain_next(plan, possible && !overlaps);
  memset(buffers, 0, sizeof *buffers);
  buffers->all = tt_captured_next(comm, &buffers->inputs, &buffers->outputs);
  if (buffers->all || !possible || overlaps) return ncclSuccess;
  bool windows = tt_mapped_by_windows(task) && tt_user_buffers_any(comm->env->users);
  if (plain == NULL && !windows) return ncclSuccess;
  TT_TRY(TT_ZONE_NEW(&plan->zone, &buffers->inputs, 2 * (size_t)comm->nranks));
  buffers->outputs = buffers->inputs + comm->nranks;
  if (plain != NULL) {
    take_plain(plan, plain, buffers);
    return ncclSuccess;
  }
  struct tt_mapped_touched touched = tt_mapped_promised(comm, task);
  TT_TRY(find(comm, task->stream, task->input, touched.input, buffers->inputs, &all));
  TT_TRY(find(comm, task->stream, task->output, touched.output, buffers->outputs, &all));
  buffers->all = all;
  return ncclSuccess;
}

void tt_mapped_place(const struct tt_mapped_buffers *buffers, struct tt_work *work)
{
  if (!buffers->all) return;
  for (int r = 0; r < work->channels[0].program->nranks; r++) {
    work->member_inputs[r] = buffers->inputs[r];
    work->member_outputs[r] = buffers->outputs[r];
  }
}
