/* Short works that come again. Writing one takes several times as long as all else of its launch that is not CUDA's,
 * and training repeats few works on changing buffers: so the words are kept, and given the buffers of each launch. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"

/* Works that are kept, whose numbers the core gives one after another (core/plan/kept.c). */
enum { KEPT = 128 };

/* One way of writing a work. */
struct way {
  uint64_t repeat; /* 0: none */
  struct tt_cuda_short_shape shape;
  uint32_t *words;
};

struct tt_cuda_repeats {
  struct way ways[KEPT][TT_CUDA_PHASES][TT_CUDA_OVERLAPS]; /* by number, phase, and whether the work is in place */
};

static uint64_t repeat_of(const struct tt_work *work)
{
  bool knows = work->size >= offsetof(struct tt_work, repeat) + sizeof(work->repeat);
  return knows ? work->repeat : 0;
}

/* What cannot be kept, for lack of memory, is written each time. */
static void keep(struct way *way, uint64_t repeat, const uint32_t *words, const struct tt_cuda_short_shape *shape)
{
  size_t bytes = shape->nwords * sizeof(*words);
  uint32_t *copy = realloc(way->words, bytes);
  if (copy == NULL) return;
  memcpy(copy, words, bytes);
  *way = (struct way){.repeat = repeat, .shape = *shape, .words = copy};
}

ncclResult_t tt_cuda_get_short(struct tt_device_context *context, const struct tt_work *work, enum tt_cuda_phase phase,
                               uint32_t *words, struct tt_cuda_short_shape *shape)
{
  struct tt_cuda_executor *executor = context->executor;
  uint64_t repeat = repeat_of(work);
  if (repeat == 0) return tt_cuda_put_short(context, work, phase, words, shape);
  if (executor->repeats == NULL) TT_TRY(TT_CALLOC(&executor->repeats, 1));
  struct way *way = &executor->repeats->ways[repeat % KEPT][phase][tt_cuda_overlap_of(work)];
  if (way->repeat == repeat) {
    *shape = way->shape;
    memcpy(words, way->words, way->shape.nwords * sizeof(*words));
    tt_cuda_point_short(work, shape, words);
    return ncclSuccess;
  }
  TT_TRY(tt_cuda_put_short(context, work, phase, words, shape));
  if (shape->nwords > 0) keep(way, repeat, words, shape);
  return ncclSuccess;
}

void tt_cuda_repeats_free(struct tt_device_context *context)
{
  struct tt_cuda_repeats *repeats = context->executor->repeats;
  struct way *ways = repeats != NULL ? &repeats->ways[0][0][0] : NULL;
  for (int w = 0; ways != NULL && w < KEPT * TT_CUDA_PHASES * TT_CUDA_OVERLAPS; w++) free(ways[w].words);
  free(repeats);
  context->executor->repeats = NULL;
}
