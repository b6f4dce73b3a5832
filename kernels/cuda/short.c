/* Short works (descriptor.h): the packed program written out, repetition by repetition, with all that does not depend
 * on a connection's step. */
#include <stddef.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/pack.h"

/* Of a kernel that only exchanges messages. */
enum { MESSAGE_THREADS = 64 };
enum { MOST_USES = TT_SLOTS / 2, STEPS_WORD = TT_CUDA_SHORT_WORK + (int)sizeof(struct tt_cuda_work) / 4 };
_Static_assert(sizeof(struct tt_cuda_short) <= 4 * TT_CUDA_SHORT_WORK, "the work lies behind the list");

/* Words in the making. */
struct writer {
  const struct tt_work *work;
  enum tt_cuda_phase phase;
  enum tt_cuda_overlap overlap;
  uint32_t *words;
  uint32_t at;   /* words written */
  bool too_long; /* what follows does not fit */
};

static void *put(struct writer *w, size_t bytes)
{
  uint32_t words = (uint32_t)(bytes + 3) / 4;
  if (w->at + words > TT_CUDA_PARAM_WORDS) {
    w->too_long = true;
    return NULL;
  }
  void *room = w->words + w->at;
  memset(room, 0, 4 * words);
  w->at += words;
  return room;
}

static void align(struct writer *w)
{
  while (w->at % 4 != 0) w->words[w->at++] = 0;
}
_Static_assert(TT_CUDA_PARAM_WORDS % 4 == 0, "there is room to align");

static uint32_t operand_count(const struct tt_cuda_instruction *i)
{
  return i->opcode == TT_OP_DATA ? (uint32_t)(i->nsends + i->ninputs + i->noutputs + i->nreceives) : 0;
}

static bool is_whole(enum tt_cuda_phase phase)
{
  return phase == TT_CUDA_WHOLE || phase == TT_CUDA_GENERAL;
}

/* Whether instruction i of a strand is in what is written: in phases, those before the first that copies, or those
 * after the last. */
static bool is_in_phase(const struct writer *w, const struct tt_cuda_program *packed,
                        const struct tt_cuda_strand *strand, int i)
{
  if (is_whole(w->phase)) return true;
  int from = w->phase == TT_CUDA_BEFORE ? 0 : i, to = w->phase == TT_CUDA_BEFORE ? i + 1 : strand->ninstructions;
  for (int k = from; k < to; k++)
    if (tt_cuda_instruction_of(packed, strand->first_instruction + k)->ninputs > 0) return false;
  return true;
}

/* What a broadcast's root copies from its input to its output, where both are the same. */
static bool is_onto_itself(const struct writer *w, const struct tt_cuda_program *packed,
                           const struct tt_cuda_instruction *i)
{
  if (w->overlap != TT_CUDA_SAME || i->opcode != TT_OP_DATA || i->flags != 0 || w->work->reduction.scale_inputs ||
      i->nsends != 0 || i->ninputs != 1 || i->noutputs != 1 || i->nreceives != 0)
    return false;
  const struct tt_cuda_operand *from = tt_cuda_operand_of(packed, i->first_operand), *to = from + 1;
  return from->role == TT_CUDA_IN_LOCAL && to->role == TT_CUDA_OUT_LOCAL && from->buffer == TT_INPUT &&
         to->buffer == TT_OUTPUT && from->start == to->start && from->stride == to->stride &&
         from->modulo == to->modulo;
}

static bool is_written(const struct writer *w, const struct tt_cuda_program *packed,
                       const struct tt_cuda_strand *strand, int i)
{
  return is_in_phase(w, packed, strand, i) &&
         !is_onto_itself(w, packed, tt_cuda_instruction_of(packed, strand->first_instruction + i));
}

/* Steps and entries of a program; false if it is no short one. */
static bool count(const struct writer *w, const struct tt_cuda_program *packed, uint32_t *nsteps, uint32_t *nentries)
{
  *nsteps = *nentries = 0;
  for (int s = 0; s < packed->nstrands; s++) {
    const struct tt_cuda_strand *strand = tt_cuda_strand_of(packed, s);
    for (int i = 0; i < strand->ninstructions; i++) {
      if (!is_written(w, packed, strand, i)) continue;
      const struct tt_cuda_instruction *instruction = tt_cuda_instruction_of(packed, strand->first_instruction + i);
      uint32_t operands = operand_count(instruction);
      for (uint32_t k = 0; k < operands; k++)
        if (tt_cuda_operand_of(packed, instruction->first_operand + (int)k)->uses_a_loop > MOST_USES) return false;
      *nsteps += instruction->repeat;
      *nentries += instruction->repeat * operands;
      if (*nsteps > UINT8_MAX || *nentries > TT_CUDA_MAX_THREADS || *nentries > TT_CUDA_ENTRIES) return false;
    }
  }
  return true;
}

static void put_entry(const struct writer *w, const struct tt_cuda_program *packed,
                      const struct tt_cuda_operand *operand, uint32_t repetition, struct tt_cuda_short_entry *to)
{
  bool empty = operand->modulo == 0; /* a message without data */
  uint32_t chunk = empty ? 0 : (operand->start + repetition * operand->stride) % operand->modulo;
  *to = (struct tt_cuda_short_entry){.role = operand->role,
                                     .conn = (uint8_t)operand->conn,
                                     .part = (uint16_t)(chunk % packed->parts),
                                     .row = (uint16_t)(chunk / packed->parts)};
  bool message = operand->role != TT_CUDA_IN_LOCAL && operand->role != TT_CUDA_OUT_LOCAL;
  if (operand->role != TT_CUDA_IN_RECV && operand->role != TT_CUDA_OUT_SEND && !empty) {
    bool member = operand->buffer == TT_MEMBER_INPUT || operand->buffer == TT_MEMBER_OUTPUT;
    bool input = operand->buffer == TT_INPUT || operand->buffer == TT_MEMBER_INPUT;
    to->flags |= TT_CUDA_SHORT_LOCAL;
    if (member) to->flags |= TT_CUDA_SHORT_MEMBER;
    if (!input) to->flags |= TT_CUDA_SHORT_OUTPUT;
    if (input && w->work->reduction.scale_inputs) to->flags |= TT_ENTRY_SCALED;
  }
  if (!message) return;
  to->uses_before = (uint8_t)(operand->uses_before + repetition);
  to->flags |= TT_CUDA_SHORT_MESSAGE;
  if (to->uses_before == 0) to->flags |= TT_ENTRY_FIRST;
  if (to->uses_before + 1u == operand->uses_a_loop) to->flags |= TT_CUDA_SHORT_LAST;
}

enum tt_cuda_overlap tt_cuda_overlap_of(const struct tt_work *work)
{
  const struct tt_geometry *geometry = &work->channels[0].geometry;
  const struct tt_program *program = work->channels[0].program;
  size_t element = tt_datatype_bytes(work->reduction.datatype);
  const char *input = work->input, *output = work->output;
  size_t reads = TT_MAX(program->input_blocks, 1) * geometry->input_stride * element;
  size_t writes = TT_MAX(program->output_blocks, 1) * geometry->output_stride * element;
  if (input == output) return TT_CUDA_SAME;
  return input < output + writes && output < input + reads ? TT_CUDA_OVERLAPPING : TT_CUDA_APART;
}

static bool touches(const struct tt_cuda_program *packed, const struct tt_cuda_instruction *i, bool writing, int buffer)
{
  for (uint32_t k = 0; k < operand_count(i); k++) {
    const struct tt_cuda_operand *operand = tt_cuda_operand_of(packed, i->first_operand + (int)k);
    bool writes = operand->role == TT_CUDA_OUT_LOCAL || operand->role == TT_CUDA_MOVE_RECV;
    bool reads = operand->role == TT_CUDA_IN_LOCAL || operand->role == TT_CUDA_MOVE_SEND;
    if ((writing ? writes : reads) && operand->buffer == buffer) return true;
  }
  return false;
}

/* `follows`: steps of a strand before it go first. */
static void put_strand(const struct writer *w, const struct tt_cuda_program *packed,
                       const struct tt_cuda_strand *strand, bool follows, struct tt_cuda_short_step **step,
                       struct tt_cuda_short_entry *entries, uint32_t *nentries)
{
  bool aliased = w->overlap != TT_CUDA_APART;
  for (int i = 0; i < strand->ninstructions; i++) {
    if (!is_written(w, packed, strand, i)) continue;
    const struct tt_cuda_instruction *from = tt_cuda_instruction_of(packed, strand->first_instruction + i);
    bool data = from->opcode == TT_OP_DATA;
    bool after = touches(packed, from, false, TT_OUTPUT) ||
                 (aliased && (touches(packed, from, true, TT_OUTPUT) || touches(packed, from, false, TT_INPUT)));
    for (uint32_t r = 0; r < from->repeat; r++) {
      *(*step)++ = (struct tt_cuda_short_step){
          .first = data ? (uint16_t)*nentries : from->semaphore,
          .opcode = from->opcode,
          .flags = from->flags | (after && (follows || i > 0 || r > 0) ? TT_CUDA_SHORT_BARRIER : 0),
          .nsends = from->nsends,
          .ninputs = from->ninputs,
          .noutputs = from->noutputs,
          .nreceives = from->nreceives};
      for (uint32_t k = 0; k < operand_count(from); k++)
        put_entry(w, packed, tt_cuda_operand_of(packed, from->first_operand + (int)k), r, &entries[(*nentries)++]);
    }
  }
}

static bool has(const struct tt_cuda_program *packed, const struct tt_cuda_strand *strand, bool receives)
{
  for (int i = 0; i < strand->ninstructions; i++) {
    const struct tt_cuda_instruction *instruction = tt_cuda_instruction_of(packed, strand->first_instruction + i);
    if (instruction->opcode != TT_OP_DATA) return true;
    for (uint32_t k = 0; receives && k < operand_count(instruction); k++) {
      int role = tt_cuda_operand_of(packed, instruction->first_operand + (int)k)->role;
      if (role == TT_CUDA_IN_RECV || role == TT_CUDA_MOVE_RECV) return true;
    }
  }
  return false;
}

/* Whether the second of two strands may follow the first: there is no order between them but what follows from that,
 * and the first waits for no data. If it waits for slots, then only until its peer has begun the work before, since a
 * short work sends less than there are. A single strand has all threads, and the way in a hurry (lean.cuh). */
static bool is_one_strand(const struct tt_cuda_program *packed)
{
  return packed->nstrands == 1 || (packed->nstrands == 2 && !has(packed, tt_cuda_strand_of(packed, 0), true) &&
                                   !has(packed, tt_cuda_strand_of(packed, 1), false));
}

static bool only_receives(const struct tt_cuda_short_entry *entries, uint32_t nentries)
{
  bool receives = false;
  for (uint32_t e = 0; e < nentries; e++) {
    if (entries[e].role == TT_CUDA_MOVE_SEND || entries[e].role == TT_CUDA_OUT_SEND) return false;
    receives |= (entries[e].flags & TT_CUDA_SHORT_MESSAGE) != 0;
  }
  return receives;
}

/* False: it is no short program. */
static bool put_program(struct writer *w, const struct tt_cuda_program *packed, struct tt_cuda_short *list)
{
  uint32_t nsteps, nentries, written = 0;
  if (!count(w, packed, &nsteps, &nentries)) return false;
  struct tt_cuda_short_step *steps = put(w, nsteps * sizeof(*steps)), *step = steps;
  align(w);
  list->entries = (uint16_t)(w->at / 4);
  struct tt_cuda_short_entry *entries = put(w, nentries * sizeof(*entries));
  if (w->too_long) return false;
  list->nsteps = (uint8_t)nsteps;
  list->nentries = (uint16_t)nentries;
  list->nstrands = (uint8_t)(is_one_strand(packed) ? 1 : packed->nstrands);
  for (int s = 0; s < packed->nstrands; s++) {
    put_strand(w, packed, tt_cuda_strand_of(packed, s), s >= list->nstrands, &step, entries, &written);
    list->first_step[TT_MIN(s + 1, list->nstrands)] = (uint16_t)(step - steps);
  }
  if (only_receives(entries, nentries)) list->flags |= TT_CUDA_SHORT_TELLS;
  align(w);
  return true;
}

static void note_served(const struct tt_conn *conn, struct tt_cuda_short *list)
{
  if (conn != NULL && (conn->flags & (TT_CONN_PROXIED | TT_CONN_LINES)) != 0)
    list->flags |= TT_CUDA_SHORT_SERVED | TT_CUDA_SHORT_TELLS;
}

/* All but where its buffers lie. */
static bool put_channel(struct writer *w, struct tt_cuda_short *list, uint32_t c)
{
  const struct tt_work_channel *channel = &w->work->channels[c];
  uint32_t npeers = channel->program->npeers;
  struct tt_cuda_short_channel *to = put(w, sizeof(*to));
  uint32_t *ends = put(w, 2 * npeers * sizeof(*ends));
  if (w->too_long) return false;
  size_t element = tt_datatype_bytes(w->work->reduction.datatype);
  to->share = (channel->geometry.hi - channel->geometry.lo) * element;
  to->part = (uint32_t)(channel->geometry.last_chunk * element);
  for (uint32_t p = 0; p < npeers; p++) {
    ends[p] = channel->send[p] != NULL ? tt_cuda_conn_index(channel->send[p]) : UINT32_MAX;
    ends[npeers + p] = channel->recv[p] != NULL ? tt_cuda_conn_index(channel->recv[p]) : UINT32_MAX;
    note_served(channel->send[p], list);
    note_served(channel->recv[p], list);
  }
  align(w);
  return true;
}

static bool put_members(struct writer *w, struct tt_cuda_short *list)
{
  uint32_t *to = put(w, w->work->channels[0].program->nmembers * sizeof(struct tt_cuda_short_member));
  if (w->too_long) return false;
  list->members = (uint16_t)((to - w->words) / 4);
  return true;
}

void tt_cuda_point_short(const struct tt_work *work, const struct tt_cuda_short_shape *shape, uint32_t *words)
{
  const struct tt_cuda_short *list = (const struct tt_cuda_short *)words;
  struct tt_cuda_work *header = (struct tt_cuda_work *)(words + TT_CUDA_SHORT_WORK);
  const bool exchange = tt_cuda_is_exchange(shape->form);
  const uint32_t first = exchange ? shape->channels : list->channels;
  const uint32_t quads = exchange ? shape->channel_quads : list->channel_quads;
  size_t element = tt_datatype_bytes(work->reduction.datatype);
  unsigned char *input = (unsigned char *)work->input, *output = work->output;
  for (uint32_t c = 0; c < work->nchannels; c++) {
    unsigned char **at = (unsigned char **)(words + 4 * (first + c * quads)); /* of either kind of channel */
    size_t offset = work->channels[c].geometry.lo * element;
    at[0] = input + offset;
    at[1] = output + offset;
  }
  if (exchange) return;
  header->buffers[TT_INPUT] = input;
  header->buffers[TT_OUTPUT] = output;
  struct tt_cuda_short_member *members = (struct tt_cuda_short_member *)(words + 4 * list->members);
  for (uint32_t m = 0; list->members != 0 && m < work->channels[0].program->nmembers; m++)
    members[m] = (struct tt_cuda_short_member){(unsigned char *)work->member_inputs[m], work->member_outputs[m]};
}
_Static_assert(offsetof(struct tt_cuda_short_channel, input) == 0 &&
                   offsetof(struct tt_cuda_short_channel, output) == 8 &&
                   offsetof(struct tt_cuda_exchange_channel, input) == 0 &&
                   offsetof(struct tt_cuda_exchange_channel, output) == 8,
               "channels begin with their buffers");

/* The program of all channels, if they have one in common and a single loop; else NULL. */
static ncclResult_t common_program(struct tt_device_context *context, const struct tt_work *work,
                                   const struct tt_cuda_program **out)
{
  const struct tt_cuda_program *common = NULL, *packed, *on_device;
  *out = NULL;
  bool mapped = tt_cuda_is_mapped(work->channels[0].program);
  bool beside = work->signature.collective == TT_FUNC_SEND_RECV; /* a copy among messages */
  if (mapped != (work->protocol == TT_PROTO_SIMPLE) || work->nchannels > (unsigned)context->processors)
    return ncclSuccess;
  for (uint32_t c = 0; c < work->nchannels; c++) {
    const struct tt_work_channel *channel = &work->channels[c];
    if (channel->geometry.loops != 1 || channel->program->nscratch > 0 || (channel->program->npeers == 0 && !beside) ||
        channel->geometry.last_chunk > UINT32_MAX / tt_datatype_bytes(work->reduction.datatype))
      return ncclSuccess;
    TT_TRY(tt_cuda_program_get(context, channel->program, &packed, &on_device));
    if (c > 0 && packed != common) return ncclSuccess;
    common = packed;
  }
  *out = common;
  return ncclSuccess;
}

/* See TT_CUDA_FORM_EXCHANGE_DEEP. */
static bool is_deep(int protocol, uint64_t bytes, unsigned threads)
{
  return protocol == TT_PROTO_LL128 && (bytes + 119) / 120 > (threads - 32) / 8;
}

static ncclResult_t put_general(struct tt_device_context *context, const struct tt_work *work, enum tt_cuda_phase phase,
                                uint32_t *words, struct tt_cuda_short_shape *shape)
{
  struct writer w = {
      .work = work, .phase = phase, .overlap = tt_cuda_overlap_of(work), .words = words, .at = STEPS_WORD};
  struct tt_cuda_short *list = (struct tt_cuda_short *)words;
  const struct tt_cuda_program *packed;
  *shape = (struct tt_cuda_short_shape){0};
  TT_TRY(common_program(context, work, &packed));
  if (packed == NULL) return ncclSuccess;
  memset(words, 0, STEPS_WORD * sizeof(*words));
  tt_cuda_put_header(work, (struct tt_cuda_work *)(words + TT_CUDA_SHORT_WORK));
  if (!put_program(&w, packed, list)) return ncclSuccess;
  list->channels = (uint16_t)(w.at / 4);
  for (uint32_t c = 0; c < work->nchannels; c++) {
    if (!put_channel(&w, list, c)) return ncclSuccess;
    if (c == 0) list->channel_quads = (uint16_t)(w.at / 4 - list->channels);
  }
  bool mapped = tt_cuda_is_mapped(work->channels[0].program);
  if (mapped && is_whole(phase) && !put_members(&w, list)) return ncclSuccess;
  shape->nwords = w.at;
  shape->nsteps = list->nsteps;
  shape->form = mapped ? TT_CUDA_FORM_MAPPED : TT_CUDA_FORM_SHORT;
  return ncclSuccess;
}

ncclResult_t tt_cuda_put_short(struct tt_device_context *context, const struct tt_work *work, enum tt_cuda_phase phase,
                               uint32_t *words, struct tt_cuda_short_shape *shape)
{
  uint32_t general[TT_CUDA_PARAM_WORDS];
  struct tt_cuda_short *list = (struct tt_cuda_short *)general;
  uint64_t bytes = 0;
  TT_TRY(put_general(context, work, phase, general, shape));
  if (shape->nwords == 0) return ncclSuccess;
  for (uint32_t c = 0; c < work->nchannels; c++) bytes = TT_MAX(bytes, work->channels[c].geometry.last_chunk);
  bytes *= tt_datatype_bytes(work->reduction.datatype);
  bool exchange = phase == TT_CUDA_WHOLE && tt_cuda_put_exchange(work, general, words, shape);
  unsigned strands = exchange ? 1 : list->nstrands, step = 32 * strands; /* a thread resolves an entry */
  unsigned data = is_whole(phase) ? tt_cuda_threads(work->protocol, bytes, (int)strands) : MESSAGE_THREADS;
  shape->threads = exchange ? data : TT_MAX(data, (list->nentries + step - 1) / step * step);
  if (exchange) {
    shape->form = is_deep(work->protocol, bytes, shape->threads) ? TT_CUDA_FORM_EXCHANGE_DEEP : TT_CUDA_FORM_EXCHANGE;
  } else {
    list->strand_threads = (uint16_t)(shape->threads / strands);
    memcpy(words, general, shape->nwords * sizeof(*words));
  }
  tt_cuda_point_short(work, shape, words);
  return ncclSuccess;
}
