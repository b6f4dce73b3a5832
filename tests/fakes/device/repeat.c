/* Works that are said to come again (tt_work.repeat) differ only in what may differ. */
#include "base/hash.h"
#include "internal.h"

#define MIX(hash, value) tt_hash_more((hash), &(value), sizeof(value))

static uint64_t mix_channel(uint64_t hash, const struct tt_work_channel *channel)
{
  const struct tt_geometry *g = &channel->geometry;
  hash = MIX(hash, channel->program);
  const uint64_t cut[] = {g->lo,        g->hi,           g->chunk,         g->last_chunk,
                          g->loops,     g->input_stride, g->output_stride, g->scratch_stride,
                          g->scratch_lo};
  hash = MIX(hash, cut);
  for (uint32_t p = 0; p < channel->program->npeers; p++) {
    hash = MIX(hash, channel->send[p]);
    hash = MIX(hash, channel->recv[p]);
  }
  return hash;
}

static uint64_t digest(const struct tt_work *work)
{
  const struct tt_reduction *r = &work->reduction;
  const int64_t rule[] = {r->op, r->datatype, r->scale_inputs, r->divide_result, r->scale.i64, r->divisor};
  uint64_t hash = tt_hash(&work->signature, sizeof work->signature);
  hash = MIX(hash, rule);
  hash = MIX(hash, work->protocol);
  hash = MIX(hash, work->nchannels);
  hash = MIX(hash, work->order);
  hash = MIX(hash, work->scale_at);
  hash = MIX(hash, work->engines);
  hash = MIX(hash, work->shared);
  for (uint32_t c = 0; c < work->nchannels; c++) hash = mix_channel(hash, &work->channels[c]);
  return hash;
}

ncclResult_t fake_check_repeat(const struct tt_work *work)
{
  struct fake_repeat *known = &work->context->repeats[work->repeat % FAKE_REPEATS];
  if (work->repeat == 0) return ncclSuccess;
  uint64_t found = digest(work);
  if (known->number == work->repeat && known->digest != found)
    return TT_FAIL(ncclInternalError, "rank %d: work %llu is said to come again, and is another one", work->rank,
                   (unsigned long long)work->repeat);
  *known = (struct fake_repeat){.number = work->repeat, .digest = found};
  return ncclSuccess;
}
