/* See short_work.h. */
#include "short_work.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "fake_launch.h"
#include "walk.h"

enum { FIRST_INDEX = 100 }; /* of a connection's end in the context's table, times the channel */

struct made_work made;

static void use_ends(void *channel, const struct walk_step *step)
{
  int c = *(int *)channel;
  for (uint32_t k = 0; k < step->noperands; k++) {
    uint32_t conn = step->operands[k].conn;
    if (!step->operands[k].message) continue;
    made.conns[c][conn].twin = (void *)(uintptr_t)(FIRST_INDEX * (c + 1) + conn + 1); /* see tt_cuda_conn_index */
    made.ends[c][conn] = &made.conns[c][conn];
  }
}

void make_work(const struct tt_program *program, int nchannels, int protocol, bool in_place)
{
  static char input[64 << 10], output[64 << 10];
  size_t length = (SHARE + program->parts - 1) / program->parts + 5, stride = SHARE * (size_t)nchannels;
  memset(&made, 0, sizeof(made));
  made.work = (struct tt_work){
      .size = sizeof(made.work),
      .signature = {.count = stride, .datatype = ncclFloat32, .protocol = (uint8_t)protocol},
      .reduction = {.op = ncclMax, .datatype = ncclFloat32, .scale_inputs = 1, .divide_result = 1, .divisor = 3},
      .protocol = protocol,
      .nchannels = (uint32_t)nchannels,
      .input = in_place ? output : input,
      .output = output,
      .channels = made.channels,
      .context = &fake_context};
  made.work.reduction.scale.f32 = 0.5f;
  for (uintptr_t m = 0; m < program->nmembers; m++) { /* only compared */
    made.inputs[m] = (void *)((2 * m + 1) << 32);
    made.outputs[m] = in_place ? (void *)(uintptr_t)made.inputs[m] : (void *)((2 * m + 2) << 32);
  }
  made.work.member_inputs = made.inputs;
  made.work.member_outputs = made.outputs;
  for (int c = 0; c < nchannels; c++) {
    made.channels[c] = (struct tt_work_channel){.program = program,
                                                .send = made.ends[c],
                                                .recv = made.ends[c] + program->npeers,
                                                .geometry = {.lo = SHARE * (size_t)c,
                                                             .hi = SHARE * (size_t)(c + 1),
                                                             .chunk = length,
                                                             .last_chunk = length,
                                                             .input_stride = stride,
                                                             .output_stride = stride,
                                                             .loops = 1}};
    walk(program, use_ends, &c);
  }
}

/* ---- Reading it ---- */

struct place {
  uintptr_t from, to; /* of bytes */
};

struct reading {
  const struct tt_program *program;
  const uint32_t *words;
  const struct tt_cuda_short *list;
  const struct tt_cuda_work *header;
  const struct tt_cuda_short_step *steps;
  const struct tt_cuda_short_entry *entries;
  uint32_t nsteps, nentries; /* read so far */
  struct place reads[TT_CUDA_ENTRIES], writes[TT_CUDA_ENTRIES];
  uint32_t nreads, nwrites; /* since then */
  int barriers;
};

static const struct tt_cuda_short_channel *channel_at(const struct reading *reading, int c)
{
  return (const struct tt_cuda_short_channel *)(reading->words +
                                                4 * (reading->list->channels + c * reading->list->channel_quads));
}

static bool overlaps(const struct place *places, uint32_t n, struct place place)
{
  bool any = false;
  for (uint32_t i = 0; i < n; i++) any |= places[i].from < place.to && place.from < places[i].to;
  return any;
}

static bool is_member(const struct walk_operand *want)
{
  return want->source->buffer == TT_MEMBER_INPUT || want->source->buffer == TT_MEMBER_OUTPUT;
}

static bool is_output(const struct walk_operand *want)
{
  return want->source->buffer == TT_OUTPUT || want->source->buffer == TT_MEMBER_OUTPUT;
}

/* Where the geometry says that the chunk lies, and where the kernel finds it. */
static struct place read_place(const struct reading *reading, const struct walk_operand *want,
                               const struct tt_cuda_short_entry *got, int c)
{
  const struct tt_geometry *geometry = &made.channels[c].geometry;
  const struct tt_cuda_short_channel *channel = channel_at(reading, c);
  uint32_t parts = reading->program->parts;
  size_t offset, length = tt_geometry_part(geometry, parts, 0, want->chunk % parts, &offset);
  uint64_t at = (uint64_t)got->part * channel->part;
  if (at > channel->share) at = channel->share;
  ck_assert_uint_eq(TT_MIN(channel->share - at, channel->part), 4 * length);
  if (!want->local) return (struct place){0, 0};
  bool output = is_output(want), member = is_member(want);
  size_t block = want->chunk / parts, stride = output ? geometry->output_stride : geometry->input_stride;
  const char *base = output ? made.work.output : made.work.input;
  if (member) base = output ? made.outputs[want->source->peer] : made.inputs[want->source->peer];
  const char *wanted = base + 4 * (block * stride + offset);
  const unsigned char *begin = got->flags & TT_CUDA_SHORT_OUTPUT ? channel->output : channel->input;
  if (got->flags & TT_CUDA_SHORT_MEMBER) {
    const struct tt_cuda_short_member *members =
        (const struct tt_cuda_short_member *)(reading->words + 4 * reading->list->members);
    begin = got->flags & TT_CUDA_SHORT_OUTPUT ? members[got->conn].output : members[got->conn].input;
    begin += channel->output - reading->header->buffers[TT_OUTPUT];
  }
  const unsigned char *found = begin + at + 4 * got->row * reading->header->strides[output ? TT_OUTPUT : TT_INPUT];
  if (length > 0) ck_assert_ptr_eq(found, wanted);
  return (struct place){(uintptr_t)wanted, (uintptr_t)wanted + 4 * length};
}

static uint8_t flags_of(const struct walk_operand *want)
{
  uint8_t flags = 0;
  if (want->local) flags |= TT_CUDA_SHORT_LOCAL;
  if (want->local && is_member(want)) flags |= TT_CUDA_SHORT_MEMBER;
  if (want->local && is_output(want)) flags |= TT_CUDA_SHORT_OUTPUT;
  if (want->local && !is_output(want)) flags |= TT_ENTRY_SCALED; /* the work asks for it */
  if (!want->message) return flags;
  flags |= TT_CUDA_SHORT_MESSAGE;
  if (want->use == 0) flags |= TT_ENTRY_FIRST;
  if (want->use + 1 == want->uses) flags |= TT_CUDA_SHORT_LAST;
  return flags;
}

static int role_of(const struct walk_operand *want)
{
  static const int roles[WALK_KINDS][2] = {[WALK_SEND] = {-1, TT_CUDA_MOVE_SEND},
                                           [WALK_INPUT] = {TT_CUDA_IN_LOCAL, TT_CUDA_IN_RECV},
                                           [WALK_OUTPUT] = {TT_CUDA_OUT_LOCAL, TT_CUDA_OUT_SEND},
                                           [WALK_RECEIVE] = {-1, TT_CUDA_MOVE_RECV}};
  return roles[want->kind][want->message];
}

static void read_entry(const struct walk_operand *want, const struct tt_cuda_short_entry *got)
{
  ck_assert_int_eq(got->role, role_of(want));
  ck_assert_int_eq(got->flags, flags_of(want));
  if (!want->message) return;
  ck_assert_uint_eq(got->conn, want->conn);
  ck_assert_uint_eq(got->uses_before, want->use);
}

/* Threads meet where one would otherwise read what another has yet to write, or write what it has yet to read. */
static void read_barrier(struct reading *reading, const struct walk_step *want, const struct tt_cuda_short_step *got,
                         int c)
{
  struct place reads[WALK_OPERANDS], writes[WALK_OPERANDS];
  uint32_t nreads = 0, nwrites = 0;
  bool barrier = got->flags & TT_CUDA_SHORT_BARRIER, needed = false;
  bool begins = want->number == 0 && (want->strand == 0 || reading->list->nstrands > 1);
  if (barrier) ck_assert(!begins);
  reading->barriers += barrier;
  if (barrier || begins || got->opcode != TT_OP_DATA) reading->nreads = reading->nwrites = 0;
  for (uint32_t k = 0; k < want->noperands; k++) {
    const struct walk_operand *operand = &want->operands[k];
    struct place place = read_place(reading, operand, &reading->entries[reading->nentries + k], c);
    if (!operand->local) continue;
    if (operand->kind == WALK_SEND || operand->kind == WALK_INPUT) {
      needed |= overlaps(reading->writes, reading->nwrites, place);
      reads[nreads++] = place;
    } else {
      needed |= overlaps(reading->reads, reading->nreads, place);
      writes[nwrites++] = place;
    }
  }
  ck_assert_msg(!needed, "strand %u, step %u needs a barrier", want->strand, want->number);
  ck_assert(reading->nreads + nreads <= TT_CUDA_ENTRIES && reading->nwrites + nwrites <= TT_CUDA_ENTRIES);
  memcpy(reading->reads + reading->nreads, reads, nreads * sizeof(*reads));
  memcpy(reading->writes + reading->nwrites, writes, nwrites * sizeof(*writes));
  reading->nreads += nreads;
  reading->nwrites += nwrites;
}

static void read_step(void *argument, const struct walk_step *want)
{
  struct reading *reading = argument;
  const struct tt_cuda_short_step *got = &reading->steps[reading->nsteps];
  if (want->number == 0 && want->strand < reading->list->nstrands)
    ck_assert_uint_eq(reading->list->first_step[want->strand], reading->nsteps);
  reading->nsteps++;
  ck_assert_uint_le(reading->nsteps, reading->list->nsteps);
  ck_assert_uint_le(reading->nentries + want->noperands, reading->list->nentries);
  ck_assert_int_eq(got->opcode, want->instruction->opcode);
  ck_assert_int_eq(got->flags & ~TT_CUDA_SHORT_BARRIER, want->instruction->flags);
  ck_assert_uint_eq(got->nsends, want->counts[WALK_SEND]);
  ck_assert_uint_eq(got->ninputs, want->counts[WALK_INPUT]);
  ck_assert_uint_eq(got->noutputs, want->counts[WALK_OUTPUT]);
  ck_assert_uint_eq(got->nreceives, want->counts[WALK_RECEIVE]);
  ck_assert_uint_eq(got->first, got->opcode == TT_OP_DATA ? reading->nentries : want->instruction->semaphore);
  for (uint32_t k = 0; k < want->noperands; k++)
    read_entry(&want->operands[k], &reading->entries[reading->nentries + k]);
  for (uint32_t c = made.work.nchannels; c-- > 1;)
    for (uint32_t k = 0; k < want->noperands; k++)
      read_place(reading, &want->operands[k], &reading->entries[reading->nentries + k], (int)c);
  read_barrier(reading, want, got, 0);
  reading->nentries += want->noperands;
}

static void read_header(const struct tt_cuda_work *header)
{
  const struct tt_work *work = &made.work;
  ck_assert_mem_eq(&header->signature, &work->signature, sizeof(work->signature));
  ck_assert_uint_ne(header->signature_hash, 0);
  ck_assert_ptr_eq(header->buffers[TT_INPUT], work->input);
  ck_assert_ptr_eq(header->buffers[TT_OUTPUT], work->output);
  ck_assert_uint_eq(header->strides[TT_INPUT], made.channels[0].geometry.input_stride);
  ck_assert_uint_eq(header->strides[TT_OUTPUT], made.channels[0].geometry.output_stride);
  ck_assert_uint_eq(header->scale, work->reduction.scale.bits);
  ck_assert_int_eq(header->divisor, work->reduction.divisor);
  ck_assert_int_eq(header->op, work->reduction.op);
  ck_assert_int_eq(header->scale_inputs, work->reduction.scale_inputs);
  ck_assert_int_eq(header->divide_result, work->reduction.divide_result);
  ck_assert_int_eq(header->element_bytes, sizeof(float));
}

static void read_channels(const struct reading *reading, uint32_t nwords)
{
  for (uint32_t c = 0; c < made.work.nchannels; c++) {
    const struct tt_cuda_short_channel *channel = channel_at(reading, (int)c);
    const uint32_t *ends = (const uint32_t *)(channel + 1);
    uint32_t nends = 2 * reading->program->npeers;
    ck_assert_uint_le((size_t)(ends + nends - reading->words), nwords);
    for (uint32_t e = 0; e < nends; e++)
      ck_assert_uint_eq(ends[e], made.ends[c][e] != NULL ? FIRST_INDEX * (c + 1) + e : UINT32_MAX);
  }
}

/* What a program needs as a short work. */
struct size {
  uint32_t steps, entries, uses;
  bool waits; /* the first strand for data, or one for another */
};

static void measure(void *argument, const struct walk_step *step)
{
  struct size *size = argument;
  size->steps++;
  size->entries += step->noperands;
  size->waits |= step->instruction->opcode != TT_OP_DATA;
  for (uint32_t k = 0; k < step->noperands; k++) {
    const struct walk_operand *operand = &step->operands[k];
    size->uses = TT_MAX(size->uses, operand->uses);
    bool receives = operand->kind == WALK_RECEIVE || (operand->kind == WALK_INPUT && operand->message);
    size->waits |= step->strand == 0 && receives;
  }
}

static bool should_be_short(const struct tt_program *program, int nchannels)
{
  struct size size = {0};
  walk(program, measure, &size);
  size_t words = TT_CUDA_SHORT_WORK + sizeof(struct tt_cuda_work) / 4 +
                 (size.steps * sizeof(struct tt_cuda_short_step) + 15) / 16 * 4 +
                 (size.entries * sizeof(struct tt_cuda_short_entry) + 15) / 16 * 4 +
                 (size_t)nchannels * ((sizeof(struct tt_cuda_short_channel) + 8 * program->npeers + 15) / 16 * 4) +
                 program->nmembers * sizeof(struct tt_cuda_short_member) / 4;
  return program->npeers > 0 && program->nscratch == 0 && size.uses <= TT_SLOTS / 2 && size.steps <= UINT8_MAX &&
         size.entries <= TT_CUDA_ENTRIES && words <= TT_CUDA_PARAM_WORDS;
}

static void move_buffers(size_t by, bool in_place)
{
  made.work.output = (char *)made.work.output + by;
  made.work.input = in_place ? made.work.output : (const char *)made.work.input + by;
  for (int m = 0; m < MOST_RANKS; m++) {
    made.inputs[m] = (const char *)made.inputs[m] + by;
    made.outputs[m] = (char *)made.outputs[m] + by;
  }
}

/* A work that comes again is what it would be anew: also with other buffers, and in place where it was not. */
static void read_again(bool in_place, enum tt_cuda_phase phase)
{
  static uint32_t anew[TT_CUDA_PARAM_WORDS], again[TT_CUDA_PARAM_WORDS];
  static uint64_t number;
  struct tt_cuda_short_shape shape, kept;
  for (int time = 0; time < 3; time++) {
    made.work.repeat = 0;
    ck_assert_int_eq(tt_cuda_get_short(&fake_context, &made.work, phase, anew, &shape), ncclSuccess);
    made.work.repeat = number + 1;
    ck_assert_int_eq(tt_cuda_get_short(&fake_context, &made.work, phase, again, &kept), ncclSuccess);
    ck_assert(kept.nwords == shape.nwords && kept.threads == shape.threads && kept.form == shape.form);
    ck_assert_mem_eq(again, anew, 4 * shape.nwords);
    move_buffers(64, in_place || time == 1);
  }
  made.work.signature.count++; /* which is not looked at again */
  ck_assert_int_eq(tt_cuda_get_short(&fake_context, &made.work, phase, again, &kept), ncclSuccess);
  const struct tt_cuda_work *header = (const struct tt_cuda_work *)(again + TT_CUDA_SHORT_WORK);
  ck_assert_uint_eq(header->signature.count, made.work.signature.count - 1);
  number++;
}

/* Two strands run one after the other if the first cannot wait for the second. */
static uint32_t strands_of(const struct tt_program *program)
{
  struct size size = {0};
  walk(program, measure, &size);
  return program->nstrands == 2 && !size.waits ? 1 : program->nstrands;
}

bool read_work(const struct tt_program *program, int nchannels, int protocol, bool in_place, int *barriers)
{
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  struct tt_cuda_short_shape shape;
  make_work(program, nchannels, protocol, in_place);
  memset(words, 0xa5, sizeof(words));
  ck_assert_int_eq(tt_cuda_put_short(&fake_context, &made.work, TT_CUDA_GENERAL, words, &shape), ncclSuccess);
  uint32_t nwords = shape.nwords;
  unsigned threads = shape.threads;
  ck_assert_int_eq(nwords > 0, should_be_short(program, nchannels));
  if (nwords == 0) return false;
  struct reading *reading = calloc(1, sizeof(*reading));
  ck_assert_ptr_nonnull(reading);
  reading->program = program;
  reading->words = words;
  reading->list = (const struct tt_cuda_short *)words;
  reading->header = (const struct tt_cuda_work *)(words + TT_CUDA_SHORT_WORK);
  reading->steps = (const struct tt_cuda_short_step *)(reading->header + 1);
  reading->entries = (const struct tt_cuda_short_entry *)(words + 4 * reading->list->entries);
  read_header(reading->header);
  walk(program, read_step, reading);
  ck_assert_uint_eq(reading->nsteps, reading->list->nsteps);
  ck_assert_uint_eq(reading->nentries, reading->list->nentries);
  uint32_t strands = strands_of(program);
  ck_assert_uint_eq(reading->list->first_step[strands], reading->nsteps);
  ck_assert_uint_eq(reading->list->nstrands, strands);
  read_channels(reading, nwords);
  /* A thread resolves an entry, and each strand has whole warps. */
  ck_assert_uint_le(threads, TT_CUDA_MAX_THREADS);
  ck_assert_uint_ge(threads, reading->nentries);
  ck_assert_uint_eq(threads % (32 * strands), 0);
  ck_assert_uint_eq(threads, reading->list->strand_threads * strands);
  ck_assert_int_eq(program->nmembers > 0, shape.form == TT_CUDA_FORM_MAPPED);
  if (barriers) *barriers += reading->barriers;
  free(reading);
  read_again(in_place, TT_CUDA_GENERAL);
  return true;
}
