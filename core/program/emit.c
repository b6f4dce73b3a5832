/* From a request to a program: checks the request and hands it to the algorithm's emitter. */
#include <stdlib.h>
#include "base/check.h"
#include "program/algorithms.h"
#include "program/emit.h"

typedef ncclResult_t (*emitter)(struct tt_builder *builder, const struct tt_emit_request *request);

#define BIT(collective) (1u << (collective))

/* Which collectives an algorithm has programs for. */
static const struct {
  emitter emit;
  uint32_t collectives;
} algorithms[TT_NUM_ALGORITHMS] = {
    [TT_ALGO_RING] = {tt_emit_ring, BIT(TT_FUNC_BROADCAST) | BIT(TT_FUNC_REDUCE) | BIT(TT_FUNC_ALL_GATHER) |
                                        BIT(TT_FUNC_REDUCE_SCATTER) | BIT(TT_FUNC_ALL_REDUCE)},
    [TT_ALGO_TREE] = {tt_emit_tree, BIT(TT_FUNC_ALL_REDUCE)},
    [TT_ALGO_COLLNET_DIRECT] = {tt_emit_collnet_direct, BIT(TT_FUNC_ALL_REDUCE)},
    [TT_ALGO_COLLNET_CHAIN] = {tt_emit_collnet_chain, BIT(TT_FUNC_ALL_REDUCE)},
    [TT_ALGO_NVLS] = {tt_emit_nvls, BIT(TT_FUNC_ALL_GATHER) | BIT(TT_FUNC_REDUCE_SCATTER) | BIT(TT_FUNC_ALL_REDUCE)},
    [TT_ALGO_NVLS_TREE] = {tt_emit_nvls_tree, BIT(TT_FUNC_ALL_REDUCE)},
    [TT_ALGO_ONE_SHOT] = {tt_emit_one_shot, BIT(TT_FUNC_ALL_REDUCE)},
    [TT_ALGO_TWO_SHOT] = {tt_emit_two_shot, BIT(TT_FUNC_ALL_REDUCE)},
    [TT_ALGO_DIRECT] = {tt_emit_direct, BIT(TT_FUNC_BROADCAST) | BIT(TT_FUNC_REDUCE) | BIT(TT_FUNC_ALL_GATHER) |
                                            BIT(TT_FUNC_REDUCE_SCATTER) | BIT(TT_FUNC_ALL_TO_ALL) |
                                            BIT(TT_FUNC_SCATTER) | BIT(TT_FUNC_GATHER)},
    [TT_ALGO_MAPPED] = {tt_emit_mapped, BIT(TT_FUNC_BROADCAST) | BIT(TT_FUNC_REDUCE) | BIT(TT_FUNC_ALL_GATHER) |
                                            BIT(TT_FUNC_REDUCE_SCATTER) | BIT(TT_FUNC_ALL_REDUCE) |
                                            BIT(TT_FUNC_ALL_TO_ALL) | BIT(TT_FUNC_SCATTER) | BIT(TT_FUNC_GATHER) |
                                            BIT(TT_FUNC_SEND) | BIT(TT_FUNC_RECV) | BIT(TT_FUNC_SEND_RECV)},
    [TT_ALGO_PAT] = {tt_emit_pat, BIT(TT_FUNC_ALL_GATHER) | BIT(TT_FUNC_REDUCE_SCATTER)},
    [TT_ALGO_POINT_TO_POINT] = {tt_emit_point_to_point, BIT(TT_FUNC_SEND) | BIT(TT_FUNC_RECV)},
};

int tt_program_supports(int collective, int algorithm)
{
  if (collective < 0 || collective >= TT_NUM_FUNCS || algorithm < 0 || algorithm >= TT_NUM_ALGORITHMS) return 0;
  return (algorithms[algorithm].collectives & BIT(collective)) != 0;
}

bool tt_program_in_place(int collective, int algorithm)
{
  return algorithm != TT_ALGO_MAPPED || (collective != TT_FUNC_ALL_TO_ALL && collective != TT_FUNC_SEND_RECV);
}

bool tt_collective_has_root(int collective)
{
  return collective == TT_FUNC_BROADCAST || collective == TT_FUNC_REDUCE || collective == TT_FUNC_SCATTER ||
         collective == TT_FUNC_GATHER;
}

bool tt_collective_is_message(int collective)
{
  return collective == TT_FUNC_SEND || collective == TT_FUNC_RECV || collective == TT_FUNC_SEND_RECV;
}

bool tt_collective_reduces(int collective)
{
  return collective == TT_FUNC_ALL_REDUCE || collective == TT_FUNC_REDUCE || collective == TT_FUNC_REDUCE_SCATTER;
}

bool tt_collective_has_blocks(int collective)
{
  return collective == TT_FUNC_ALL_GATHER || collective == TT_FUNC_REDUCE_SCATTER || collective == TT_FUNC_ALL_TO_ALL ||
         collective == TT_FUNC_SCATTER || collective == TT_FUNC_GATHER;
}

static ncclResult_t check_rank(const char *what, int32_t rank, int32_t nranks)
{
  if (rank >= 0 && rank < nranks) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument, "%s %d is outside 0..%d", what, rank, nranks - 1);
}

static ncclResult_t check_request(const struct tt_emit_request *request)
{
  if (!tt_program_supports(request->collective, request->algorithm)) {
    return TT_FAIL(ncclInvalidUsage, "algorithm %s has no program for %s; choose another algorithm",
                   tt_algorithm_name(request->algorithm), tt_collective_name(request->collective));
  }
  if (request->nranks < 1) return TT_FAIL(ncclInvalidArgument, "number of ranks %d is below 1", request->nranks);
  TT_TRY(check_rank("rank", request->rank, request->nranks));
  if (tt_collective_has_root(request->collective) || request->collective == TT_FUNC_SEND_RECV)
    TT_TRY(check_rank("root", request->root, request->nranks));
  if (request->most_pieces < 0)
    return TT_FAIL(ncclInvalidArgument, "%d pieces a message are below 0", request->most_pieces);
  if (tt_collective_is_message(request->collective)) TT_TRY(check_rank("peer", request->peer, request->nranks));
  return ncclSuccess;
}

ncclResult_t tt_program_emit(const struct tt_emit_request *request, struct tt_program **program)
{
  *program = NULL;
  TT_TRY(check_request(request));
  struct tt_emit_request cleaned = *request;
  if (!tt_collective_has_root(cleaned.collective) && cleaned.collective != TT_FUNC_SEND_RECV) cleaned.root = 0;
  struct tt_builder builder;
  tt_builder_start(&builder, &cleaned, 1, 1, 1);
  if (cleaned.collective == TT_FUNC_SEND_RECV) builder.head.root = 0;
  ncclResult_t emitted = algorithms[cleaned.algorithm].emit(&builder, &cleaned);
  if (emitted != ncclSuccess) builder.failed = emitted;
  return tt_builder_finish(&builder, program);
}

void tt_emit_all_peers(struct tt_builder *builder, const struct tt_emit_request *request)
{
  for (int32_t distance = 1; distance < request->nranks; distance++)
    tt_builder_peer(builder, (request->rank + distance) % request->nranks);
}

uint16_t tt_emit_peer_index(const struct tt_emit_request *request, int32_t rank)
{
  int32_t distance = rank - request->rank;
  return (uint16_t)((distance > 0 ? distance : distance + request->nranks) - 1);
}

uint32_t tt_program_most_pieces(const struct tt_program *program)
{
  int32_t most = 1;
  for (uint32_t i = 0; i < program->noperands; i++) {
    const struct tt_operand *operand = &program->operands[i];
    bool message = operand->kind == TT_SEND || operand->kind == TT_RECV;
    if (message && operand->count > most) most = operand->count;
  }
  return (uint32_t)most;
}

void tt_program_free(struct tt_program *program)
{
  free(program);
}
