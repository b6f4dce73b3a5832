/* Programs for joined rings and trees, of all ranks together, must be right: all-reduce, broadcast and so on by rings,
 * and all-reduce by trees, on several machines. Names of ranks are as the join has them. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "join_machine.h"
#include "join_suites.h"
#include "program/emit.h"
#include "program/validate.h"

#define CONST(graphs) ((const struct tt_graph *const *)(graphs).kinds)

static struct tt_program *emit(const struct tt_joined *joined, int channel, int rank, int collective, int algorithm)
{
  const struct tt_join_tree place = tt_join_tree_place(joined, channel, rank);
  const struct tt_tree tree = {place.up, {place.down[0], place.down[1], place.down[2]}};
  const struct tt_emit_request request = {.collective = collective,
                                          .algorithm = algorithm,
                                          .nranks = joined->nranks,
                                          .rank = rank,
                                          .root = tt_collective_has_root(collective) ? joined->nranks / 2 : 0,
                                          .ring = joined->ring[channel],
                                          .tree = &tree,
                                          .tree_index = joined->base[channel] >= joined->nsearched,
                                          .node = joined->node};
  struct tt_program *program;
  ck_assert_msg(tt_program_emit(&request, &program) == ncclSuccess, "%s", tt_log_thread_error());
  return program;
}

/* Whether the programs of a channel are right. `damaged` has the place of another rank; -1: none. */
static bool right(const struct tt_joined *joined, int channel, int collective, int algorithm, int damaged, char *why)
{
  struct tt_program **programs = calloc((size_t)joined->nranks, sizeof(struct tt_program *));
  const struct tt_validate_step step = {(const struct tt_program *const *)programs, 2, false};
  const struct tt_validate_options options = {.seed = 1, .same_everywhere = collective == TT_FUNC_ALL_REDUCE};
  if (!programs) abort();
  for (int r = 0; r < joined->nranks; r++) programs[r] = emit(joined, channel, r, collective, algorithm);
  if (damaged >= 0) {
    tt_program_free(programs[damaged]);
    programs[damaged] = emit(joined, (channel + 1) % joined->nchannels, damaged, collective, algorithm);
  }
  const bool good = tt_program_validate(joined->nranks, &step, 1, &options, why, 256) == ncclSuccess;
  for (int r = 0; r < joined->nranks; r++) tt_program_free(programs[r]);
  free(programs);
  return good;
}

static void prove(const struct tt_joined *joined, int channel, int collective, int algorithm)
{
  char why[256];
  ck_assert_msg(right(joined, channel, collective, algorithm, -1, why), "%d ranks, channel %d, %s by %s: %s",
                joined->nranks, channel, tt_collective_name(collective), tt_algorithm_name(algorithm), why);
}

static struct tt_joined *join(uint64_t *state, const int *nlocal, int nnodes, int nchannels)
{
  struct fleet fleet = {0};
  for (int n = 0; n < nnodes; n++) {
    struct graphs graphs = graphs_random(state, nlocal[n], nchannels, 1);
    fleet_add(&fleet, CONST(graphs), NULL, nlocal[n]);
    graphs_free(&graphs);
  }
  struct tt_joined *joined = fleet_join(&fleet, NULL);
  ck_assert_msg(joined != NULL, "%s", tt_log_thread_error());
  return joined;
}

static void prove_all(const struct tt_joined *joined)
{
  static const int others[] = {TT_FUNC_BROADCAST, TT_FUNC_REDUCE, TT_FUNC_ALL_GATHER, TT_FUNC_REDUCE_SCATTER};
  for (int c = 0; c < joined->nchannels; c++) {
    prove(joined, c, TT_FUNC_ALL_REDUCE, TT_ALGO_TREE);
    if (c >= joined->nsearched) continue; /* rings repeat */
    prove(joined, c, TT_FUNC_ALL_REDUCE, TT_ALGO_RING);
    prove(joined, c, others[c % (int)TT_COUNT(others)], TT_ALGO_RING);
  }
}

START_TEST(equal_machines)
{
  static const int sizes[][2] = {{1, 8}, {2, 4}, {3, 4}, {4, 2}, {5, 3}, {7, 1}, {8, 8}};
  uint64_t state = 21;
  for (size_t i = 0; i < TT_COUNT(sizes); i++) {
    int nlocal[8];
    for (int n = 0; n < sizes[i][0]; n++) nlocal[n] = sizes[i][1];
    struct tt_joined *joined = join(&state, nlocal, sizes[i][0], sizes[i][0] * sizes[i][1] > 40 ? 1 : 2);
    prove_all(joined);
    tt_joined_free(joined);
  }
}
END_TEST

START_TEST(unequal_machines)
{
  static const int nlocal[][6] = {{4, 1, 3, 2, 2, 5}, {1, 8, 1, 1, 6, 1}};
  uint64_t state = 22;
  for (size_t i = 0; i < TT_COUNT(nlocal); i++) {
    struct tt_joined *joined = join(&state, nlocal[i], 6, 4);
    prove_all(joined);
    tt_joined_free(joined);
  }
}
END_TEST

/* A rank that stands elsewhere than the others believe: no program may pass. */
START_TEST(a_rank_elsewhere)
{
  static const int nlocal[] = {4, 4, 4};
  uint64_t state = 23;
  char why[256];
  struct tt_joined *joined = join(&state, nlocal, 3, 2);
  for (int r = 0; r < joined->nranks; r++) {
    const struct tt_join_tree a = tt_join_tree_place(joined, 0, r), b = tt_join_tree_place(joined, 1, r);
    if (memcmp(&a, &b, sizeof(a)) == 0) continue;
    ck_assert(!right(joined, 0, TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, r, why));
  }
  ck_assert(!right(joined, 0, TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 5, why));
  tt_joined_free(joined);
}
END_TEST

Suite *suite_join_programs(void)
{
  Suite *suite = suite_create("join programs");
  TCase *tcase = tcase_create("programs");
  tcase_set_timeout(tcase, 240);
  tcase_add_test(tcase, equal_machines);
  tcase_add_test(tcase, unequal_machines);
  tcase_add_test(tcase, a_rank_elsewhere);
  suite_add_tcase(suite, tcase);
  return suite;
}
