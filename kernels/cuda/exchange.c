/* Short works that are exchanges (struct tt_cuda_exchange): their kernel sends all chunks of the input before a
 * barrier, and does the rest behind it. So it needs no other order between steps, and a program's signals, which say no
 * more, are left out. */
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"

/* Entries of the short work, by what they are in the exchange. */
struct parts {
  uint32_t sends, inputs, receives, copy; /* the first */
  uint32_t source;                        /* of what is sent; UINT32_MAX: each is its own */
  uint32_t nsends, ninputs, noutputs, nreceives, ncopies;
};

struct finder {
  const struct tt_cuda_short *list;
  const struct tt_cuda_work *work;
  const struct tt_cuda_short_step *steps;
  const struct tt_cuda_short_entry *entries;
  struct parts parts;
};

static bool reads_input(const struct finder *f, uint32_t first, uint32_t n)
{
  for (uint32_t k = first; k < first + n; k++)
    if (f->entries[k].flags & TT_CUDA_SHORT_OUTPUT) return false;
  return true;
}

static bool take_sends(struct finder *f, uint32_t first, uint32_t n, uint32_t source)
{
  if (n == 0) return true;
  if (f->parts.nsends > 0 || !reads_input(f, source == UINT32_MAX ? first : source, source == UINT32_MAX ? n : 1))
    return false;
  f->parts.sends = first;
  f->parts.nsends = n;
  f->parts.source = source;
  return true;
}

/* A step that passes one input on: to this rank's memory, to peers, or both. */
static bool take_copy(struct finder *f, const struct tt_cuda_short_step *step, uint32_t input)
{
  uint32_t nlocal = 0;
  if (f->entries[input].role != TT_CUDA_IN_LOCAL || !reads_input(f, input, 1)) return false;
  while (nlocal < step->noutputs && f->entries[input + 1 + nlocal].role == TT_CUDA_OUT_LOCAL) nlocal++;
  if (nlocal > 1 || (nlocal > 0 && f->parts.ncopies > 0)) return false;
  if (nlocal > 0) {
    f->parts.ncopies = 1;
    f->parts.copy = input; /* and the next */
  }
  return take_sends(f, input + 1 + nlocal, step->noutputs - nlocal, input);
}

static bool take_reduction(struct finder *f, const struct tt_cuda_short_step *step, uint32_t first)
{
  if (f->parts.ninputs > 0) return false;
  for (uint32_t k = first; k < first + step->ninputs; k++)
    if (f->entries[k].role == TT_CUDA_IN_LOCAL && !reads_input(f, k, 1)) return false;
  f->parts.inputs = first;
  f->parts.ninputs = step->ninputs;
  f->parts.noutputs = step->noutputs;
  return true;
}

static bool take_step(struct finder *f, const struct tt_cuda_short_step *step)
{
  uint32_t input = step->first + step->nsends;
  if (step->opcode != TT_OP_DATA) return true;
  if (!take_sends(f, step->first, step->nsends, UINT32_MAX)) return false;
  if (step->ninputs == 1 && !take_copy(f, step, input)) return false;
  if (step->ninputs > 1 && !take_reduction(f, step, input)) return false;
  if (step->nreceives == 0) return true;
  if (f->parts.nreceives > 0) return false;
  f->parts.receives = input + step->ninputs + step->noutputs;
  f->parts.nreceives = step->nreceives;
  return true;
}

static bool find(struct finder *f)
{
  if (f->list->flags & TT_CUDA_SHORT_SERVED || f->work->scale_inputs || f->work->divide_result ||
      f->work->protocol == TT_PROTO_SIMPLE)
    return false;
  for (uint32_t s = 0; s < f->list->nsteps; s++)
    if (!take_step(f, &f->steps[s])) return false;
  return true;
}

/* ---- Writing ---- */

/* Which entry of the short work each of the exchange's is. */
static uint32_t order_of(const struct parts *parts, uint32_t order[TT_CUDA_WARP])
{
  const uint32_t first[] = {parts->sends, parts->inputs, parts->receives, parts->copy};
  const uint32_t n[] = {parts->nsends, parts->ninputs + parts->noutputs, parts->nreceives, 2 * parts->ncopies};
  uint32_t count = 0;
  for (size_t i = 0; i < TT_COUNT(first); i++)
    for (uint32_t k = 0; k < n[i]; k++, count++)
      if (count < TT_CUDA_WARP) order[count] = first[i] + k;
  return count;
}

static uint16_t share_of(uint32_t n)
{
  return n == 0 ? 0 : (uint16_t)(((1u << TT_CUDA_SHARE_BITS) + n - 1) / n);
}

/* See TT_CUDA_EXCHANGE_PAIR. */
static bool is_pair(const struct finder *f, uint8_t *local)
{
  const struct parts *parts = &f->parts;
  uint32_t nlocal = 0;
  for (uint32_t k = 0; k < parts->ninputs; k++) {
    if (f->entries[parts->inputs + k].role != TT_CUDA_IN_LOCAL) continue;
    *local = (uint8_t)k;
    nlocal++;
  }
  return parts->ninputs == 2 && nlocal == 1 && parts->noutputs > 0 &&
         f->entries[parts->inputs + parts->ninputs].role == TT_CUDA_OUT_LOCAL;
}

static void put_shape(const struct finder *f, const struct tt_work *work, uint32_t nentries,
                      struct tt_cuda_exchange *to)
{
  const struct parts *parts = &f->parts;
  *to = (struct tt_cuda_exchange){.signature = f->work->signature,
                                  .signature_hash = f->work->signature_hash,
                                  .nentries = (uint8_t)nentries,
                                  .nsends = (uint8_t)parts->nsends,
                                  .ninputs = (uint8_t)parts->ninputs,
                                  .noutputs = (uint8_t)parts->noutputs,
                                  .nreceives = (uint8_t)parts->nreceives,
                                  .ncopies = (uint8_t)parts->ncopies,
                                  .op = f->work->op};
  if (parts->ncopies > 0 && tt_cuda_overlap_of(work) == TT_CUDA_APART) to->flags |= TT_CUDA_EXCHANGE_BESIDE;
  if (is_pair(f, &to->local_input)) to->flags |= TT_CUDA_EXCHANGE_PAIR;
  if (f->list->flags & TT_CUDA_SHORT_TELLS) to->flags |= TT_CUDA_EXCHANGE_TELLS;
  to->send_share = share_of(parts->nsends + (to->flags & TT_CUDA_EXCHANGE_BESIDE ? 1 : 0));
  to->receive_share = share_of(parts->nreceives);
}

static void put_entries(const struct finder *f, const uint32_t *order, uint32_t nentries,
                        struct tt_cuda_exchange_entry *to)
{
  for (uint32_t k = 0; k < nentries; k++, to++) {
    const struct tt_cuda_short_entry *from = &f->entries[order[k]], *place = from;
    if (k < f->parts.nsends && f->parts.source != UINT32_MAX) place = &f->entries[f->parts.source];
    bool output = place->flags & TT_CUDA_SHORT_OUTPUT;
    *to = (struct tt_cuda_exchange_entry){
        .offset = place->row * f->work->strides[output ? TT_OUTPUT : TT_INPUT] * f->work->element_bytes,
        .part = place->part,
        .role = k < f->parts.nsends ? TT_CUDA_MOVE_SEND : from->role,
        .flags = from->flags | (place->flags & (TT_CUDA_SHORT_LOCAL | TT_CUDA_SHORT_OUTPUT)),
        .uses_before = from->uses_before};
  }
}

static const struct tt_cuda_short_channel *channel_of(const struct finder *f, uint32_t c)
{
  const uint32_t *words = (const uint32_t *)f->list;
  return (const struct tt_cuda_short_channel *)(words + 4 * (f->list->channels + c * f->list->channel_quads));
}

static void put_channel(const struct finder *f, uint32_t c, const uint32_t *order, uint32_t nentries,
                        struct tt_cuda_exchange_channel *to)
{
  const struct tt_cuda_short_channel *from = channel_of(f, c);
  const uint32_t *ends = (const uint32_t *)(from + 1);
  uint32_t *indices = (uint32_t *)(to + 1);
  *to = (struct tt_cuda_exchange_channel){
      .input = from->input, .output = from->output, .share = (uint32_t)from->share, .part = from->part, .number = c};
  for (uint32_t k = 0; k < nentries; k++) {
    const struct tt_cuda_short_entry *entry = &f->entries[order[k]];
    indices[k] = entry->flags & TT_CUDA_SHORT_MESSAGE ? ends[entry->conn] : 0;
  }
}

bool tt_cuda_put_exchange(const struct tt_work *work, const uint32_t *from, uint32_t *words,
                          struct tt_cuda_short_shape *shape)
{
  const struct tt_cuda_short *list = (const struct tt_cuda_short *)from;
  const struct tt_cuda_work *header = (const struct tt_cuda_work *)(from + TT_CUDA_SHORT_WORK);
  struct finder f = {list,
                     header,
                     (const struct tt_cuda_short_step *)(header + 1),
                     (const struct tt_cuda_short_entry *)(from + 4 * list->entries),
                     {.source = UINT32_MAX}};
  uint32_t order[TT_CUDA_WARP];
  if (!find(&f)) return false;
  uint32_t nentries = order_of(&f.parts, order);
  struct tt_cuda_exchange *to = (struct tt_cuda_exchange *)words;
  struct tt_cuda_exchange_entry *entries = (struct tt_cuda_exchange_entry *)(to + 1);
  size_t first = (sizeof(*to) + nentries * sizeof(*entries)) / 16;
  size_t quads = (sizeof(struct tt_cuda_exchange_channel) + 4 * nentries + 15) / 16;
  size_t nwords = 4 * (first + work->nchannels * quads);
  uint64_t share = 0;
  for (uint32_t c = 0; c < work->nchannels; c++) share = TT_MAX(share, channel_of(&f, c)->share);
  if (nentries > TT_CUDA_WARP || nwords > TT_CUDA_PARAM_WORDS || share > INT32_MAX) return false;
  memset(words, 0, 4 * nwords);
  put_shape(&f, work, nentries, to);
  put_entries(&f, order, nentries, entries);
  for (uint32_t c = 0; c < work->nchannels; c++)
    put_channel(&f, c, order, nentries, (struct tt_cuda_exchange_channel *)(words + 4 * (first + c * quads)));
  shape->nwords = (uint32_t)nwords;
  shape->channels = (uint16_t)first;
  shape->channel_quads = (uint16_t)quads;
  return true;
}
