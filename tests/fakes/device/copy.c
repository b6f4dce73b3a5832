/* Copying works, as a device must whose launches outlive the call. Programs and buffers stay where they are. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* The copy of one work lies in one piece of memory: work, channels, ends of connections, scratch, members'
 * buffers. */
struct room {
  size_t npeers, nscratch, nmembers;
};

static _Atomic int mapped_works, engine_works;

__attribute__((visibility("default"))) int fake_mapped_works(void)
{
  return mapped_works;
}

__attribute__((visibility("default"))) int fake_engine_works(void)
{
  return engine_works;
}

/* Copy engines can do what is on one channel and copies from one place. */
static ncclResult_t check_engines(const struct tt_work *work)
{
  const struct tt_program *program = work->channels[0].program;
  if (!work->engines) return ncclSuccess;
  bool copies = work->nchannels == 1 && program->nmembers > 0;
  for (uint32_t i = 0; i < program->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[i];
    int inputs = 0;
    for (uint32_t k = 0; k < instruction->noperands; k++)
      inputs += program->operands[instruction->first_operand + k].kind == TT_SRC;
    copies &= inputs <= 1;
  }
  if (!copies) return TT_FAIL(ncclInternalError, "rank %d: copy engines cannot do this work", work->rank);
  engine_works++;
  return ncclSuccess;
}

static struct room measure(const struct tt_work *work)
{
  struct room room = {0};
  if (work->member_inputs != NULL) room.nmembers = work->channels[0].program->nmembers;
  for (uint32_t c = 0; c < work->nchannels; c++) {
    room.npeers += work->channels[c].program->npeers;
    room.nscratch = TT_MAX(room.nscratch, (size_t)work->channels[c].program->nscratch);
  }
  return room;
}

static ncclResult_t copy_ends(struct tt_conn **to, struct tt_conn *const *from, uint32_t npeers)
{
  for (uint32_t p = 0; p < npeers; p++) {
    if (from[p] == NULL) continue;
    if (from[p]->twin == NULL)
      return TT_FAIL(ncclInternalError, "a connection with rank %d was not opened on the device", from[p]->peer);
    to[p] = &((struct fake_twin *)from[p]->twin)->conn;
  }
  return ncclSuccess;
}

static bool reduces(const struct tt_work *work)
{
  int collective = work->signature.collective;
  return collective == TT_FUNC_ALL_REDUCE || collective == TT_FUNC_REDUCE || collective == TT_FUNC_REDUCE_SCATTER;
}

static ncclResult_t check_work(const struct tt_work *work, const struct tt_device_context *context)
{
  if (work->size < sizeof *work || work->context == NULL || work->context != context)
    return TT_FAIL(ncclInternalError, "all works of a launch must be of one context");
  if (reduces(work) && work->reduction.datatype > ncclBfloat16)
    return TT_FAIL(ncclInvalidArgument, "the fake device cannot reduce data type %d", work->reduction.datatype);
  return ncclSuccess;
}

/* What lies in users' memory of another device is used only after it was reached. */
static ncclResult_t check_members(const struct tt_work *work, size_t nmembers)
{
  for (size_t m = 0; m < nmembers; m++)
    if (!fake_may_use(work->context, work->member_inputs[m]) || !fake_may_use(work->context, work->member_outputs[m]))
      return TT_FAIL(ncclInternalError, "a work uses a buffer of member %zu, which its device cannot reach", m);
  return ncclSuccess;
}

static ncclResult_t copy_work(const struct tt_work *from, struct tt_work **out)
{
  struct room room = measure(from);
  unsigned char *memory;
  size_t bytes = sizeof *from + from->nchannels * sizeof *from->channels +
                 (2 * room.npeers + room.nscratch + 2 * room.nmembers) * sizeof(void *);
  TT_TRY(TT_CALLOC(&memory, bytes));
  struct tt_work *work = (struct tt_work *)(void *)memory;
  *out = work;
  *work = *from;
  work->complete = 0;
  work->abort = &from->context->abort;
  work->channels = (struct tt_work_channel *)(work + 1);
  struct tt_conn **ends = (struct tt_conn **)(void *)(work->channels + from->nchannels);
  for (uint32_t c = 0; c < from->nchannels; c++) {
    const struct tt_work_channel *channel = &from->channels[c];
    uint32_t npeers = channel->program->npeers;
    work->channels[c] = *channel;
    work->channels[c].send = ends;
    work->channels[c].recv = ends + npeers;
    TT_TRY(copy_ends(ends, channel->send, npeers));
    TT_TRY(copy_ends(ends + npeers, channel->recv, npeers));
    ends += 2 * npeers;
  }
  TT_TRY(fake_team_place(work));
  if (room.nmembers > 0) {
    work->member_inputs = (const void **)ends + room.nscratch;
    work->member_outputs = (void **)ends + room.nscratch + room.nmembers;
    memcpy(work->member_inputs, from->member_inputs, room.nmembers * sizeof(void *));
    memcpy(work->member_outputs, from->member_outputs, room.nmembers * sizeof(void *));
    TT_TRY(check_members(work, room.nmembers));
    mapped_works += work->channels[0].program->shared_blocks == 0;
  }
  TT_TRY(check_engines(work));
  TT_TRY(fake_check_repeat(from));
  work->scratch = NULL;
  if (room.nscratch > 0) {
    work->scratch = (void **)ends;
    memcpy(work->scratch, from->scratch, room.nscratch * sizeof(void *));
  }
  return ncclSuccess;
}

ncclResult_t fake_launch_copy(struct tt_work *const *works, int nworks, struct fake_launch **out)
{
  unsigned char *memory;
  ncclResult_t result = ncclSuccess;
  *out = NULL;
  TT_TRY(TT_CALLOC(&memory, sizeof(struct fake_launch) + (size_t)nworks * sizeof(struct tt_work *)));
  struct fake_launch *launch = (struct fake_launch *)(void *)memory;
  launch->refs = 1;
  launch->context = works[0]->context;
  launch->nworks = nworks;
  fake_context_hold(launch->context);
  fake_totals.launches++;
  for (int w = 0; w < nworks; w++) {
    TT_TRY_GOTO(check_work(works[w], launch->context), result, out);
    TT_TRY_GOTO(copy_work(works[w], &launch->works[w]), result, out);
  }
  *out = launch;
out:
  if (result != ncclSuccess) fake_launch_drop(launch);
  return result;
}

struct fake_launch *fake_launch_hold(struct fake_launch *launch)
{
  launch->refs++;
  return launch;
}

void fake_launch_drop(struct fake_launch *launch)
{
  if (--launch->refs > 0) return;
  for (int w = 0; w < launch->nworks; w++) free(launch->works[w]);
  fake_context_drop(launch->context);
  fake_totals.launches--;
  free(launch);
}
