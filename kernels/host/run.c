/* A run: the state of one work that is being executed. All of its arrays lie in one piece of memory, which the next
 * work of the chain uses again. */
#include "kernels/host/executor.h"

#include <string.h>
#include "kernels/host/reduce.h"

/* Repetitions that a strand executes before others have their turn, and passes over all strands in one call: so the
 * caller looks at its proxies and the abort flag again after a few megabytes at most. */
#define STRAND_BUDGET TT_SLOTS
#define RUN_PASSES 4

/* Hands out pieces of memory; with base NULL it only counts. */
struct carver {
  unsigned char *base;
  size_t used;
};

static void *carve(struct carver *carver, size_t count, size_t size)
{
  size_t at = carver->used;
  carver->used += (count * size + 15) / 16 * 16;
  return carver->base == NULL ? NULL : carver->base + at;
}

static uint32_t most_operands(const struct tt_program *program, const struct tt_strand *strand)
{
  uint32_t most = 1; /* src[0] and dst[0] are always there */
  for (uint32_t i = 0; i < strand->ninstructions; i++)
    most = TT_MAX(most, program->instructions[strand->first_instruction + i].noperands);
  return most;
}

/* Inputs or outputs that a reduction of the strand may have: a multicast operand is one for each member. */
static uint32_t most_places(const struct tt_program *program, const struct tt_strand *strand)
{
  uint32_t most = 1;
  for (uint32_t i = 0; i < strand->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[strand->first_instruction + i];
    uint32_t places = instruction->noperands;
    for (uint32_t k = 0; k < instruction->noperands; k++)
      if (program->operands[instruction->first_operand + k].buffer == TT_MULTICAST) places += program->nmembers - 1;
    most = TT_MAX(most, places);
  }
  return most;
}

static void lay_out_strand(struct tt_host_run *run, struct carver *carver, struct tt_host_channel *channel,
                           uint32_t channel_number, uint32_t strand_number, struct tt_host_strand *strand)
{
  const struct tt_program *program = run->work->channels[channel_number].program;
  uint32_t most = most_operands(program, &program->strands[strand_number]);
  uint32_t places = most_places(program, &program->strands[strand_number]);
  struct tt_host_operand *operands = carve(carver, most, sizeof(*operands));
  const void **src = carve(carver, places, sizeof(*src));
  void **dst = carve(carver, places, sizeof(*dst));
  unsigned char *scaled = carve(carver, places, 1);
  if (carver->base == NULL) return;
  *strand = (struct tt_host_strand){
      .run = run,
      .channel = channel,
      .strand = &program->strands[strand_number],
      .operands = operands,
      .src = src,
      .dst = dst,
      .scaled = scaled,
      .done = program->strands[strand_number].ninstructions == 0 || channel->work->geometry.loops == 0,
  };
}

static void lay_out_channel(struct carver *carver, const struct tt_work_channel *work, struct tt_host_channel *channel)
{
  const struct tt_program *program = work->program;
  uint32_t *semaphores = carve(carver, program->nsemaphores, sizeof(*semaphores));
  uint64_t *first_steps = carve(carver, 2 * (size_t)program->npeers, sizeof(*first_steps));
  uint32_t *last_uses = carve(carver, 2 * (size_t)program->npeers, sizeof(*last_uses));
  if (carver->base == NULL) return;
  memset(semaphores, 0, program->nsemaphores * sizeof(*semaphores));
  memset(last_uses, 0, 2 * program->npeers * sizeof(*last_uses));
  *channel = (struct tt_host_channel){
      .work = work,
      .semaphores = semaphores,
      .first_step = {first_steps, first_steps + program->npeers},
      .last_use = {last_uses, last_uses + program->npeers},
  };
  for (uint32_t p = 0; p < program->npeers; p++) {
    if (work->send[p] != NULL) channel->first_step[TT_HOST_SEND][p] = work->send[p]->step;
    if (work->recv[p] != NULL) channel->first_step[TT_HOST_RECV][p] = work->recv[p]->step;
  }
}

/* Places the run's arrays in the carver's memory. Returns the bytes needed. */
static size_t lay_out(struct tt_host_run *run, struct carver *carver)
{
  const struct tt_work *work = run->work;
  struct tt_host_channel *channels = carve(carver, work->nchannels, sizeof(*channels));
  struct tt_host_strand *strands = carve(carver, run->nstrands, sizeof(*strands));
  uint32_t next = 0;
  for (uint32_t c = 0; c < work->nchannels; c++) {
    struct tt_host_channel *channel = channels == NULL ? NULL : &channels[c];
    lay_out_channel(carver, &work->channels[c], channel);
    for (uint32_t s = 0; s < work->channels[c].program->nstrands; s++, next++)
      lay_out_strand(run, carver, channel, c, s, strands == NULL ? NULL : &strands[next]);
  }
  if (carver->base != NULL) {
    run->channels = channels;
    run->strands = strands;
  }
  return carver->used;
}

static void clear_strands(struct tt_host_run *run)
{
  for (uint32_t s = 0; run->strands != NULL && s < run->nstrands; s++) tt_host_strand_clear(&run->strands[s]);
  run->strands = NULL;
}

/* What ranks share is there, and used with the protocol that orders it. */
static ncclResult_t check_shared(const struct tt_work *work)
{
  for (uint32_t c = 0; c < work->nchannels; c++) {
    const struct tt_program *program = work->channels[c].program;
    if (program->nmembers == 0) continue;
    if (program->shared_blocks == 0 && (work->member_inputs == NULL || work->member_outputs == NULL))
      return TT_FAIL(ncclInternalError, "rank %d: the program of channel %u needs members' buffers, and there are none",
                     work->rank, c);
    if (program->shared_blocks > 0 && (work->shared == NULL || work->copies == NULL))
      return TT_FAIL(ncclInternalError, "rank %d: the program of channel %u needs shared memory, and there is none",
                     work->rank, c);
    if (work->protocol != TT_PROTO_SIMPLE)
      return TT_FAIL(ncclInternalError, "rank %d: protocol %d does not order memory that ranks share: use SIMPLE",
                     work->rank, work->protocol);
  }
  return ncclSuccess;
}

/* Whether this backend can execute the work at all. */
static ncclResult_t check_work(const struct tt_work *work)
{
  bool reduces = work->signature.collective == TT_FUNC_ALL_REDUCE || work->signature.collective == TT_FUNC_REDUCE ||
                 work->signature.collective == TT_FUNC_REDUCE_SCATTER;
  int type = work->reduction.datatype;
  if (work->protocol != TT_PROTO_LL && work->protocol != TT_PROTO_SIMPLE)
    return TT_FAIL(ncclInternalError, "rank %d: protocol %d is not one of the host device's: use LL or SIMPLE",
                   work->rank, work->protocol);
  if (tt_datatype_bytes(type) == 0)
    return TT_FAIL(ncclInvalidArgument, "rank %d: data type %d is none", work->rank, type);
  if (reduces && (!tt_reduce_supports(type) || work->reduction.op > ncclMin))
    return TT_FAIL(ncclInvalidArgument, "rank %d: the host device cannot reduce data type %d by operation %d",
                   work->rank, type, work->reduction.op);
  return check_shared(work);
}

ncclResult_t tt_host_run_begin(struct tt_host_run *run, const struct tt_work *work)
{
  clear_strands(run);
  TT_TRY(check_work(work));
  int collective = work->signature.collective;
  run->work = work;
  run->element_bytes = tt_datatype_bytes(work->reduction.datatype);
  run->scale = work->reduction.scale_inputs && (collective == TT_FUNC_ALL_REDUCE || collective == TT_FUNC_REDUCE ||
                                                collective == TT_FUNC_REDUCE_SCATTER);
  run->signature_hash = work->protocol == TT_PROTO_LL ? tt_host_signature_hash(&work->signature) : 0;
  run->nstrands = 0;
  for (uint32_t c = 0; c < work->nchannels; c++) run->nstrands += work->channels[c].program->nstrands;
  struct carver carver = {0};
  size_t needed = lay_out(run, &carver);
  if (needed > run->memory_bytes) {
    tt_pool_give(run->memory);
    run->memory_bytes = 0;
    run->memory = tt_pool_take(work->pool, needed);
    if (run->memory == NULL)
      return TT_FAIL(ncclSystemError, "rank %d: no memory for %zu bytes of execution state", work->rank, needed);
    run->memory_bytes = needed;
  }
  carver = (struct carver){.base = run->memory};
  lay_out(run, &carver);
  run->left = 0;
  for (uint32_t s = 0; s < run->nstrands; s++) run->left += !run->strands[s].done;
  return ncclSuccess;
}

void tt_host_run_free(struct tt_host_run *run)
{
  clear_strands(run);
  tt_pool_give(run->memory);
  run->memory = NULL;
}

ncclResult_t tt_host_run_advance(struct tt_host_run *run, bool *moved)
{
  bool any = true;
  for (int pass = 0; pass < RUN_PASSES && any && run->left > 0; pass++) {
    any = false;
    for (uint32_t s = 0; s < run->nstrands; s++) {
      if (run->strands[s].done) continue;
      TT_TRY(tt_host_strand_advance(&run->strands[s], STRAND_BUDGET, &any));
      run->left -= run->strands[s].done;
    }
    *moved |= any;
  }
  return ncclSuccess;
}
