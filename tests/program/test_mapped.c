/* Ranks that use each other's buffers, each rule broken once with the reason why: what is left out on both sides, which
 * no change of one rank's program shows. */
#include <stdlib.h>
#include <string.h>
#include "mutant.h"
#include "program_set.h"

enum { N = 3 };

/* The programs of N ranks, with one instruction less on each. */
static void must_fail_without(int collective, uint32_t first, uint32_t second, const char *reason)
{
  const struct operation operation = {collective, TT_ALGO_MAPPED, 0};
  struct program_set set = emit_set(&operation, N, 0, NULL), changed = {.n = N};
  struct mutant *mutants[N];
  struct tt_program *programs[N];
  char why[256] = "";
  bool proved = true;
  changed.programs = programs;
  for (int rank = 0; rank < N; rank++) {
    mutants[rank] = mutant_new(set.programs[rank]);
    mutant_drop_instruction(mutants[rank], second);
    mutant_drop_instruction(mutants[rank], first);
    programs[rank] = &mutants[rank]->program;
  }
  for (uint64_t seed = 0; seed < 20 && proved; seed++)
    proved = is_proved(&changed, &(struct way){.loops = 1, .seed = seed}, why, sizeof(why));
  /* Or the owner has ended before another rank came at all. */
  bool expected =
      strstr(why, reason) || (first > 1 && (strstr(why, "never written") || strstr(why, "not in this step")));
  ck_assert_msg(!proved && expected, "%s without %u and %u: %s", operation_name(&operation), first, second, why);
  for (int rank = 0; rank < N; rank++) mutant_free(mutants[rank]);
  free_set(&set);
}

/* Without "ready" a rank touches buffers whose owner may still be elsewhere; without "done" the owner ends too soon. */
START_TEST(barriers)
{
  const int collectives[] = {TT_FUNC_ALL_REDUCE, TT_FUNC_ALL_GATHER, TT_FUNC_REDUCE_SCATTER};
  for (int i = 0; i < 3; i++) {
    must_fail_without(collectives[i], 0, 1, "may not have begun this step");
    must_fail_without(collectives[i], 3, 4, "others may still use its memory");
  }
  must_fail_without(TT_FUNC_ALL_TO_ALL, 0, 1, "may not have begun this step");
  must_fail_without(TT_FUNC_ALL_TO_ALL, 5, 6, "others may still use its memory");
}
END_TEST

/* Two operations one after the other, and between them one through connections: the memory is that of each. */
START_TEST(sequences)
{
  const struct operation operations[] = {{TT_FUNC_ALL_REDUCE, TT_ALGO_MAPPED, 0},
                                         {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0},
                                         {TT_FUNC_BROADCAST, TT_ALGO_MAPPED, 0},
                                         {TT_FUNC_ALL_TO_ALL, TT_ALGO_MAPPED, 0}};
  struct program_set sets[4];
  struct tt_validate_step steps[4];
  for (int i = 0; i < 4; i++) {
    sets[i] = emit_set(&operations[i], 5, 2, NULL);
    steps[i] = (struct tt_validate_step){
        .programs = (const struct tt_program *const *)sets[i].programs, .loops = 2, .in_place = i < 3};
  }
  for (uint64_t seed = 0; seed < 10; seed++) {
    char why[256] = "";
    struct tt_validate_options options = {.seed = seed, .same_everywhere = true};
    ck_assert_msg(tt_program_validate(5, steps, 4, &options, why, sizeof(why)) == ncclSuccess, "%s", why);
  }
  for (int i = 0; i < 4; i++) free_set(&sets[i]);
}
END_TEST

/* All-to-all in place would read what another rank has written already. */
START_TEST(no_exchange_in_place)
{
  const struct operation exchange = {TT_FUNC_ALL_TO_ALL, TT_ALGO_MAPPED, 0};
  struct program_set set = emit_set(&exchange, 4, 0, NULL);
  struct tt_validate_step step = {
      .programs = (const struct tt_program *const *)set.programs, .loops = 1, .in_place = true};
  struct tt_validate_options options = {.seed = 1};
  char why[256];
  ck_assert(tt_program_validate(4, &step, 1, &options, why, sizeof(why)) != ncclSuccess);
  step.in_place = false;
  ck_assert(tt_program_validate(4, &step, 1, &options, why, sizeof(why)) == ncclSuccess);
  free_set(&set);
}
END_TEST

/* Ranks of other hosts have no buffers that could be mapped. */
START_TEST(one_node_only)
{
  const int32_t two[] = {0, 0, 1};
  struct tt_program *program;
  struct tt_emit_request request = {
      .collective = TT_FUNC_ALL_REDUCE, .algorithm = TT_ALGO_MAPPED, .nranks = 3, .node = two};
  ck_assert_int_eq(tt_program_emit(&request, &program), ncclInvalidUsage);
  ck_assert_ptr_null(program);
}
END_TEST

Suite *mapped_suite(void)
{
  Suite *suite = suite_create("mapped");
  TCase *tests = add_case(suite, "mapped");
  tcase_add_test(tests, barriers);
  tcase_add_test(tests, sequences);
  tcase_add_test(tests, no_exchange_in_place);
  tcase_add_test(tests, one_node_only);
  return suite;
}
