/* NVLS: the ranks of one node share memory with a multicast address, through which one rank reads the sum of all copies
 * and writes to all of them. Every rank reduces the part that is its own (all-reduce, reduce-scatter), or stores its
 * block to all copies (all-gather); the other roles only copy between the user's buffers and the own copy.
 *
 * Chunks go through shared memory in groups, each with a strand of its own, which copies in, and out when the group is
 * done. One more strand goes from group to group: before group g it tells the others, and hears from them, that
 *
 *     the own copy of g is ready: filled from the input, or for all-gather free to be stored to;
 *     the own part of g - 1 is done: its result is stored, or its sum read.
 *
 * One exchange for both is all that has to pass between ranks; the last one of a loop tells of the last group alone. So
 * a rank that leaves knows that no other uses its copy any more, and none uses it before the rank has come back. */
#include "base/check.h"
#include "program/algorithms.h"
#include "program/members.h"

enum { GROUPS = 2 };

struct nvls {
  struct tt_builder *builder;
  const struct tt_emit_request *request;
  struct tt_members members;
  uint16_t ready[GROUPS], done[GROUPS]; /* semaphores: group's strand to the exchanges', and back */
};

static void emit_group(const struct nvls *nvls, int32_t group)
{
  bool fills = nvls->request->collective != TT_FUNC_ALL_GATHER;
  bool empties = nvls->request->collective != TT_FUNC_REDUCE_SCATTER;
  tt_builder_strand(nvls->builder);
  if (fills) tt_members_copy_in(nvls->builder, &nvls->members, group);
  tt_builder_signal(nvls->builder, nvls->ready[group]);
  tt_builder_wait(nvls->builder, nvls->done[group]);
  if (empties) tt_members_copy_out(nvls->builder, &nvls->members, group);
}

/* What only this rank does. */
static void emit_own(const struct nvls *nvls, int32_t group)
{
  struct tt_builder *builder = nvls->builder;
  struct tt_chunks own = tt_members_own(&nvls->members, group), part = tt_chunk_one(group, GROUPS);
  bool gathers = nvls->request->collective == TT_FUNC_ALL_GATHER;
  bool scatters = nvls->request->collective == TT_FUNC_REDUCE_SCATTER;
  tt_builder_data(builder, 1, gathers ? 0 : TT_FLAG_FINAL);
  tt_builder_source(builder, gathers ? TT_INPUT : TT_MULTICAST, gathers ? part : own);
  if (!scatters) tt_builder_destination(builder, TT_MULTICAST, own);
  tt_builder_destination(builder, TT_OUTPUT, scatters ? part : own);
}

static void emit_exchanges(const struct nvls *nvls)
{
  tt_builder_strand(nvls->builder);
  for (int32_t group = 0; group < GROUPS; group++) {
    tt_builder_wait(nvls->builder, nvls->ready[group]);
    tt_members_exchange(nvls->builder, &nvls->members);
    if (group > 0) tt_builder_signal(nvls->builder, nvls->done[group - 1]);
    emit_own(nvls, group);
  }
  tt_members_exchange(nvls->builder, &nvls->members);
  tt_builder_signal(nvls->builder, nvls->done[GROUPS - 1]);
}

static ncclResult_t check_one_node(const struct tt_emit_request *request)
{
  for (int32_t rank = 1; request->node != NULL && rank < request->nranks; rank++)
    if (request->node[rank] != request->node[0])
      return TT_FAIL(ncclInvalidUsage,
                     "algorithm %s is for ranks of one node, and ranks 0 and %d are on two; choose %s or another "
                     "algorithm",
                     tt_algorithm_name(TT_ALGO_NVLS), rank, tt_algorithm_name(TT_ALGO_NVLS_TREE));
  return ncclSuccess;
}

ncclResult_t tt_emit_nvls(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct nvls nvls = {.builder = builder, .request = request};
  uint32_t n = (uint32_t)request->nranks;
  if (n == 1) {
    tt_members_alone(builder, request);
    return ncclSuccess;
  }
  TT_TRY(check_one_node(request));
  TT_TRY(tt_members_find(request, GROUPS, &nvls.members));
  bool blocks = tt_collective_has_blocks(request->collective);
  builder->head.parts = blocks ? GROUPS : n * GROUPS;
  if (request->collective == TT_FUNC_ALL_GATHER) builder->head.output_blocks = n;
  if (request->collective == TT_FUNC_REDUCE_SCATTER) builder->head.input_blocks = n;
  tt_members_share(builder, &nvls.members, blocks ? n : 1);
  for (int32_t group = 0; group < GROUPS; group++) {
    nvls.ready[group] = tt_builder_semaphore(builder);
    nvls.done[group] = tt_builder_semaphore(builder);
  }
  for (int32_t group = 0; group < GROUPS; group++) emit_group(&nvls, group);
  emit_exchanges(&nvls);
  tt_members_free(&nvls.members);
  return ncclSuccess;
}
