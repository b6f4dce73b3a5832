/* The example of docs/programs.md: a binomial tree's broadcast, written with the builder and proved. The part between
 * the two marks stands there word for word; tests/tools compares them. */
#include <check.h>
#include <stdlib.h>
#include "program/builder.h"
#include "program/simulate.h"
#include "program/validate.h"

/* example begins */
/* Binomial tree: place 0 is the root. Place p hears from the place that p is without its lowest bit, and passes on to
 * p + d for every power of two d below that bit. */
static ncclResult_t emit_binomial(struct tt_builder *builder, const struct tt_emit_request *request)
{
  int32_t n = request->nranks, place = (request->rank - request->root + n) % n, bit = 1;
  struct tt_chunks all = tt_chunk_one(0, 1);
  while (place ? !(place & bit) : bit < n) bit *= 2;
  builder->head.input_blocks = place == 0;
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  if (place == 0)
    tt_builder_source(builder, TT_INPUT, all);
  else
    tt_builder_receive(builder, tt_builder_peer(builder, (request->rank - bit + n) % n), TT_RESULT, all);
  tt_builder_destination(builder, TT_OUTPUT, all);
  for (int32_t distance = bit / 2; distance > 0; distance /= 2) {
    if (place + distance < n)
      tt_builder_send(builder, tt_builder_peer(builder, (request->rank + distance) % n), TT_RESULT, all);
  }
  return ncclSuccess;
}
/* example ends */

START_TEST(is_proved)
{
  const struct tt_simulate_cost steps = tt_simulate_steps();
  for (int n = 1; n <= 64; n++) {
    struct tt_program *programs[64];
    struct tt_emit_request request = {
        .collective = TT_FUNC_BROADCAST, .algorithm = TT_ALGO_TREE, .nranks = n, .root = n / 3};
    for (request.rank = 0; request.rank < n; request.rank++) {
      struct tt_builder builder;
      tt_builder_start(&builder, &request, 1, 1, 1);
      ck_assert_int_eq(emit_binomial(&builder, &request), ncclSuccess);
      ck_assert_int_eq(tt_builder_finish(&builder, &programs[request.rank]), ncclSuccess);
    }
    for (uint64_t seed = 0; seed < 4; seed++) {
      char why[256];
      struct tt_validate_step step = {
          .programs = (const struct tt_program *const *)programs, .loops = 3, .in_place = seed % 2};
      struct tt_validate_options options = {.slots = 1, .seed = seed};
      ck_assert_msg(tt_program_validate(n, &step, 1, &options, why, sizeof(why)) == ncclSuccess, "%d ranks: %s", n,
                    why);
    }
    int log2_up = 0;
    while (1 << log2_up < n) log2_up++;
    struct tt_simulation simulation;
    struct tt_simulate_channel channel = {.programs = (const struct tt_program *const *)programs,
                                          .geometry = tt_simulate_even(1, 1, 1)};
    struct tt_simulate_input input = {
        .nranks = n, .channels = &channel, .nchannels = 1, .element_bytes = 1, .cost = &steps};
    ck_assert_int_eq(tt_simulate(&input, &simulation), ncclSuccess);
    ck_assert_double_le(simulation.time, log2_up);
    ck_assert_double_ge(simulation.time, n > 1 ? log2_up - 1 : 0);
    tt_simulation_free(&simulation);
    for (int rank = 0; rank < n; rank++) tt_program_free(programs[rank]);
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("example");
  TCase *tests = tcase_create("example");
  tcase_add_test(tests, is_proved);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
