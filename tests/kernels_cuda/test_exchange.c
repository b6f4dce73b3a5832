/* Exchanges say what their program and their geometry say: each operand once, at its place, in the order that the
 * kernel goes by. What is none goes the general way. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "fake_launch.h"
#include "short_work.h"
#include "tests/program/program_set.h"
#include "walk.h"

enum { FIRST_INDEX = 100 }; /* of ends: see short_work.c */

struct reading {
  const struct tt_program *program;
  const uint32_t *words;
  struct tt_cuda_short_shape shape;
  const struct tt_cuda_exchange *exchange;
  const struct tt_cuda_exchange_entry *entries;
  bool seen[TT_CUDA_WARP];
};

static const struct tt_cuda_exchange_channel *channel_at(const struct reading *r, uint32_t c)
{
  uint32_t quad = r->shape.channels + c * r->shape.channel_quads;
  ck_assert_uint_le(4 * (quad + r->shape.channel_quads), r->shape.nwords);
  return (const struct tt_cuda_exchange_channel *)(r->words + 4 * quad);
}

static bool is_output(const struct walk_operand *want)
{
  return want->source->buffer == TT_OUTPUT;
}

/* Whether entry k of channel c is the chunk that the geometry says. */
static bool is_place(const struct reading *r, uint32_t k, const struct walk_operand *want, uint32_t c)
{
  const struct tt_cuda_exchange_entry *got = &r->entries[k];
  const struct tt_cuda_exchange_channel *channel = channel_at(r, c);
  const struct tt_geometry *geometry = &made.channels[c].geometry;
  uint32_t parts = r->program->parts, at = TT_MIN(got->part * channel->part, channel->share);
  size_t offset, length = tt_geometry_part(geometry, parts, 0, want->chunk % parts, &offset);
  if (TT_MIN(channel->share - at, channel->part) != 4 * length) return false;
  if (!want->local) return true;
  bool output = is_output(want);
  size_t stride = output ? geometry->output_stride : geometry->input_stride;
  const char *wanted = (output ? (const char *)made.work.output : (const char *)made.work.input) +
                       4 * (want->chunk / parts * stride + offset);
  const unsigned char *begin = got->flags & TT_CUDA_SHORT_OUTPUT ? channel->output : channel->input;
  return length == 0 || (const char *)begin + got->offset + at == wanted;
}

static bool is_message(const struct reading *r, uint32_t k, const struct walk_operand *want, uint32_t c)
{
  const struct tt_cuda_exchange_entry *got = &r->entries[k];
  const uint32_t *indices = (const uint32_t *)(channel_at(r, c) + 1);
  bool first = want->use == 0, last = want->use + 1 == want->uses;
  return (got->flags & TT_CUDA_SHORT_MESSAGE) && indices[k] == FIRST_INDEX * (c + 1) + want->conn &&
         got->uses_before == want->use && first == !!(got->flags & TT_ENTRY_FIRST) &&
         last == !!(got->flags & TT_CUDA_SHORT_LAST);
}

/* What goes to a peer from an input is a send from there: `from`. */
static uint32_t find(const struct reading *r, uint32_t first, uint32_t n, int role, const struct walk_operand *want,
                     const struct walk_operand *from)
{
  for (uint32_t k = first; k < first + n; k++) {
    bool same = r->entries[k].role == role && is_place(r, k, from, 0);
    for (uint32_t c = 0; same && c < made.work.nchannels; c++) {
      same = is_place(r, k, from, c) && (!want->message || is_message(r, k, want, c));
      if (!want->message) same &= !(r->entries[k].flags & TT_CUDA_SHORT_MESSAGE);
    }
    if (same && !r->seen[k]) return k;
  }
  ck_abort_msg("operand %d of chunk %u, connection %u, is missing", want->kind, want->chunk, want->conn);
  return 0;
}

static void take(struct reading *r, uint32_t first, uint32_t n, int role, const struct walk_operand *want,
                 const struct walk_operand *from)
{
  r->seen[find(r, first, n, role, want, from)] = true;
}

static void read_step(void *context, const struct walk_step *step)
{
  struct reading *r = context;
  const struct tt_cuda_exchange *x = r->exchange;
  const struct walk_operand *input = &step->operands[step->counts[WALK_SEND]];
  uint32_t reduces = step->counts[WALK_INPUT] > 1, sum = x->nsends, outputs = sum + x->ninputs;
  uint32_t receives = outputs + x->noutputs, copy = receives + x->nreceives, number = 0;
  if (step->instruction->opcode != TT_OP_DATA) return;
  for (uint32_t k = 0; k < step->noperands; k++) {
    const struct walk_operand *want = &step->operands[k];
    switch (want->kind) {
    case WALK_SEND:
      take(r, 0, x->nsends, TT_CUDA_MOVE_SEND, want, want);
      break;
    case WALK_INPUT: /* of a reduction in their order */
      if (reduces) take(r, sum + number++, 1, want->message ? TT_CUDA_IN_RECV : TT_CUDA_IN_LOCAL, want, want);
      break;
    case WALK_OUTPUT:
      if (reduces)
        take(r, outputs, x->noutputs, want->message ? TT_CUDA_OUT_SEND : TT_CUDA_OUT_LOCAL, want, want);
      else if (want->message)
        take(r, 0, x->nsends, TT_CUDA_MOVE_SEND, want, input);
      else
        take(r, copy + 1, 1, TT_CUDA_OUT_LOCAL, want, want), take(r, copy, 1, TT_CUDA_IN_LOCAL, input, input);
      break;
    default:
      take(r, receives, x->nreceives, TT_CUDA_MOVE_RECV, want, want);
    }
  }
}

static void read_exchange(const struct tt_program *program, const uint32_t *words, struct tt_cuda_short_shape shape)
{
  const struct tt_cuda_exchange *x = (const struct tt_cuda_exchange *)words;
  struct reading r = {program, words, shape, x, (const struct tt_cuda_exchange_entry *)(x + 1), {false}};
  uint32_t n = x->nsends + x->ninputs + x->noutputs + x->nreceives + 2 * x->ncopies;
  ck_assert_mem_eq(&x->signature, &made.work.signature, sizeof(x->signature));
  ck_assert_uint_ne(x->signature_hash, 0);
  ck_assert_uint_eq(x->nentries, n);
  ck_assert_uint_le(n, TT_CUDA_WARP);
  ck_assert_int_eq(x->op, made.work.reduction.op);
  walk(program, read_step, &r);
  for (uint32_t k = 0; k < n; k++) ck_assert_msg(r.seen[k], "entry %u of %u is no operand", k, n);
  for (uint32_t k = 0; k < x->nsends; k++) ck_assert(!(r.entries[k].flags & TT_CUDA_SHORT_OUTPUT));
  for (uint32_t c = 0; c < made.work.nchannels; c++) ck_assert_uint_eq(channel_at(&r, c)->number, c);
  bool sends = x->nsends > 0, receives = false;
  for (uint32_t k = 0; k < n; k++) {
    sends |= r.entries[k].role == TT_CUDA_OUT_SEND;
    receives |= r.entries[k].role == TT_CUDA_IN_RECV || r.entries[k].role == TT_CUDA_MOVE_RECV;
  }
  ck_assert_int_eq((x->flags & TT_CUDA_EXCHANGE_TELLS) != 0, receives && !sends);
  if (x->flags & TT_CUDA_EXCHANGE_PAIR) {
    ck_assert_uint_eq(x->ninputs, 2);
    ck_assert_int_eq(r.entries[x->nsends + x->local_input].role, TT_CUDA_IN_LOCAL);
    ck_assert_int_eq(r.entries[x->nsends + !x->local_input].role, TT_CUDA_IN_RECV);
    ck_assert_int_eq(r.entries[x->nsends + 2].role, TT_CUDA_OUT_LOCAL);
  }
}

static void make_exchange(const struct tt_program *program, int nchannels, int protocol, bool in_place)
{
  make_work(program, nchannels, protocol, in_place);
  made.work.reduction.scale_inputs = made.work.reduction.divide_result = 0;
  for (int c = 0; c < nchannels && !in_place; c++) made.channels[c].geometry.output_stride += 8;
}

/* The form that a work has. */
static enum tt_cuda_form put(uint32_t *words, struct tt_cuda_short_shape *shape)
{
  memset(words, 0xa5, TT_CUDA_PARAM_WORDS * sizeof(*words));
  ck_assert_int_eq(tt_cuda_put_short(&fake_context, &made.work, TT_CUDA_WHOLE, words, shape), ncclSuccess);
  return shape->nwords > 0 ? shape->form : TT_CUDA_FORM_ANY;
}

static bool must_be(const struct operation *operation)
{
  return operation->algorithm == TT_ALGO_ONE_SHOT || operation->algorithm == TT_ALGO_TWO_SHOT ||
         operation->algorithm == TT_ALGO_DIRECT;
}

static int read_all(struct program_set *set, bool in_place)
{
  static uint32_t words[TT_CUDA_PARAM_WORDS], again[TT_CUDA_PARAM_WORDS];
  struct tt_cuda_short_shape shape, kept;
  static uint64_t repeat = 1000;
  int found = 0;
  for (int rank = 0; rank < set->n; rank++) {
    if (set->programs[rank] == NULL) continue;
    make_exchange(set->programs[rank], 1 + rank % MOST_CHANNELS, rank % 2 ? TT_PROTO_LL : TT_PROTO_LL128, in_place);
    if (put(words, &shape) != TT_CUDA_FORM_EXCHANGE) continue;
    read_exchange(set->programs[rank], words, shape);
    found++;
    repeat++;
    for (int time = 0; time < 2; time++) { /* what is kept is given other buffers */
      made.work.repeat = repeat;
      ck_assert_int_eq(tt_cuda_get_short(&fake_context, &made.work, TT_CUDA_WHOLE, again, &kept), ncclSuccess);
      ck_assert_int_eq(kept.form, TT_CUDA_FORM_EXCHANGE);
      ck_assert_uint_eq(kept.threads, shape.threads);
      read_exchange(set->programs[rank], again, kept);
      made.work.input = (const char *)made.work.input + 64;
      made.work.output = (char *)made.work.output + 64;
    }
  }
  forget_programs();
  return found;
}

/* Entries of the busiest rank. */
static int entries_of(const struct operation *operation, int n)
{
  if (operation->algorithm == TT_ALGO_TWO_SHOT) return 4 * (n - 1) + 2;
  return 2 * n + 2;
}

START_TEST(every_algorithm)
{
  int n = _i, count;
  const struct operation *operations = all_operations(&count);
  for (int o = 0; o < count; o++) {
    if (!must_be(&operations[o])) continue;
    struct program_set set = emit_set(&operations[o], n, has_root(&operations[o]) ? n - 1 : 0, NULL);
    for (int in_place = 0; in_place <= in_place_is_possible(&operations[o]); in_place++) {
      int found = read_all(&set, in_place);
      if (entries_of(&operations[o], n) <= TT_CUDA_WARP)
        ck_assert_msg(found == n, "%s on %d ranks: %d are exchanges", operation_name(&operations[o]), n, found);
    }
    free_set(&set);
  }
  struct program_set pair = emit_pair(n, 0, n - 1);
  ck_assert_int_eq(read_all(&pair, false), 2);
  free_set(&pair);
}
END_TEST

/* Copies go beside the sends where they overwrite nothing that is sent. */
START_TEST(overlaps)
{
  static const struct operation gather = {TT_FUNC_ALL_GATHER, TT_ALGO_DIRECT, 0};
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  struct tt_cuda_short_shape shape;
  const struct tt_cuda_exchange *x = (const struct tt_cuda_exchange *)words;
  struct program_set set = emit_set(&gather, 2, 0, NULL);
  make_exchange(set.programs[1], 1, TT_PROTO_LL, false);
  ck_assert_int_eq(put(words, &shape), TT_CUDA_FORM_EXCHANGE);
  ck_assert(x->flags & TT_CUDA_EXCHANGE_BESIDE);
  ck_assert_uint_eq(x->send_share, (1u << TT_CUDA_SHARE_BITS) / 2); /* a message and the copy */
  made.work.input = (const char *)made.work.output + SHARE * sizeof(float);
  ck_assert_int_eq(put(words, &shape), TT_CUDA_FORM_EXCHANGE);
  ck_assert(!(x->flags & TT_CUDA_EXCHANGE_BESIDE));
  ck_assert_uint_eq(x->send_share, 1u << TT_CUDA_SHARE_BITS);
  forget_programs();
  free_set(&set);
}
END_TEST

/* How a kernel shares n things out among its warps: tt_lean_share by division. */
START_TEST(shares)
{
  static const struct operation one_shot = {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0};
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  const struct tt_cuda_exchange *exchange = (const struct tt_cuda_exchange *)words;
  struct tt_cuda_short_shape shape;
  for (int n = 2; n <= MOST_RANKS - 2; n++) {
    struct program_set set = emit_set(&one_shot, n, 0, NULL);
    make_exchange(set.programs[0], 1, TT_PROTO_LL, false);
    ck_assert_int_eq(put(words, &shape), TT_CUDA_FORM_EXCHANGE);
    uint32_t share = exchange->send_share, nsends = (uint32_t)n - 1;
    for (uint32_t x = 0; x < 2 * TT_CUDA_WARP; x++) ck_assert_uint_eq(x * share >> TT_CUDA_SHARE_BITS, x / nsends);
    forget_programs();
    free_set(&set);
  }
}
END_TEST

/* A ring receives what it passes on; factors, proxies and what is too much for a warp are for the general kernel. */
START_TEST(others)
{
  static const struct operation ring = {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0},
                                two_shot = {TT_FUNC_ALL_REDUCE, TT_ALGO_TWO_SHOT, 0};
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  const struct tt_cuda_short *list = (const struct tt_cuda_short *)words;
  struct tt_cuda_short_shape shape;
  struct program_set set = emit_set(&ring, 3, 0, NULL);
  make_exchange(set.programs[0], 1, TT_PROTO_LL, false);
  ck_assert_int_eq(put(words, &shape), TT_CUDA_FORM_SHORT);
  forget_programs();
  free_set(&set);
  set = emit_set(&two_shot, 4, 0, NULL);
  make_exchange(set.programs[0], 2, TT_PROTO_LL, true);
  ck_assert_int_eq(put(words, &shape), TT_CUDA_FORM_EXCHANGE);
  for (int why = 0; why < 4; why++) {
    make_exchange(set.programs[0], 2, TT_PROTO_LL, true);
    if (why == 0) made.work.reduction.scale_inputs = 1;
    if (why == 1) made.work.reduction.divide_result = 1;
    if (why == 2) made.channels[1].send[0]->flags = TT_CONN_LINES;
    if (why == 3) made.channels[0].recv[0]->flags = TT_CONN_PROXIED;
    ck_assert_int_eq(put(words, &shape), TT_CUDA_FORM_SHORT);
    ck_assert_int_eq(list->flags, why >= 2 ? TT_CUDA_SHORT_SERVED | TT_CUDA_SHORT_TELLS : 0);
  }
  forget_programs();
  free_set(&set);
  set = emit_set(&two_shot, 16, 0, NULL);
  make_exchange(set.programs[0], 1, TT_PROTO_LL, false);
  ck_assert_int_eq(put(words, &shape), TT_CUDA_FORM_SHORT);
  forget_programs();
  free_set(&set);
}
END_TEST

/* The form that takes chunks of `length` elements of four bytes. */
static int form_of(int protocol, size_t length)
{
  struct tt_work *works[] = {&made.work};
  struct tt_launch *launch = NULL;
  made.work.protocol = protocol;
  made.channels[0].geometry.chunk = made.channels[0].geometry.last_chunk = length;
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
  return launched.form;
}

/* A launch says where channels lie; long chunks have another kernel. */
START_TEST(launches)
{
  static const struct operation one_shot = {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0};
  enum { OCTETS = (TT_CUDA_MAX_THREADS - 32) / 8, LINE = 120 / 4 };
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  struct tt_cuda_short_shape shape;
  struct program_set set = emit_set(&one_shot, 2, 0, NULL);
  make_exchange(set.programs[0], 3, TT_PROTO_LL, false);
  ck_assert_int_eq(put(words, &shape), TT_CUDA_FORM_EXCHANGE);
  ck_assert_uint_le(shape.nwords, TT_CUDA_BRIEF_WORDS);
  ck_assert_int_eq(form_of(TT_PROTO_LL, made.channels[0].geometry.chunk), TT_CUDA_FORM_BRIEF);
  ck_assert_uint_eq(launched.grid.x, 3);
  ck_assert_uint_eq(launched.block.x, shape.threads);
  ck_assert_uint_eq(launched.launch.channels, shape.channels);
  ck_assert_uint_eq(launched.launch.channel_quads, shape.channel_quads);
  ck_assert_mem_eq(launched.launch.words, words, shape.nwords * sizeof(*words));
  ck_assert_int_eq(form_of(TT_PROTO_LL128, OCTETS * LINE), TT_CUDA_FORM_BRIEF);
  ck_assert_int_eq(form_of(TT_PROTO_LL128, OCTETS * LINE + 1), TT_CUDA_FORM_EXCHANGE_DEEP);
  ck_assert_int_eq(form_of(TT_PROTO_LL, OCTETS * LINE + 1), TT_CUDA_FORM_BRIEF);
  forget_programs();
  free_set(&set);
  set = emit_set(&one_shot, 15, 0, NULL); /* more words */
  make_exchange(set.programs[0], 3, TT_PROTO_LL, false);
  ck_assert_int_eq(put(words, &shape), TT_CUDA_FORM_EXCHANGE);
  ck_assert_uint_gt(shape.nwords, TT_CUDA_BRIEF_WORDS);
  ck_assert_int_eq(form_of(TT_PROTO_LL, made.channels[0].geometry.chunk), TT_CUDA_FORM_EXCHANGE);
  ck_assert_mem_eq(launched.launch.words, words, shape.nwords * sizeof(*words));
  forget_programs();
  free_set(&set);
}
END_TEST

/* Keeps what was made, with ends of its own. */
static void keep(struct made_work *to, const struct tt_program *program)
{
  *to = made;
  to->work.channels = to->channels;
  for (uint32_t c = 0; c < made.work.nchannels; c++) {
    for (int e = 0; e < 2 * MOST_RANKS; e++)
      if (made.ends[c][e] != NULL) to->ends[c][e] = &to->conns[c][made.ends[c][e] - made.conns[c]];
    to->channels[c].send = to->ends[c];
    to->channels[c].recv = to->ends[c] + program->npeers;
  }
}

/* A send, a receive and a copy: one launch, in which items say where shapes and channels lie. If one of them is none,
 * all go the general way. */
START_TEST(together)
{
  static struct made_work group[3];
  struct tt_work *works[] = {&group[0].work, &group[1].work, &group[2].work};
  struct program_set pair = emit_pair(2, 0, 1), own = emit_pair(1, 0, 0);
  const struct tt_program *programs[] = {pair.programs[0], pair.programs[1], own.programs[0]};
  struct tt_launch *launch;
  uint32_t item = 0;
  for (int w = 0; w < 3; w++) {
    make_exchange(programs[w], w == 0 ? 2 : 1, TT_PROTO_LL128, false);
    keep(&group[w], programs[w]);
    group[w].work.signature.collective = TT_FUNC_SEND_RECV;
    group[w].work.order = (uint64_t)w + 1;
  }
  forget_launches();
  ck_assert_int_eq(tt_cuda_launch(works, 3, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(launched.count, 1);
  ck_assert_int_eq(launched.form, TT_CUDA_FORM_BRIEF);
  for (int w = 0; w < 3; w++)
    for (uint32_t c = 0; c < group[w].work.nchannels; c++, item++) {
      const uint32_t *all = launched.launch.words;
      const struct tt_cuda_exchange *x = (const struct tt_cuda_exchange *)(all + 4 * (all[item] & 0xffff));
      const struct tt_cuda_exchange_channel *channel =
          (const struct tt_cuda_exchange_channel *)(all + 4 * (all[item] >> 16));
      ck_assert_uint_eq(x->nsends, w == 0);
      ck_assert_uint_eq(x->nreceives, w == 1);
      ck_assert_uint_eq(x->ncopies, w == 2);
      ck_assert_uint_eq(channel->number, c);
      ck_assert_ptr_eq(channel->input, (const char *)group[w].work.input + 4 * group[w].channels[c].geometry.lo);
    }
  ck_assert_uint_eq(launched.launch.nitems, item);
  group[1].channels[0].geometry.last_chunk = 20000; /* more lines than a block has octets */
  ck_assert_int_eq(tt_cuda_launch(works, 3, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(launched.form, TT_CUDA_FORM_EXCHANGE_DEEP);
  group[1].channels[0].recv[0]->flags = TT_CONN_LINES;
  ck_assert_int_eq(tt_cuda_launch(works, 3, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(launched.form, TT_CUDA_FORM_SHORT);
  forget_programs();
  free_set(&pair);
  free_set(&own);
}
END_TEST

/* Messages of several protocols: one launch behind that of the collective, which has the protocol of one of them. */
START_TEST(mixed)
{
  static struct made_work group[3];
  struct tt_work *works[] = {&group[0].work, &group[1].work, &group[2].work};
  static const int protocols[] = {TT_PROTO_SIMPLE, TT_PROTO_LL, TT_PROTO_LL};
  struct program_set pair = emit_pair(2, 0, 1);
  struct tt_launch *launch;
  for (int w = 0; w < 3; w++) {
    make_exchange(pair.programs[w == 0], 1, protocols[w], false);
    keep(&group[w], pair.programs[w == 0]);
    group[w].work.signature.collective = w == 1 ? TT_FUNC_BROADCAST : TT_FUNC_SEND_RECV;
    group[w].work.order = (uint64_t)w + 1;
  }
  forget_launches();
  ck_assert_int_eq(tt_cuda_launch(works, 3, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(launched.count, 2);
  ck_assert_int_eq(launched.form, TT_CUDA_FORM_MIXED);
  ck_assert_uint_eq(launched.launch.nitems, 2);
  ck_assert_uint_eq(launched.block.x, TT_CUDA_MAX_THREADS);
  for (uint32_t item = 0; item < 2; item++) {
    const uint32_t *all = launched.launch.words;
    const struct tt_cuda_work *work = (const struct tt_cuda_work *)(all + 4 * (all[item] & 0xffff));
    ck_assert_uint_eq(work->protocol, (uint32_t)protocols[2 * item]);
    ck_assert_int_eq(work->signature.collective, TT_FUNC_SEND_RECV);
  }
  group[0].work.protocol = TT_PROTO_LL;
  forget_launches();
  ck_assert_int_eq(tt_cuda_launch(works, 3, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(launched.count, 1);
  ck_assert_int_eq(launched.form, TT_CUDA_FORM_ANY);
  forget_programs();
  free_set(&pair);
}
END_TEST

/* A capture ends in a launch, also of a copy that is in place. */
START_TEST(nothing_to_do)
{
  struct program_set own = emit_pair(1, 0, 0);
  struct tt_work *works[] = {&made.work};
  struct tt_launch *launch;
  make_exchange(own.programs[0], 1, TT_PROTO_LL, true);
  made.work.signature.collective = TT_FUNC_SEND_RECV;
  forget_launches();
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(launched.count, 1);
  ck_assert_int_eq(((const struct tt_cuda_exchange *)launched.launch.words)->nentries, 0);
  forget_programs();
  free_set(&own);
}
END_TEST

void add_exchanges(TCase *tc)
{
  tcase_add_loop_test(tc, every_algorithm, 2, MOST_RANKS + 1);
  tcase_add_test(tc, overlaps);
  tcase_add_test(tc, shares);
  tcase_add_test(tc, others);
  tcase_add_test(tc, launches);
  tcase_add_test(tc, together);
  tcase_add_test(tc, mixed);
  tcase_add_test(tc, nothing_to_do);
}
