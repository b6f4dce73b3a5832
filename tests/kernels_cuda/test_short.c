/* Short works, which the host resolves, say what their program and their geometry say: for every algorithm that has
 * such, on 1 to 16 ranks, in place and not. And what is too long for that is launched the usual way. */
#include <check.h>
#include <stdlib.h>
#include "base/check.h"
#include "fake_launch.h"
#include "short_work.h"
#include "tests/program/program_set.h"

static bool runs_here(const struct operation *operation)
{
  return operation->algorithm == TT_ALGO_RING || operation->algorithm == TT_ALGO_TREE ||
         operation->algorithm == TT_ALGO_ONE_SHOT || operation->algorithm == TT_ALGO_TWO_SHOT ||
         operation->algorithm == TT_ALGO_DIRECT;
}

static int read_set(struct program_set *set, bool in_place, int *barriers)
{
  int found = 0, ways = in_place ? 4 : 2;
  for (int rank = 0; rank < set->n; rank++)
    for (int way = 0; set->programs[rank] && way < ways; way++) {
      int protocol = way % 2 ? TT_PROTO_LL128 : TT_PROTO_LL;
      found += read_work(set->programs[rank], 1 + (rank + way) % MOST_CHANNELS, protocol, way / 2, barriers);
    }
  forget_programs();
  free_set(set);
  return found;
}

START_TEST(every_algorithm)
{
  int n = _i, count, found = 0;
  const struct operation *operations = all_operations(&count);
  for (int o = 0; o < count; o++) {
    if (!runs_here(&operations[o])) continue;
    struct program_set set = emit_set(&operations[o], n, has_root(&operations[o]) ? n - 1 : 0, NULL);
    found += read_set(&set, in_place_is_possible(&operations[o]), NULL);
  }
  struct program_set pair = emit_pair(n, 0, n - 1);
  found += read_set(&pair, true, NULL);
  if (n == 1)
    ck_assert_int_eq(found, 0); /* copies have no messages */
  else
    ck_assert_int_gt(found, 10 * n);
}
END_TEST

/* Members' buffers: all of their programs are short works, in Simple. */
START_TEST(mapped)
{
  int n = _i, count, found = 0, tried = 0;
  const struct operation *operations = all_operations(&count);
  for (int o = 0; o < count; o++) {
    if (operations[o].algorithm != TT_ALGO_MAPPED) continue;
    for (int root = 0; root < (has_root(&operations[o]) ? n : 1); root++) {
      struct program_set set = emit_set(&operations[o], n, root, NULL);
      for (int rank = 0; rank < n; rank++, tried++)
        found += read_work(set.programs[rank], 1 + rank % MOST_CHANNELS, TT_PROTO_SIMPLE, rank % 2, NULL);
      forget_programs();
      free_set(&set);
    }
  }
  ck_assert_int_ge(tried, 8 * n);
  ck_assert_int_eq(found, n == 1 ? 0 : tried); /* copies have no messages */
}
END_TEST

/* In place a ring writes what it has read before; a one-shot of one step needs none. */
START_TEST(barriers)
{
  static const struct operation ring = {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0},
                                one_shot = {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0};
  struct program_set set = emit_set(&ring, 2, 0, NULL);
  int out_of_place = 0, in_place = 0;
  ck_assert(read_work(set.programs[0], 1, TT_PROTO_LL, false, &out_of_place));
  ck_assert(read_work(set.programs[0], 1, TT_PROTO_LL, true, &in_place));
  ck_assert_int_gt(in_place, 0);
  ck_assert_int_ge(in_place, out_of_place);
  forget_programs();
  free_set(&set);
  set = emit_set(&one_shot, 4, 0, NULL);
  out_of_place = 0;
  ck_assert(read_work(set.programs[0], 1, TT_PROTO_LL, false, &out_of_place));
  ck_assert_int_eq(out_of_place, 0);
  forget_programs();
  free_set(&set);
}
END_TEST

/* A strand that reads what it wrote, an instruction or a repetition before. No emitter writes such. */
START_TEST(reads_what_it_wrote)
{
  static const int32_t peers[] = {1};
  static const struct tt_strand strand = {.ninstructions = 3};
  static const struct tt_instruction instructions[] = {{.repeat = 2, .first_operand = 0, .noperands = 3},
                                                       {.repeat = 1, .first_operand = 3, .noperands = 1},
                                                       {.repeat = 1, .first_operand = 4, .noperands = 1}};
  static const struct tt_operand operands[] = {
      {.kind = TT_SRC, .buffer = TT_OUTPUT, .start = 0, .stride = 1, .modulo = 4, .count = 1},
      {.kind = TT_DST, .buffer = TT_OUTPUT, .start = 1, .stride = 1, .modulo = 4, .count = 1},
      {.kind = TT_SEND, .buffer = TT_RESULT, .start = 0, .stride = 1, .modulo = 4, .count = 1},
      {.kind = TT_RECV, .buffer = TT_OUTPUT, .start = 3, .modulo = 4, .count = 1},
      {.kind = TT_SEND, .buffer = TT_OUTPUT, .start = 3, .modulo = 4, .count = 1}};
  static const struct tt_program program = {.size = sizeof(program),
                                            .version = TT_PROGRAM_VERSION,
                                            .nranks = 2,
                                            .parts = 4,
                                            .output_blocks = 1,
                                            .npeers = 1,
                                            .nstrands = 1,
                                            .ninstructions = TT_COUNT(instructions),
                                            .noperands = TT_COUNT(operands),
                                            .peers = peers,
                                            .strands = &strand,
                                            .instructions = instructions,
                                            .operands = operands};
  int found = 0;
  ck_assert(read_work(&program, 1, TT_PROTO_LL, false, &found));
  ck_assert_int_ge(found, 2);
  forget_programs();
}
END_TEST

/* More entries than a small message has threads for. */
START_TEST(many_entries)
{
  enum { OPERANDS = 63, REPEAT = 3 };
  static const int32_t peers[] = {1};
  static const struct tt_strand strand = {.ninstructions = 1};
  static const struct tt_instruction instruction = {.repeat = REPEAT, .noperands = OPERANDS};
  struct tt_operand operands[OPERANDS];
  struct tt_program program = {.size = sizeof(program),
                               .version = TT_PROGRAM_VERSION,
                               .nranks = 2,
                               .parts = 200,
                               .output_blocks = 1,
                               .npeers = 1,
                               .nstrands = 1,
                               .ninstructions = 1,
                               .noperands = OPERANDS,
                               .peers = peers,
                               .strands = &strand,
                               .instructions = &instruction,
                               .operands = operands};
  for (int k = 0; k < OPERANDS; k++)
    operands[k] = (struct tt_operand){
        .kind = TT_DST, .buffer = TT_OUTPUT, .start = k, .stride = OPERANDS, .modulo = 200, .count = 1};
  operands[0].kind = TT_RECV;
  operands[0].buffer = TT_RESULT;
  ck_assert_uint_gt(REPEAT * OPERANDS, tt_cuda_threads(TT_PROTO_LL, 4 * (SHARE / 200 + 5), 1));
  ck_assert(read_work(&program, 1, TT_PROTO_LL, false, NULL));
  forget_programs();
}
END_TEST

static bool is_short(void)
{
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  struct tt_cuda_short_shape shape;
  ck_assert_int_eq(tt_cuda_put_short(&fake_context, &made.work, TT_CUDA_WHOLE, words, &shape), ncclSuccess);
  return shape.nwords > 0;
}

START_TEST(long_works)
{
  static const struct operation ring = {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0};
  struct program_set set = emit_set(&ring, 2, 0, NULL);
  struct tt_program scratch = *set.programs[0];
  make_work(set.programs[0], 2, TT_PROTO_LL, false);
  ck_assert(is_short());
  made.work.protocol = TT_PROTO_SIMPLE;
  ck_assert(!is_short());
  made.work.protocol = TT_PROTO_LL;
  made.channels[0].geometry.loops = made.channels[1].geometry.loops = 2;
  ck_assert(!is_short());
  made.channels[0].geometry.loops = 1;
  ck_assert(!is_short());
  made.channels[1].geometry.loops = 1;
  ck_assert(is_short());
  made.channels[1].program = set.programs[1]; /* each its own program */
  ck_assert(!is_short());
  made.channels[1].program = set.programs[0];
  made.work.nchannels = FAKE_PROCESSORS + 1; /* a block may not come to its turn */
  ck_assert(!is_short());
  made.work.nchannels = 2;
  scratch.nscratch = 1;
  made.channels[0].program = made.channels[1].program = &scratch;
  ck_assert(!is_short());
  forget_programs();
  free_set(&set);
}
END_TEST

/* One short work is launched as such; several are not. */
START_TEST(launches)
{
  static const struct operation one_shot = {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0};
  struct program_set set = emit_set(&one_shot, 4, 0, NULL);
  struct tt_work *works[] = {&made.work, &made.work};
  struct tt_launch *launch = (void *)&made;
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  struct tt_cuda_short_shape shape;
  make_work(set.programs[1], 3, TT_PROTO_LL128, false);
  ck_assert_int_eq(tt_cuda_put_short(&fake_context, &made.work, TT_CUDA_WHOLE, words, &shape), ncclSuccess);
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
  ck_assert_ptr_null(launch);
  ck_assert_int_eq(launched.count, 1);
  ck_assert(launched.form == TT_CUDA_FORM_SHORT && launched.protocol == TT_PROTO_LL128 &&
            launched.datatype == ncclFloat32);
  ck_assert_uint_eq(launched.grid.x, 3);
  ck_assert_uint_eq(launched.block.x, shape.threads);
  ck_assert_uint_eq(launched.launch.nwords, shape.nwords);
  ck_assert_mem_eq(launched.launch.words, words, shape.nwords * sizeof(*words));
  ck_assert_int_eq(tt_cuda_launch(works, 2, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(launched.count, 2);
  ck_assert_int_eq(launched.form, TT_CUDA_FORM_ANY);
  made.work.scale_at = words; /* a factor in memory is for the general kernel */
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
  ck_assert(launched.form == TT_CUDA_FORM_ANY && launched.protocol == TT_PROTO_LL128);
  uint32_t first = launched.launch.words[0] & 0xffff;
  ck_assert_ptr_eq(((const struct tt_cuda_work *)(launched.launch.words + 4 * first))->scale_at, words);
  made.work.scale_at = NULL;
  made.work.protocol = TT_PROTO_SIMPLE;
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
  ck_assert(launched.form == TT_CUDA_FORM_ANY && launched.protocol == TT_PROTO_SIMPLE);
  forget_programs();
  free_set(&set);
}
END_TEST

/* A send, a receive and a copy of a group, on 2, 1 and 1 channels. */
static struct made_work group[3];
static struct tt_work *group_works[] = {&group[0].work, &group[1].work, &group[2].work};

static void make_group(struct program_set *pair, struct program_set *own)
{
  const struct tt_program *programs[] = {pair->programs[0], pair->programs[1], own->programs[0]};
  for (int w = 0; w < 3; w++) {
    make_work(programs[w], w == 0 ? 2 : 1, TT_PROTO_LL128, false);
    group[w] = made;
    group[w].work.channels = group[w].channels;
    group[w].work.signature.collective = TT_FUNC_SEND_RECV;
    group[w].work.order = (uint64_t)w + 1;
  }
}

static void launch_group(int nworks)
{
  struct tt_launch *launch;
  ck_assert_int_eq(tt_cuda_launch(group_works, nworks, NULL, &launch), ncclSuccess);
}

/* Each block of the launch finds what its work would have alone. */
static void expect_group(int nworks)
{
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  struct tt_cuda_short_shape shape;
  const uint32_t *all = launched.launch.words;
  uint32_t item = 0;
  for (int w = 0; w < nworks; w++) {
    ck_assert_int_eq(tt_cuda_put_short(&fake_context, group_works[w], TT_CUDA_WHOLE, words, &shape), ncclSuccess);
    ck_assert_uint_le(shape.threads, launched.block.x);
    for (uint32_t c = 0; c < group_works[w]->nchannels; c++, item++) {
      const uint32_t *at = all + 4 * (all[item] & 0xffff);
      ck_assert_uint_eq(all[item] >> 16, c);
      ck_assert_uint_le((uintptr_t)(at + shape.nwords), (uintptr_t)(all + launched.launch.nwords));
      ck_assert_mem_eq(at, words, shape.nwords * sizeof(*words));
    }
  }
  ck_assert_uint_eq(launched.launch.nitems, item);
  ck_assert_uint_ge(all[0] & 0xffff, (item + 3) / 4);
}

/* Sends, receives and copies of a group are one kernel; also where they come again, with other buffers. */
START_TEST(together)
{
  struct program_set pair = emit_pair(2, 0, 1), own = emit_pair(1, 0, 0);
  make_group(&pair, &own);
  for (int time = 0; time < 3; time++) {
    for (int w = 0; w < 3; w++) group[w].work.repeat = time == 0 ? 0 : 500 + (uint64_t)w;
    forget_launches();
    launch_group(3);
    ck_assert_int_eq(launched.count, 1);
    ck_assert(launched.form == TT_CUDA_FORM_SHORT && launched.protocol == TT_PROTO_LL128);
    ck_assert_uint_eq(launched.grid.x, 4);
    ck_assert_ptr_null(launched.launch.blob);
    expect_group(3);
    for (int w = 0; w < 3; w++) group[w].work.input = (const char *)group[w].work.input + 64;
    for (int w = 0; w < 3; w++) group[w].work.output = (char *)group[w].work.output + 64;
  }
  tt_cuda_repeats_free(&fake_context);
  forget_programs();
  free_set(&pair);
  free_set(&own);
}
END_TEST

/* What cannot be side by side goes the usual way: works of a chain, more than run at once, several loops, collectives.
 */
START_TEST(not_together)
{
  struct program_set pair = emit_pair(2, 0, 1), own = emit_pair(1, 0, 0);
  for (int why = 0; why < 5; why++) {
    make_group(&pair, &own);
    if (why == 0) group[2].work.order = group[0].work.order;
    if (why == 1) group[1].work.nchannels = 2; /* one block more than there are processors */
    if (why == 1) group[1].channels[1] = group[1].channels[0];
    if (why == 2) group[2].channels[0].geometry.loops = 2;
    if (why == 3) group[0].work.signature.collective = TT_FUNC_ALL_GATHER;
    if (why == 4) group[0].work.protocol = group[1].work.protocol = group[2].work.protocol = TT_PROTO_SIMPLE;
    forget_launches();
    launch_group(3);
    ck_assert_int_eq(launched.count, 1);
    ck_assert_int_eq(launched.form, TT_CUDA_FORM_ANY);
  }
  forget_programs();
  free_set(&pair);
  free_set(&own);
}
END_TEST

/* Works with shared memory have a kernel of their own, to which it lies where scratch memory would. */
START_TEST(shared_memory)
{
  static const struct operation nvls = {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS, 0},
                                ring = {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0};
  struct program_set set = emit_set(&nvls, 4, 0, NULL), other = emit_set(&ring, 4, 0, NULL);
  struct tt_launch *launch;
  static char own[16], all[16];
  make_work(other.programs[2], 2, TT_PROTO_SIMPLE, false);
  struct made_work plain = made;
  plain.work.channels = plain.channels;
  make_work(set.programs[2], 2, TT_PROTO_SIMPLE, false);
  made.work.shared = own;
  made.work.multicast = all;
  for (uint32_t c = 0; c < 2; c++) {
    made.channels[c].geometry.shared_lo = 700 * (c + 1);
    made.channels[c].geometry.shared_stride = 77;
    made.channels[c].geometry.scratch_lo = 1;
  }
  struct tt_work *works[] = {&made.work, &made.work, &plain.work};
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
  ck_assert(launched.shares && launched.datatype == ncclFloat32);
  const uint32_t *words = launched.launch.words;
  const struct tt_cuda_work *work = (const struct tt_cuda_work *)(words + 4 * (words[0] & 0xffff));
  ck_assert_ptr_eq(work->buffers[TT_CUDA_SHARED], own);
  ck_assert_ptr_eq(work->buffers[TT_CUDA_MULTICAST], all);
  ck_assert_uint_eq(work->strides[TT_SCRATCH], 77);
  for (uint32_t c = 0; c < 2; c++)
    ck_assert_uint_eq(
        ((const struct tt_cuda_channel *)(words + 4 * (work->channels + c * work->channel_quads)))->scratch_lo,
        700 * (c + 1));
  ck_assert_int_eq(tt_cuda_launch(works, 3, NULL, &launch), ncclSuccess); /* the third has another kernel */
  ck_assert_int_eq(launched.count, 3);
  ck_assert(!launched.shares);
  made.work.protocol = TT_PROTO_LL;
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclInternalError);
  forget_programs();
  free_set(&set);
  free_set(&other);
}
END_TEST

static void forget_repeats(void)
{
  tt_cuda_repeats_free(&fake_context);
}

int main(void)
{
  Suite *suite = suite_create("kernels_cuda_short");
  TCase *tc = tcase_create("short");
  tcase_set_timeout(tc, 120);
  tcase_add_checked_fixture(tc, NULL, forget_repeats);
  tcase_add_loop_test(tc, every_algorithm, 1, MOST_RANKS + 1);
  tcase_add_loop_test(tc, mapped, 1, MOST_RANKS + 1);
  add_attributes(tc);
  add_engines(tc);
  add_exchanges(tc);
  tcase_add_test(tc, barriers);
  tcase_add_test(tc, reads_what_it_wrote);
  tcase_add_test(tc, many_entries);
  tcase_add_test(tc, long_works);
  tcase_add_test(tc, launches);
  tcase_add_test(tc, together);
  tcase_add_test(tc, not_together);
  tcase_add_test(tc, shared_memory);
  suite_add_tcase(suite, tc);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
