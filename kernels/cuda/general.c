/* Launches of any works: put into words (descriptor.h), in the kernel's parameters or in a piece of memory, for the
 * kernel of a protocol that runs them chain by chain. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/multicast.h"

enum { MOST_WORDS = 4 * UINT16_MAX };
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

bool tt_cuda_shares_memory(const struct tt_work *work)
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
  if (tt_cuda_shares_memory(work)) {
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
  tt_cuda_launch_begin(context, &launch);
  launch.nitems = b->nitems;
  launch.nwords = b->nwords;
  if (b->nwords <= TT_CUDA_PARAM_WORDS)
    memcpy(launch.words, b->words, b->nwords * sizeof(*b->words));
  else
    TT_TRY(tt_cuda_blob_take(context, b->words, b->nwords * sizeof(*b->words), &blob, &launch.blob));
  unsigned nblocks = TT_MIN(b->nitems, (unsigned)context->processors);
  unsigned threads = tt_cuda_threads(b->mixed ? TT_PROTO_SIMPLE : b->protocol, b->most_bytes, b->strands);
  ncclResult_t result = tt_cuda_start(context, kernel, nblocks, threads, &launch, stream);
  ncclResult_t noted = blob != NULL ? tt_cuda_blob_launched(context, blob, stream, graph) : ncclSuccess;
  return result != ncclSuccess ? result : noted;
}

ncclResult_t tt_cuda_launch_general(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                                    bool mixed, cudaStream_t stream, struct tt_cuda_graph *graph, bool *launched)
{
  struct builder b = {.context = context,
                      .protocol = works[0]->protocol,
                      .datatype = works[0]->reduction.datatype,
                      .strands = 1,
                      .shares = tt_cuda_shares_memory(works[0]),
                      .mixed = mixed};
  ncclResult_t result;
  TT_TRY_GOTO(TT_CALLOC(&b.keys, (size_t)nworks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&b.last, (size_t)nworks), result, out);
  TT_TRY_GOTO(put_works(&b, works, nworks), result, out);
  *launched = b.nwords <= MOST_WORDS || nworks == 1;
  if (*launched) result = start_kernel(&b, stream, graph);
out:
  free(b.keys);
  free(b.last);
  free(b.words);
  return result;
}
