/* Launches: which works go together, and in which form they are handed to a kernel.
 *
 * One kernel runs works of one protocol. Collectives of several are launched as several kernels, in their order, which
 * is that of all ranks. Sends and receives follow, and must not wait for each other, since a peer may call them in
 * another order, or not in one group: those of several protocols have a kernel of their own, in which they run side by
 * side (TT_CUDA_FORM_MIXED). Those between two ranks in one direction are in order, on both. */
#include <stdlib.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/stream.h"

enum { LAUNCH_WORKS = 4096 };
enum { FEW_WORKS = 32 }; /* that are sorted without an allocation */

static ncclResult_t start_short(const struct tt_work *work, struct tt_cuda_launch *launch,
                                const struct tt_cuda_short_shape *shape, uint32_t nblocks, cudaStream_t stream)
{
  bool brief = shape->form == TT_CUDA_FORM_EXCHANGE && launch->nwords <= TT_CUDA_BRIEF_WORDS;
  enum tt_cuda_form form = brief ? TT_CUDA_FORM_BRIEF : shape->form;
  const void *kernel = tt_cuda_kernels[work->reduction.datatype](work->protocol, form);
  return tt_cuda_start(work->context, kernel, nblocks, shape->threads, launch, stream);
}

/* A single small work in its short form; *launched false: it has none. */
static ncclResult_t launch_short(struct tt_device_context *context, const struct tt_work *work,
                                 enum tt_cuda_phase phase, cudaStream_t stream, bool *launched)
{
  struct tt_cuda_launch launch;
  struct tt_cuda_short_shape shape;
  tt_cuda_launch_begin(context, &launch);
  TT_TRY(tt_cuda_get_short(context, work, phase, launch.words, &shape));
  launch.nwords = shape.nwords;
  launch.channels = shape.channels;
  launch.channel_quads = shape.channel_quads;
  *launched = launch.nwords > 0;
  /* A whole work is launched also if it has nothing to do, as a copy in place, since a capture ends in a launch. */
  if (!*launched || (shape.nsteps == 0 && phase != TT_CUDA_WHOLE)) return ncclSuccess;
  return start_short(work, &launch, &shape, work->nchannels, stream);
}

/* Several, likewise. */
static ncclResult_t launch_together(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                                    cudaStream_t stream, bool *launched)
{
  struct tt_cuda_launch launch;
  struct tt_cuda_short_shape shape;
  tt_cuda_launch_begin(context, &launch);
  TT_TRY(tt_cuda_put_together(context, works, nworks, &launch, &shape));
  *launched = launch.nwords > 0;
  return *launched ? start_short(works[0], &launch, &shape, launch.nitems, stream) : ncclSuccess;
}

/* A work whose copies engines do, and `copies` beside them; *launched false: it has no short form. */
static ncclResult_t launch_engines(struct tt_device_context *context, const struct tt_work *work,
                                   struct tt_work *const *copies, int ncopies, cudaStream_t stream,
                                   struct tt_cuda_graph *graph, bool *launched)
{
  cudaStream_t second = NULL;
  TT_TRY(launch_short(context, work, TT_CUDA_BEFORE, stream, launched));
  if (!*launched) return ncclSuccess;
  context->executor->begins_early = false; /* what is launched next comes behind copies */
  if (ncopies > 0) TT_TRY(tt_cuda_copies_begin(context, copies, ncopies, stream, graph, &second));
  ncclResult_t result = tt_cuda_copy_by_engines(context, work, stream, graph);
  if (ncopies > 0) result = tt_cuda_copies_end(context, second, stream, result);
  TT_TRY(result);
  return launch_short(context, work, TT_CUDA_AFTER, stream, launched);
}

/* A message in place that a kernel moves, and `copies` beside it; *launched false: it has no short form. */
static ncclResult_t launch_beside(struct tt_device_context *context, const struct tt_work *message,
                                  struct tt_work *const *copies, int ncopies, cudaStream_t stream,
                                  const struct tt_cuda_graph *graph, bool *launched)
{
  cudaStream_t second;
  TT_TRY(tt_cuda_copies_begin(context, copies, ncopies, stream, graph, &second));
  ncclResult_t result = launch_short(context, message, TT_CUDA_WHOLE, stream, launched);
  return tt_cuda_copies_end(context, second, stream, result);
}

/* A single work as it is launched if it is not among others; *launched false: not so. */
static ncclResult_t launch_alone(struct tt_device_context *context, const struct tt_work *work, cudaStream_t stream,
                                 struct tt_cuda_graph *graph, bool *launched)
{
  if (tt_cuda_has_engines(work)) return launch_engines(context, work, NULL, 0, stream, graph, launched);
  return launch_short(context, work, TT_CUDA_WHOLE, stream, launched);
}

static bool is_mapped(const struct tt_work *work)
{
  return tt_cuda_is_mapped(work->channels[0].program);
}

static bool is_message(const struct tt_work *work)
{
  return work->signature.collective == TT_FUNC_SEND_RECV;
}

static bool are_mixed(struct tt_work *const *works, int nworks)
{
  int n = 1;
  while (n < nworks && works[n]->protocol == works[0]->protocol) n++;
  return n < nworks;
}

/* Whether one kernel can run both: of one protocol and type, and with scratch memory only alone, since works of a chain
 * may overlap on different channels. Mapped works are alone, too. */
static bool fit(const struct tt_work *a, const struct tt_work *b)
{
  return !is_mapped(a) && !is_mapped(b) && a->protocol == b->protocol &&
         a->reduction.datatype == b->reduction.datatype && tt_cuda_shares_memory(a) == tt_cuda_shares_memory(b) &&
         a->channels[0].program->nscratch + b->channels[0].program->nscratch == 0;
}

/* The same where messages have several protocols: all of them go together, and beside no collective. */
static bool fit_mixed(const struct tt_work *a, const struct tt_work *b)
{
  if (is_message(a) != is_message(b)) return false;
  return is_message(a) ? !is_mapped(a) && !is_mapped(b) : fit(a, b);
}

/* How many works from the first on one kernel runs; not too many. */
static int segment(struct tt_work *const *works, int nworks, bool mixed)
{
  int n = 1;
  while (n < nworks && n < LAUNCH_WORKS && (mixed ? fit_mixed : fit)(works[0], works[n])) n++;
  return n;
}

static ncclResult_t launch_segment(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                                   cudaStream_t stream, struct tt_cuda_graph *graph)
{
  const bool mixed = are_mixed(works, nworks);
  bool launched = false;
  if (nworks == 1 && !tt_cuda_shares_memory(works[0]) && works[0]->scale_at == NULL)
    TT_TRY(launch_alone(context, works[0], stream, graph, &launched));
  if (nworks > 1 && !mixed && works[0]->protocol != TT_PROTO_SIMPLE)
    TT_TRY(launch_together(context, works, nworks, stream, &launched));
  if (launched) return ncclSuccess;
  if (is_mapped(works[0]))
    return TT_FAIL(ncclInternalError,
                   "rank %d: a program with members' buffers, of %u channels among %d ranks in chunks of %zu elements, "
                   "is more than a kernel's parameters can describe",
                   context->rank, works[0]->nchannels, works[0]->channels[0].program->nranks,
                   works[0]->channels[0].geometry.last_chunk);
  TT_TRY(tt_cuda_launch_general(context, works, nworks, mixed, stream, graph, &launched));
  if (launched) return ncclSuccess;
  TT_TRY(launch_segment(context, works, nworks / 2, stream, graph));
  return launch_segment(context, works + nworks / 2, nworks - nworks / 2, stream, graph);
}

/* Collectives first, then messages, both as they are. */
static void sort_works(struct tt_work *const *works, int nworks, struct tt_work **sorted)
{
  int n = 0;
  for (int w = 0; w < nworks; w++)
    if (!is_message(works[w])) sorted[n++] = works[w];
  for (int w = 0; w < nworks; w++)
    if (is_message(works[w])) sorted[n++] = works[w];
}

/* How many works that only copy stand before a message in place from the first on, which they can go beside. */
static int copies_before_message(struct tt_work *const *works, int nworks)
{
  int n = 0;
  while (n < nworks && tt_cuda_only_copies(works[n])) n++;
  if (n == 0 || n == nworks || !is_message(works[n]) || !is_mapped(works[n])) return 0;
  return tt_cuda_has_engines(works[n]) || tt_cuda_are_large(works, n) ? n : 0;
}

static ncclResult_t launch_segments(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                                    cudaStream_t stream, struct tt_cuda_graph *graph)
{
  int first = 0;
  while (first < nworks && !is_message(works[first])) first++;
  bool mixed = are_mixed(works + first, nworks - first);
  for (int w = 0, n; w < nworks; w += n) {
    bool launched = false;
    int ncopies = copies_before_message(works + w, nworks - w);
    const struct tt_work *message = works[w + ncopies];
    if (ncopies > 0 && tt_cuda_has_engines(message))
      TT_TRY(launch_engines(context, message, works + w, ncopies, stream, graph, &launched));
    else if (ncopies > 0)
      TT_TRY(launch_beside(context, message, works + w, ncopies, stream, graph, &launched));
    n = ncopies + 1;
    if (launched) continue;
    n = segment(works + w, nworks - w, mixed);
    TT_TRY(launch_segment(context, works + w, n, stream, graph));
  }
  return ncclSuccess;
}

static ncclResult_t launch_sorted(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                                  cudaStream_t stream)
{
  struct tt_cuda_graph *graph;
  TT_TRY(tt_cuda_order_begin(context, stream, &graph));
  ncclResult_t result = launch_segments(context, works, nworks, stream, graph);
  if (result == ncclSuccess) return tt_cuda_order_end(context, stream, graph);
  /* What was launched before the failure runs, and who ends the context must wait for it. */
  tt_cuda_order_failed(context, stream, graph);
  return result;
}

static ncclResult_t launch_entered(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                                   cudaStream_t stream)
{
  struct tt_work *few[FEW_WORKS], **sorted = few;
  if (nworks == 1) return launch_sorted(context, works, 1, stream);
  if (nworks > FEW_WORKS) TT_TRY(TT_CALLOC(&sorted, (size_t)nworks));
  sort_works(works, nworks, sorted);
  ncclResult_t result = launch_sorted(context, sorted, nworks, stream);
  if (sorted != few) free(sorted);
  return result;
}

ncclResult_t tt_cuda_launch(struct tt_work *const *works, int nworks, void *stream, struct tt_launch **launch)
{
  struct tt_cuda_enter enter;
  *launch = NULL;
  if (nworks == 0) return ncclSuccess;
  struct tt_device_context *context = works[0]->context;
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result = launch_entered(context, works, nworks, stream);
  tt_cuda_leave(&enter);
  return result;
}
