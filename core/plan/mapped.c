/* See mapped.h. */
#include "plan/mapped.h"

#include <string.h>
#include "base/check.h"
#include "program/emit.h"
#include "transport/user_buffers.h"

/* Of a rank's part, as devices count its bytes. */
#define MOST_BYTES UINT32_MAX

bool tt_mapped_is(const struct tt_program *program)
{
  return program->nmembers > 0 && program->shared_blocks == 0;
}

/* Only the root knows its own buffers of a rooted collective, so the others could not tell whether they are mapped. A
 * factor that a user chose may differ on each rank, and inputs are read by others. */
static bool may_map(const struct ncclComm *comm, const struct tt_task *task)
{
  return comm->nranks > 1 && comm->nnodes == 1 && comm->env != NULL && comm->env->users != NULL &&
         tt_program_supports(task->collective, TT_ALGO_MAPPED) && !tt_collective_has_root(task->collective) &&
         !task->scaled && task->count > 0 && task->count <= MOST_BYTES / tt_datatype_bytes(task->datatype);
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
  uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
  return x < y + b_bytes && y < x + a_bytes;
}

/* Looks up one buffer. Its window is kept by the graph, if the task is captured, whatever will be chosen. */
static ncclResult_t find(struct ncclComm *comm, void *stream, const void *ptr, size_t bytes, void **at, bool *all)
{
  struct tt_user_place place;
  TT_TRY(tt_user_buffers_find(comm->env->users, ptr, bytes, &place, at));
  *all = place.window != NULL && place.everywhere;
  return *all ? tt_user_window_keep(comm->env->users, place.window, stream) : ncclSuccess;
}

/* Only those buffers have to be mapped that others touch: what a rank alone reads or writes may lie anywhere. */
ncclResult_t tt_mapped_find(struct tt_plan *plan, const struct tt_task *task, struct tt_mapped_buffers *buffers)
{
  struct ncclComm *comm = plan->comm;
  bool sums = task->collective == TT_FUNC_ALL_REDUCE, scatters = task->collective == TT_FUNC_REDUCE_SCATTER;
  bool exchanges = task->collective == TT_FUNC_ALL_TO_ALL, inputs = true, outputs = true;
  memset(buffers, 0, sizeof *buffers);
  if (!may_map(comm, task)) return ncclSuccess;
  size_t block = task->count * tt_datatype_bytes(task->datatype), all = block * (size_t)comm->nranks;
  bool in_place = exchanges && overlap(task->input, all, task->output, all);
  if (in_place && !tt_program_in_place(task->collective, TT_ALGO_MAPPED)) return ncclSuccess;
  TT_TRY(TT_ZONE_NEW(&plan->zone, &buffers->inputs, 2 * (size_t)comm->nranks));
  buffers->outputs = buffers->inputs + comm->nranks;
  if (sums || scatters) TT_TRY(find(comm, task->stream, task->input, scatters ? all : block, buffers->inputs, &inputs));
  if (!scatters) TT_TRY(find(comm, task->stream, task->output, sums ? block : all, buffers->outputs, &outputs));
  buffers->all = inputs && outputs;
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
