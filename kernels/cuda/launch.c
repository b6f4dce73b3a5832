/* Launches: works are put into words (descriptor.h) and handed to a kernel.
 *
 * One kernel runs works of one protocol. Collectives of several are launched as several kernels, in their order, which
 * is that of all ranks. Sends and receives follow, and must not wait for each other, since a peer may call them in
 * another order, or not in one group: those of several protocols have a kernel of their own, in which they run side by
 * side (TT_CUDA_FORM_MIXED). Those between two ranks in one direction are in order, on both. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/attributes.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/multicast.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/stream.h"

enum { MOST_WORDS = 4 * UINT16_MAX, LAUNCH_WORKS = 4096 };
enum { FEW_WORKS = 32 }; /* that are sorted without an allocation */
/* Local copies are cut so that a chunk's bytes fit 32 bits. */
#define LOCAL_CHUNK_BYTES (UINT64_C(1) << 30)

/* A kernel's launch in the making. */
struct builder {
  struct tt_device_context *context;
  uint32_t *words;
  uint32_t nwords, capacity, nitems;
  uint32_t *last; /* of each chain: quad of its last work */
  uint64_t *keys;
  int nchains;
  int protocol, datatype, strands;
  uint64_t most_bytes; /* of a chunk */
  bool shares;         /* memory with other devices */
  bool mixed;          /* works have several protocols */
};

static uint64_t hash_signature(const struct tt_signature *signature)
{
  uint64_t words[sizeof(*signature) / 8], hash = UINT64_C(0x243f6a8885a308d3); /* the digits of pi */
  memcpy(words, signature, sizeof(words));
  for (size_t i = 0; i < TT_COUNT(words); i++) {
    hash = (hash ^ words[i]) * UINT64_C(0x9fb21c651e98df25); /* an odd number whose bits look random */
    hash ^= hash >> 29;
  }
  return hash;
}

/* Room for `count` words at a multiple of four; NULL for lack of memory. */
static uint32_t *take_words(struct builder *b, size_t count)
{
  uint32_t at = (b->nwords + 3) / 4 * 4;
  size_t end = at + count;
  if (end > b->capacity) {
    uint32_t capacity = (uint32_t)TT_MAX(end, 2 * (size_t)b->capacity);
    uint32_t *words = realloc(b->words, capacity * sizeof(*words));
    if (words == NULL) return NULL;
    b->words = words;
    b->capacity = capacity;
  }
  memset(b->words + b->nwords, 0, (end - b->nwords) * sizeof(*b->words));
  b->nwords = (uint32_t)end;
  return b->words + at;
}

static ncclResult_t no_memory(void)
{
  return TT_FAIL(ncclSystemError, "no memory for the description of a launch");
}

static uint32_t index_of(const struct tt_conn *conn)
{
  return conn == NULL ? UINT32_MAX : tt_cuda_conn_index(conn);
}

static ncclResult_t put_channel(struct builder *b, const struct tt_work *work, uint32_t c, uint32_t *words)
{
  const struct tt_work_channel *from = &work->channels[c];
  const struct tt_program *program = from->program;
  struct tt_geometry geometry = from->geometry;
  struct tt_cuda_channel *to = (struct tt_cuda_channel *)words;
  uint64_t element = tt_datatype_bytes(work->reduction.datatype);
  if (program->npeers == 0 && program->parts == 1 && geometry.chunk * element > LOCAL_CHUNK_BYTES) {
    geometry.chunk = geometry.last_chunk = LOCAL_CHUNK_BYTES / element;
    geometry.loops = (geometry.hi - geometry.lo + geometry.chunk - 1) / geometry.chunk;
  }
  if (geometry.chunk * element > UINT32_MAX || geometry.loops > UINT32_MAX)
    return TT_FAIL(ncclInternalError, "chunks of %zu elements, %llu times, are beyond what the CUDA device can count",
                   geometry.chunk, (unsigned long long)geometry.loops);
  const struct tt_cuda_program *packed;
  TT_TRY(tt_cuda_program_get(b->context, program, &packed, &to->program));
  to->program_bytes = packed->bytes;
  b->strands = TT_MAX(b->strands, packed->nstrands);
  to->lo = geometry.lo;
  to->hi = geometry.hi;
  to->scratch_lo = program->shared_blocks > 0 ? geometry.shared_lo : geometry.scratch_lo;
  to->chunk = (uint32_t)geometry.chunk;
  to->last_chunk = (uint32_t)geometry.last_chunk;
  to->loops = (uint32_t)geometry.loops;
  to->npeers = program->npeers;
  uint32_t *ends = (uint32_t *)(to + 1);
  for (uint32_t p = 0; p < program->npeers; p++) {
    ends[p] = index_of(from->send[p]);
    ends[program->npeers + p] = index_of(from->recv[p]);
  }
  b->most_bytes = TT_MAX(b->most_bytes, (geometry.loops > 1 ? geometry.chunk : geometry.last_chunk) * element);
  return ncclSuccess;
}

static bool shares_memory(const struct tt_work *work)
{
  return work->channels[0].program->shared_blocks > 0;
}

void tt_cuda_put_header(const struct tt_work *work, struct tt_cuda_work *to)
{
  const struct tt_geometry *geometry = &work->channels[0].geometry;
  const struct tt_reduction *reduction = &work->reduction;
  to->signature = work->signature;
  to->signature_hash = hash_signature(&work->signature);
  to->buffers[TT_INPUT] = (unsigned char *)work->input;
  to->buffers[TT_OUTPUT] = work->output;
  for (uint32_t k = 0; k < work->channels[0].program->nscratch; k++) to->buffers[TT_SCRATCH + k] = work->scratch[k];
  to->strides[TT_INPUT] = geometry->input_stride;
  to->strides[TT_OUTPUT] = geometry->output_stride;
  to->strides[TT_SCRATCH] = geometry->scratch_stride;
  if (shares_memory(work)) {
    to->buffers[TT_CUDA_SHARED] = work->shared;
    to->buffers[TT_CUDA_MULTICAST] = work->multicast;
    to->strides[TT_SCRATCH] = geometry->shared_stride;
  }
  to->scale = reduction->scale.bits;
  to->divisor = reduction->divisor;
  to->op = reduction->op;
  to->scale_inputs = reduction->scale_inputs;
  to->scale_at = work->scale_at;
  to->divide_result = reduction->divide_result;
  to->element_bytes = (uint8_t)tt_datatype_bytes(reduction->datatype);
  to->protocol = (uint32_t)work->protocol;
  to->nchannels = (uint16_t)work->nchannels;
}

/* Bytes of a float factor lie in the low half of the union's bits, whatever was there before. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "factors are read from the low bytes");

static ncclResult_t put_work(struct builder *b, const struct tt_work *work, uint32_t *quad)
{
  uint32_t npeers = 0;
  for (uint32_t c = 0; c < work->nchannels; c++) npeers = TT_MAX(npeers, work->channels[c].program->npeers);
  size_t channel_words = (sizeof(struct tt_cuda_channel) / 4 + 2 * npeers + 3) / 4 * 4;
  size_t header_words = sizeof(struct tt_cuda_work) / 4;
  uint32_t *words = take_words(b, header_words + work->nchannels * channel_words);
  if (words == NULL) return no_memory();
  struct tt_cuda_work *header = (struct tt_cuda_work *)words;
  tt_cuda_put_header(work, header);
  *quad = (uint32_t)(words - b->words) / 4;
  header->channels = (uint16_t)(*quad + header_words / 4);
  header->channel_quads = (uint16_t)(channel_words / 4);
  for (uint32_t c = 0; c < work->nchannels; c++)
    TT_TRY(put_channel(b, work, c, words + header_words + c * channel_words));
  return ncclSuccess;
}

static int find_chain(const struct builder *b, uint64_t key)
{
  for (int c = b->nchains; c-- > 0;)
    if (b->keys[c] == key) return c;
  return -1;
}

/* Items are one a channel of each chain, of the chain's widest work; chains in the order of their first works. */
static ncclResult_t put_works(struct builder *b, struct tt_work *const *works, int nworks)
{
  uint32_t *widths, *first, nitems = 0;
  ncclResult_t result = ncclSuccess;
  b->nchains = 0;
  TT_TRY(TT_CALLOC(&widths, 2 * (size_t)nworks));
  first = widths + nworks;
  for (int w = 0; w < nworks; w++) {
    int chain = find_chain(b, works[w]->order);
    if (chain < 0) b->keys[chain = b->nchains++] = works[w]->order;
    widths[chain] = TT_MAX(widths[chain], works[w]->nchannels);
  }
  for (int c = 0; c < b->nchains; c++) nitems += widths[c];
  /* Items come first, and one word more, so that no work lies at quad 0, which means none. */
  if (take_words(b, nitems + 1) == NULL) {
    result = no_memory();
    goto out;
  }
  for (int w = 0; w < nworks; w++) {
    int chain = find_chain(b, works[w]->order);
    uint32_t quad;
    TT_TRY_GOTO(put_work(b, works[w], &quad), result, out);
    if (first[chain] == 0)
      first[chain] = quad;
    else
      ((struct tt_cuda_work *)(b->words + 4 * b->last[chain]))->next = (uint16_t)quad;
    b->last[chain] = quad;
  }
  for (int c = 0; c < b->nchains; c++)
    for (uint32_t channel = 0; channel < widths[c]; channel++) b->words[b->nitems++] = first[c] | channel << 16;
out:
  free(widths);
  return result;
}

unsigned tt_cuda_threads(int protocol, uint64_t bytes, int strands)
{
  uint64_t each = TT_CUDA_MAX_THREADS;
  /* Moves of four operands at once, and one warp more, which serves (lines.cuh). */
  if (protocol == TT_PROTO_LL) each = 32 + 4 * ((bytes + 7) / 8);
  if (protocol == TT_PROTO_LL128) each = 32 + 4 * ((bytes + 119) / 120 * 8);
  each = (TT_MAX(each, 160) + 31) / 32 * 32;
  uint64_t most = TT_CUDA_MAX_THREADS / (unsigned)strands / 32 * 32;
  return (unsigned)(TT_MIN(each, most) * (unsigned)strands);
}

/* All but the words, of which most launches have few: to clear the rest takes as long as all other planning. */
static void begin_launch(const struct tt_device_context *context, struct tt_cuda_launch *launch)
{
  launch->mapped = context->mapped_at;
  launch->claim = context->executor->claim;
  launch->conns = context->executor->conns;
  launch->blob = NULL;
  launch->nitems = launch->nwords = launch->channels = launch->channel_quads = 0;
}

static ncclResult_t start(const struct tt_device_context *context, const void *kernel, unsigned nblocks,
                          unsigned threads, struct tt_cuda_launch *launch, cudaStream_t stream)
{
  void *arguments[] = {launch};
  dim3 grid = {nblocks, 1, 1}, block = {threads, 1, 1};
  struct tt_cuda_attribute_list *list = tt_cuda_attributes_of(context, nblocks), early;
  if (context->executor->begins_early) {
    early = list != NULL ? *list : (struct tt_cuda_attribute_list){0};
    tt_cuda_attributes_add_early(list = &early);
    context->executor->begins_early = false; /* nor is what this call may launch after it right behind the last one */
  }
  if (list == NULL || list->count == 0) {
    TT_CUDA_TRY(cudaLaunchKernel(kernel, grid, block, arguments, 0, stream), "launching a kernel");
    return ncclSuccess;
  }
  const cudaLaunchConfig_t config = {
      .gridDim = grid, .blockDim = block, .stream = stream, .attrs = list->attributes, .numAttrs = list->count};
  TT_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, arguments), "launching a kernel");
  return ncclSuccess;
}

static ncclResult_t start_short(const struct tt_work *work, struct tt_cuda_launch *launch,
                                const struct tt_cuda_short_shape *shape, uint32_t nblocks, cudaStream_t stream)
{
  bool brief = shape->form == TT_CUDA_FORM_EXCHANGE && launch->nwords <= TT_CUDA_BRIEF_WORDS;
  enum tt_cuda_form form = brief ? TT_CUDA_FORM_BRIEF : shape->form;
  const void *kernel = tt_cuda_kernels[work->reduction.datatype](work->protocol, form);
  return start(work->context, kernel, nblocks, shape->threads, launch, stream);
}

/* A single small work in its short form; *launched false: it has none. */
static ncclResult_t launch_short(struct tt_device_context *context, const struct tt_work *work,
                                 enum tt_cuda_phase phase, cudaStream_t stream, bool *launched)
{
  struct tt_cuda_launch launch;
  struct tt_cuda_short_shape shape;
  begin_launch(context, &launch);
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
  begin_launch(context, &launch);
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
  if (ncopies > 0) TT_TRY(tt_cuda_copies_begin(context, copies, ncopies, stream, graph, &second));
  TT_TRY(tt_cuda_copy_by_engines(context, work, stream, graph));
  if (ncopies > 0) TT_TRY(tt_cuda_copies_end(context, second, stream));
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
  ncclResult_t joined = tt_cuda_copies_end(context, second, stream); /* also behind a failure */
  return result != ncclSuccess ? result : joined;
}

/* A single work as it is launched if it is not among others; *launched false: not so. */
static ncclResult_t launch_alone(struct tt_device_context *context, const struct tt_work *work, cudaStream_t stream,
                                 struct tt_cuda_graph *graph, bool *launched)
{
  if (tt_cuda_has_engines(work)) return launch_engines(context, work, NULL, 0, stream, graph, launched);
  return launch_short(context, work, TT_CUDA_WHOLE, stream, launched);
}

/* Which kernel runs the works of a segment. */
static ncclResult_t find_kernel(const struct builder *b, const void **kernel)
{
  enum tt_cuda_form form = b->mixed ? TT_CUDA_FORM_MIXED : TT_CUDA_FORM_ANY;
  *kernel = b->shares ? tt_cuda_nvls_kernel(b->datatype) : tt_cuda_kernels[b->datatype](b->protocol, form);
  if (*kernel != NULL && (!b->shares || b->protocol == TT_PROTO_SIMPLE)) return ncclSuccess;
  return TT_FAIL(ncclInternalError, "there is no kernel for shared memory, data type %d and protocol %d", b->datatype,
                 b->protocol);
}

static ncclResult_t start_kernel(struct builder *b, cudaStream_t stream, struct tt_cuda_graph *graph)
{
  struct tt_device_context *context = b->context;
  const void *kernel;
  TT_TRY(find_kernel(b, &kernel));
  struct tt_cuda_launch launch;
  struct tt_cuda_blob *blob = NULL;
  begin_launch(context, &launch);
  launch.nitems = b->nitems;
  launch.nwords = b->nwords;
  if (b->nwords <= TT_CUDA_PARAM_WORDS)
    memcpy(launch.words, b->words, b->nwords * sizeof(*b->words));
  else
    TT_TRY(tt_cuda_blob_take(context, b->words, b->nwords * sizeof(*b->words), &blob, &launch.blob));
  unsigned nblocks = TT_MIN(b->nitems, (unsigned)context->processors);
  unsigned threads = tt_cuda_threads(b->mixed ? TT_PROTO_SIMPLE : b->protocol, b->most_bytes, b->strands);
  ncclResult_t result = start(context, kernel, nblocks, threads, &launch, stream);
  ncclResult_t noted = blob != NULL ? tt_cuda_blob_launched(context, blob, stream, graph) : ncclSuccess;
  return result != ncclSuccess ? result : noted;
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
         a->reduction.datatype == b->reduction.datatype && shares_memory(a) == shares_memory(b) &&
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
  struct builder b = {.context = context,
                      .protocol = works[0]->protocol,
                      .datatype = works[0]->reduction.datatype,
                      .strands = 1,
                      .shares = shares_memory(works[0]),
                      .mixed = are_mixed(works, nworks)};
  ncclResult_t result;
  bool launched = false;
  if (nworks == 1 && !b.shares && works[0]->scale_at == NULL)
    TT_TRY(launch_alone(context, works[0], stream, graph, &launched));
  if (nworks > 1 && !b.mixed && b.protocol != TT_PROTO_SIMPLE)
    TT_TRY(launch_together(context, works, nworks, stream, &launched));
  if (launched) return ncclSuccess;
  if (is_mapped(works[0]))
    return TT_FAIL(ncclInternalError,
                   "rank %d: a program with members' buffers, of %u channels among %d ranks in chunks of %zu elements, "
                   "is more than a kernel's parameters can describe",
                   context->rank, works[0]->nchannels, works[0]->channels[0].program->nranks,
                   works[0]->channels[0].geometry.last_chunk);
  TT_TRY_GOTO(TT_CALLOC(&b.keys, (size_t)nworks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&b.last, (size_t)nworks), result, out);
  TT_TRY_GOTO(put_works(&b, works, nworks), result, out);
  if (b.nwords > MOST_WORDS && nworks > 1) { /* positions are counted in 16 bits */
    result = launch_segment(context, works, nworks / 2, stream, graph);
    if (result == ncclSuccess) result = launch_segment(context, works + nworks / 2, nworks - nworks / 2, stream, graph);
  } else {
    result = start_kernel(&b, stream, graph);
  }
out:
  free(b.keys);
  free(b.last);
  free(b.words);
  return result;
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
  if (graph == NULL) tt_cuda_launched(context, stream);
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
