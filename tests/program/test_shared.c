/* Shared memory in programs written by hand: which exchanges of messages without data are needed, each left out once.
 */
#include <string.h>
#include "program/builder.h"
#include "program_set.h"

enum { N = 3, MOST_STEPS = 3 };

/* What a plan leaves out. */
enum { ALL = 0, NO_BEGIN = 1, NO_MIDDLE = 2, NO_END = 4 };

static void exchange(struct tt_builder *builder, bool wanted)
{
  if (!wanted) return;
  tt_builder_data(builder, 1, 0);
  for (uint16_t peer = 0; peer < N - 1; peer++) tt_builder_tell(builder, peer);
  tt_builder_data(builder, 1, 0);
  for (uint16_t peer = 0; peer < N - 1; peer++) tt_builder_hear(builder, peer);
}

static void start(struct tt_builder *builder, int collective, int rank, uint32_t input_blocks, uint32_t output_blocks)
{
  const int32_t members[N] = {0, 1, 2};
  struct tt_emit_request request = {.collective = collective, .algorithm = TT_ALGO_NVLS, .nranks = N, .rank = rank};
  tt_builder_start(builder, &request, 1, input_blocks, output_blocks);
  for (int distance = 1; distance < N; distance++) tt_builder_peer(builder, (rank + distance) % N);
  tt_builder_share(builder, N, members, N);
  tt_builder_strand(builder);
}

static struct tt_chunks all_blocks(void)
{
  return (struct tt_chunks){.modulo = N, .count = N, .step = 1};
}

/* All-gather: copies are free, blocks are stored, copied out. */
static struct tt_program *emit_gather(int rank, int without)
{
  struct tt_builder builder;
  struct tt_program *program;
  start(&builder, TT_FUNC_ALL_GATHER, rank, 1, N);
  exchange(&builder, !(without & NO_BEGIN));
  tt_builder_data(&builder, 1, 0);
  tt_builder_source(&builder, TT_INPUT, tt_chunk_one(0, 1));
  tt_builder_destination(&builder, TT_MULTICAST, tt_chunk_one(rank, N));
  exchange(&builder, !(without & NO_MIDDLE));
  tt_builder_data(&builder, 1, 0);
  tt_builder_source(&builder, TT_SHARED, all_blocks());
  tt_builder_destination(&builder, TT_OUTPUT, all_blocks());
  exchange(&builder, !(without & NO_END));
  ck_assert_int_eq(tt_builder_finish(&builder, &program), ncclSuccess);
  return program;
}

/* Reduce-scatter: copies are filled, sums read. */
static struct tt_program *emit_scatter(int rank, int without)
{
  struct tt_builder builder;
  struct tt_program *program;
  start(&builder, TT_FUNC_REDUCE_SCATTER, rank, N, 1);
  exchange(&builder, !(without & NO_BEGIN));
  tt_builder_data(&builder, 1, 0);
  tt_builder_source(&builder, TT_INPUT, all_blocks());
  tt_builder_destination(&builder, TT_SHARED, all_blocks());
  exchange(&builder, !(without & NO_MIDDLE));
  tt_builder_data(&builder, 1, TT_FLAG_FINAL);
  tt_builder_source(&builder, TT_MULTICAST, tt_chunk_one(rank, N));
  tt_builder_destination(&builder, TT_OUTPUT, tt_chunk_one(0, 1));
  exchange(&builder, !(without & NO_END));
  ck_assert_int_eq(tt_builder_finish(&builder, &program), ncclSuccess);
  return program;
}

/* Whether all seeds agree that operations in a row are right, or that they are wrong; one of the reasons in `why`. */
static bool is_right(struct tt_program *(*emit)(int, int), int without, uint32_t loops, int nsteps, char *why,
                     size_t why_size)
{
  struct tt_program *programs[N];
  struct tt_validate_step steps[MOST_STEPS];
  int right = 0;
  for (int rank = 0; rank < N; rank++) programs[rank] = emit(rank, without);
  for (int i = 0; i < MOST_STEPS; i++)
    steps[i] = (struct tt_validate_step){
        .programs = (const struct tt_program *const *)programs, .loops = loops, .in_place = i % 2};
  for (uint64_t seed = 0; seed < 20; seed++) {
    struct tt_validate_options options = {.seed = seed};
    right += tt_program_validate(N, steps, nsteps, &options, why, why_size) == ncclSuccess;
  }
  ck_assert_msg(right == 0 || right == 20, "without %d: the verdict depends on the seed: %d of 20", without, right);
  for (int rank = 0; rank < N; rank++) tt_program_free(programs[rank]);
  return right;
}

static void must_fail(struct tt_program *(*emit)(int, int), int without, uint32_t loops)
{
  char why[256] = "";
  ck_assert_msg(!is_right(emit, without, loops, 1, why, sizeof(why)), "proved without %d", without);
  ck_assert_msg(strstr(why, "shared memory") != NULL, "%s", why);
}

START_TEST(gather)
{
  char why[256];
  for (int nsteps = 1; nsteps <= MOST_STEPS; nsteps++) {
    ck_assert_msg(is_right(emit_gather, ALL, 3, nsteps, why, sizeof(why)), "%s", why);
    /* After the middle nobody but the rank itself uses its copy, and the next loop begins with an exchange. */
    ck_assert_msg(is_right(emit_gather, NO_END, 3, nsteps, why, sizeof(why)), "%s", why);
  }
  must_fail(emit_gather, NO_BEGIN, 1);
  must_fail(emit_gather, NO_BEGIN | NO_END, 2);
  must_fail(emit_gather, NO_MIDDLE, 1);
}
END_TEST

START_TEST(scatter)
{
  char why[256];
  for (int nsteps = 1; nsteps <= MOST_STEPS; nsteps++) {
    ck_assert_msg(is_right(emit_scatter, ALL, 3, nsteps, why, sizeof(why)), "%s", why);
    /* Only the rank itself writes its copy, and before it does again all others have read. */
    ck_assert_msg(is_right(emit_scatter, NO_BEGIN, 3, nsteps, why, sizeof(why)), "%s", why);
  }
  must_fail(emit_scatter, NO_MIDDLE, 1);
  must_fail(emit_scatter, NO_END, 1); /* it may end while others have to read */
  must_fail(emit_scatter, NO_END | NO_BEGIN, 2);
}
END_TEST

/* Each rank reads the sum for itself: right, but the device may add in another order on each. */
START_TEST(sums_of_their_own)
{
  struct tt_program *programs[N];
  struct program_set set = {.n = N, .programs = programs};
  for (int rank = 0; rank < N; rank++) {
    struct tt_builder builder;
    start(&builder, TT_FUNC_ALL_REDUCE, rank, 1, 1);
    tt_builder_data(&builder, 1, 0);
    tt_builder_source(&builder, TT_INPUT, tt_chunk_one(0, 1));
    tt_builder_destination(&builder, TT_SHARED, tt_chunk_one(0, 1));
    exchange(&builder, true);
    tt_builder_data(&builder, 1, TT_FLAG_FINAL);
    tt_builder_source(&builder, TT_MULTICAST, tt_chunk_one(0, 1));
    tt_builder_destination(&builder, TT_OUTPUT, tt_chunk_one(0, 1));
    exchange(&builder, true);
    ck_assert_int_eq(tt_builder_finish(&builder, &programs[rank]), ncclSuccess);
  }
  struct way way = {.loops = 2};
  char why[256];
  ck_assert(!is_proved(&set, &way, why, sizeof(why)));
  ck_assert_msg(strstr(why, "in another order") != NULL, "%s", why);
  struct tt_validate_step step = {.programs = (const struct tt_program *const *)programs, .loops = 2};
  struct tt_validate_options options = {.same_everywhere = false};
  ck_assert_int_eq(tt_program_validate(N, &step, 1, &options, why, sizeof(why)), ncclSuccess);
  for (int rank = 0; rank < N; rank++) tt_program_free(programs[rank]);
}
END_TEST

/* All members must name the same. */
START_TEST(other_members)
{
  const struct operation operation = {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS, 0};
  struct program_set set = emit_set(&operation, 4, 0, NULL);
  uint32_t nmembers = set.programs[2]->nmembers;
  struct way way = {.loops = 1};
  char why[256];
  set.programs[2]->nmembers = 3;
  ck_assert(!is_proved(&set, &way, why, sizeof(why)));
  ck_assert_msg(strstr(why, "do not share the same memory") != NULL, "%s", why);
  set.programs[2]->nmembers = nmembers;
  set.programs[2]->shared_blocks++;
  ck_assert(!is_proved(&set, &way, why, sizeof(why)));
  ck_assert_msg(strstr(why, "do not share the same memory") != NULL, "%s", why);
  set.programs[2]->shared_blocks--;
  must_prove(&operation, &set, &way);
  free_set(&set);
}
END_TEST

Suite *shared_suite(void)
{
  Suite *suite = suite_create("shared");
  TCase *tests = add_case(suite, "shared");
  tcase_add_test(tests, gather);
  tcase_add_test(tests, scatter);
  tcase_add_test(tests, sums_of_their_own);
  tcase_add_test(tests, other_members);
  return suite;
}
