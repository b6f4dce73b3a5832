/* Programs with scratch buffers and semaphores, written by hand: an all-reduce of two ranks in which one
 * strand receives into scratch and another reduces from there. */
#include <string.h>
#include "program/builder.h"
#include "program_set.h"

enum plan {
  ONE_STRAND,      /* receive, then reduce: right */
  BOTH_SEMAPHORES, /* full and empty: right */
  FULL_ONLY,       /* the next loop may overwrite what was not reduced yet */
  EMPTY_ONLY,      /* the reduction may read before anything is there */
  WRONG_SCRATCH    /* reduces from a scratch buffer that nobody writes */
};

static void emit_reduction(struct tt_builder *builder, int rank, uint8_t scratch)
{
  struct tt_chunks all = tt_chunk_one(0, 1);
  tt_builder_data(builder, 1, TT_FLAG_FINAL);
  tt_builder_source(builder, rank == 0 ? TT_INPUT : scratch, all);
  tt_builder_source(builder, rank == 0 ? scratch : TT_INPUT, all);
  tt_builder_destination(builder, TT_OUTPUT, all);
}

static struct tt_program *emit_plan(int rank, enum plan plan)
{
  struct tt_emit_request request = {
      .collective = TT_FUNC_ALL_REDUCE, .algorithm = TT_ALGO_ONE_SHOT, .nranks = 2, .rank = rank};
  struct tt_chunks all = tt_chunk_one(0, 1);
  struct tt_builder builder;
  struct tt_program *program;
  tt_builder_start(&builder, &request, 1, 1, 1);
  builder.head.nscratch = 2;
  builder.head.scratch_blocks = 1;
  uint16_t peer = tt_builder_peer(&builder, 1 - rank);
  uint16_t full = tt_builder_semaphore(&builder), empty = tt_builder_semaphore(&builder);
  tt_builder_strand(&builder);
  tt_builder_data(&builder, 1, 0);
  tt_builder_source(&builder, TT_INPUT, all);
  tt_builder_send(&builder, peer, TT_RESULT, all);
  tt_builder_data(&builder, 1, 0);
  tt_builder_receive(&builder, peer, TT_SCRATCH + 1, all);
  bool strands = plan == BOTH_SEMAPHORES || plan == FULL_ONLY || plan == EMPTY_ONLY;
  bool has_full = plan == BOTH_SEMAPHORES || plan == FULL_ONLY;
  bool has_empty = plan == BOTH_SEMAPHORES || plan == EMPTY_ONLY;
  if (has_full) tt_builder_signal(&builder, full);
  if (has_empty) tt_builder_wait(&builder, empty);
  if (strands) tt_builder_strand(&builder);
  if (has_full) tt_builder_wait(&builder, full);
  emit_reduction(&builder, rank, plan == WRONG_SCRATCH ? TT_SCRATCH : TT_SCRATCH + 1);
  if (has_empty) tt_builder_signal(&builder, empty);
  ck_assert_int_eq(tt_builder_finish(&builder, &program), ncclSuccess);
  return program;
}

/* Whether all seeds agree that the plan is right, or that it is wrong. */
static bool is_right(enum plan plan, uint32_t loops, bool in_place)
{
  struct tt_program *programs[] = {emit_plan(0, plan), emit_plan(1, plan)};
  struct program_set set = {.n = 2, .programs = programs};
  int right = 0;
  for (uint64_t seed = 0; seed < 20; seed++) {
    struct way way = {.loops = loops, .seed = seed, .in_place = in_place};
    char why[256];
    right += is_proved(&set, &way, why, sizeof(why));
  }
  ck_assert_msg(right == 0 || right == 20, "plan %d: the verdict depends on the seed: %d of 20", plan, right);
  for (int rank = 0; rank < 2; rank++) tt_program_free(programs[rank]);
  return right;
}

START_TEST(one_strand)
{
  for (int in_place = 0; in_place < 2; in_place++) {
    ck_assert(is_right(ONE_STRAND, 3, in_place));
    ck_assert(!is_right(WRONG_SCRATCH, 1, in_place));
  }
}
END_TEST

START_TEST(two_strands)
{
  for (int in_place = 0; in_place < 2; in_place++) {
    ck_assert(is_right(BOTH_SEMAPHORES, 4, in_place));
    ck_assert(is_right(FULL_ONLY, 1, in_place));
    ck_assert(!is_right(FULL_ONLY, 2, in_place));
    ck_assert(!is_right(EMPTY_ONLY, 1, in_place));
  }
}
END_TEST

Suite *scratch_suite(void)
{
  Suite *suite = suite_create("scratch");
  TCase *tests = add_case(suite, "scratch");
  tcase_add_test(tests, one_strand);
  tcase_add_test(tests, two_strands);
  return suite;
}
