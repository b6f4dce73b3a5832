/* Operations back to back: ranks drift apart, so that one may send for the next while another still receives for the
 * last, on the same FIFOs. */
#include <stdlib.h>
#include <string.h>
#include "program_set.h"

enum { STEPS = 7 };

struct sequence {
  int n;
  uint32_t slots;
  struct program_set sets[STEPS];
  struct tt_validate_step steps[STEPS];
};

/* An operation's number. A communicator's nodes have one shape. */
static int draw_operation(uint64_t *random, int count, int shape)
{
  const struct operation *operations = all_operations(&count);
  for (;;) {
    int which = (int)(next_random(random) % (uint64_t)(count + 2));
    if (which >= count || !has_nodes(&operations[which]) || operations[which].variant % NODE_SHAPES == shape)
      return which;
  }
}

static struct sequence make_sequence(uint64_t *random)
{
  int count;
  const struct operation *operations = all_operations(&count);
  struct sequence sequence = {.n = 1 + (int)(next_random(random) % 20), .slots = 1};
  int n = sequence.n;
  int32_t *ring = next_random(random) % 2 ? shuffled_ring(n, next_random(random)) : NULL;
  int shape = (int)(next_random(random) % NODE_SHAPES);
  for (int i = 0; i < STEPS; i++) {
    int which = draw_operation(random, count, shape);
    int root = (int)(next_random(random) % (uint64_t)n), other = (int)(next_random(random) % (uint64_t)n);
    if (which < count) {
      sequence.sets[i] = emit_set(&operations[which], n, root, ring);
      uint32_t least = least_slots(&operations[which], n);
      if (least > sequence.slots) sequence.slots = least;
    } else {
      sequence.sets[i] = emit_pair(n, root, other);
    }
    sequence.steps[i] = (struct tt_validate_step){
        .programs = (const struct tt_program *const *)sequence.sets[i].programs,
        .loops = 1 + (uint32_t)(next_random(random) % 4),
        .in_place = next_random(random) % 2 && (which >= count || in_place_is_possible(&operations[which]))};
  }
  free(ring);
  return sequence;
}

START_TEST(random_sequences)
{
  uint64_t random = 1;
  for (int i = 0; i < 400; i++) {
    struct sequence sequence = make_sequence(&random);
    for (uint64_t seed = 0; seed < 4; seed++) {
      char why[256];
      struct tt_validate_options options = {
          .slots = seed % 2 ? 8 : sequence.slots, .seed = seed + (uint64_t)i, .same_everywhere = true};
      ck_assert_msg(tt_program_validate(sequence.n, sequence.steps, STEPS, &options, why, sizeof(why)) == ncclSuccess,
                    "sequence %d, %d ranks, %u slots, seed %llu: %s", i, sequence.n, options.slots,
                    (unsigned long long)options.seed, why);
    }
    for (int step = 0; step < STEPS; step++) free_set(&sequence.sets[step]);
  }
}
END_TEST

static ncclResult_t validate_two(int n, const struct program_set *first, const struct program_set *second, char *why,
                                 size_t why_size)
{
  struct tt_validate_step steps[] = {
      {.programs = (const struct tt_program *const *)first->programs, .loops = 1},
      {.programs = (const struct tt_program *const *)second->programs, .loops = 1},
  };
  struct tt_validate_options options = {.seed = 1};
  return tt_program_validate(n, steps, 2, &options, why, why_size);
}

/* A message that an operation leaves behind must not be taken for one of the next. */
START_TEST(leftover_meets_next_step)
{
  struct program_set first = emit_pair(2, 0, 1), second = emit_pair(2, 0, 1);
  char why[256];
  ck_assert_int_eq(validate_two(2, &first, &second, why, sizeof(why)), ncclSuccess);
  tt_program_free(first.programs[1]);
  first.programs[1] = NULL;
  ck_assert_int_eq(validate_two(2, &first, &second, why, sizeof(why)), ncclInternalError);
  ck_assert_msg(strstr(why, "of step 0 from rank 0") != NULL, "%s", why);
  tt_program_free(second.programs[1]);
  second.programs[1] = NULL;
  ck_assert_int_eq(validate_two(2, &first, &second, why, sizeof(why)), ncclInternalError);
  ck_assert_msg(strstr(why, "never received") != NULL, "%s", why);
  free_set(&first);
  free_set(&second);
}
END_TEST

/* Ranks that disagree about the order of two operations. */
START_TEST(different_order_on_one_rank)
{
  const struct operation gather = {TT_FUNC_ALL_GATHER, TT_ALGO_RING, 0}, sum = {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0};
  struct program_set first = emit_set(&gather, 3, 0, NULL), second = emit_set(&sum, 3, 0, NULL);
  char why[256];
  ck_assert_int_eq(validate_two(3, &first, &second, why, sizeof(why)), ncclSuccess);
  struct tt_program *swapped = first.programs[1];
  first.programs[1] = second.programs[1];
  second.programs[1] = swapped;
  ck_assert_int_eq(validate_two(3, &first, &second, why, sizeof(why)), ncclInternalError);
  ck_assert_msg(strstr(why, "different operations") != NULL, "%s", why);
  free_set(&first);
  free_set(&second);
}
END_TEST

/* A network is set up once, for the same ranks whatever the operation. */
START_TEST(network_with_other_members)
{
  const struct operation pairs = {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_OF_TWO};
  const struct operation apart = {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_APART};
  struct program_set first = emit_set(&pairs, 4, 0, NULL), second = emit_set(&apart, 4, 0, NULL);
  char why[256];
  ck_assert_int_eq(validate_two(4, &first, &first, why, sizeof(why)), ncclSuccess);
  ck_assert_int_eq(validate_two(4, &first, &second, why, sizeof(why)), ncclInternalError);
  ck_assert_msg(strstr(why, "rank 1 takes part in network 0") != NULL, "%s", why);
  ck_assert_int_eq(validate_two(4, &second, &first, why, sizeof(why)), ncclInternalError);
  ck_assert_msg(strstr(why, "2 of 4 members of network 0") != NULL || strstr(why, "takes part in network 0"), "%s",
                why);
  free_set(&first);
  free_set(&second);
}
END_TEST

Suite *sequence_suite(void)
{
  Suite *suite = suite_create("sequence");
  TCase *tests = add_case(suite, "sequence");
  tcase_add_test(tests, random_sequences);
  tcase_add_test(tests, leftover_meets_next_step);
  tcase_add_test(tests, different_order_on_one_rank);
  tcase_add_test(tests, network_with_other_members);
  return suite;
}
