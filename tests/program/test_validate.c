/* Every emitter for 1 to 64 ranks: all roots or a sample, in and out of place, loops, seeds, FIFO depths. */
#include <stdlib.h>
#include <string.h>
#include "program_set.h"

enum { SMALL = 16 };

static void prove_all_ways(const struct operation *operation, const struct program_set *set, uint64_t seeds)
{
  const uint32_t depths[] = {1, 2, 8};
  for (int depth = 0; depth < 3; depth++) {
    if (depths[depth] < least_slots(operation, set->n)) continue;
    for (uint32_t loops = 1; loops <= 3; loops++) {
      for (uint64_t i = 0; i < 2 * seeds; i++) {
        struct way way = {.loops = loops, .slots = depths[depth], .in_place = i % 2, .seed = i / 2 + loops};
        must_prove(operation, set, &way);
      }
    }
  }
}

/* With shared memory each rank hears of each, and what they know grows with both: larger ones are run in two ways, and
 * so are those with messages between all. */
static void prove_some_ways(const struct operation *operation, const struct program_set *set)
{
  uint32_t least = least_slots(operation, set->n);
  for (int in_place = 0; in_place < 2; in_place++) {
    struct way way = {.loops = 2, .slots = in_place ? 8 : least, .in_place = in_place, .seed = (uint64_t)set->n};
    must_prove(operation, set, &way);
  }
}

/* All roots of small communicators, and four of larger ones. */
static int next_root(int n, int root)
{
  if (n <= SMALL) return root + 1;
  return root == 0 ? 1 : root == 1 ? n / 2 : root == n / 2 ? n - 1 : n;
}

static void prove_sizes(const struct operation *operation, bool shuffled)
{
  int cases = 0;
  for (int n = 1; n <= 64; n++) {
    if (n > SMALL && operation->algorithm == TT_ALGO_MAPPED && n % 16 > 1) continue; /* one of odd sizes, one of even */
    int32_t *ring = shuffled ? shuffled_ring(n, (uint64_t)n) : NULL;
    for (int root = 0; root < (has_root(operation) ? n : 1); root = next_root(n, root)) {
      if (cases++ % ONE_OF_MANY != 0) continue;
      struct program_set set = emit_set(operation, n, root, ring);
      if (n > SMALL && (shares_memory(operation) || is_dense(operation)))
        prove_some_ways(operation, &set);
      else
        prove_all_ways(operation, &set, n <= SMALL ? 3 : 1);
      free_set(&set);
    }
    free(ring);
  }
}

START_TEST(all_sizes)
{
  int count;
  prove_sizes(&all_operations(&count)[_i], false);
}
END_TEST

START_TEST(shuffled_rings)
{
  int count;
  const struct operation *operation = &all_operations(&count)[_i];
  if (operation->algorithm == TT_ALGO_RING) prove_sizes(operation, true);
}
END_TEST

/* One slot fewer than needed deadlocks, and that is what the validator says. */
START_TEST(too_few_slots)
{
  int count, found = 0;
  const struct operation *operations = all_operations(&count);
  for (int i = 0; i < count; i++) {
    for (int n = 2; n <= 12; n++) {
      if (least_slots(&operations[i], n) != 2) continue;
      struct program_set set = emit_set(&operations[i], n, 0, NULL);
      char why[256];
      struct way way = {.loops = 1, .slots = 1};
      ck_assert_msg(!is_proved(&set, &way, why, sizeof(why)), "%s for %d ranks works with one slot",
                    operation_name(&operations[i]), n);
      ck_assert_msg(strstr(why, "deadlock") != NULL, "%s", why);
      found++;
      free_set(&set);
    }
  }
  ck_assert_int_gt(found, 0);
}
END_TEST

START_TEST(pairs)
{
  const struct operation operation = {TT_FUNC_SEND, TT_ALGO_POINT_TO_POINT, 0};
  for (int n = 1; n <= 6; n++) {
    for (int from = 0; from < n; from++) {
      for (int to = 0; to < n; to++) {
        struct program_set set = emit_pair(n, from, to);
        prove_all_ways(&operation, &set, 1);
        free_set(&set);
      }
    }
  }
}
END_TEST

/* A tree as topology makes it: a chain inside each node of three, and the first ranks of the nodes in a tree. */
START_TEST(trees_of_nodes)
{
  enum { NODES = 5, LOCAL = 3 };
  const struct operation operation = {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 0};
  struct tt_program *programs[NODES * LOCAL];
  struct program_set set = {.n = NODES * LOCAL, .programs = programs};
  for (int rank = 0; rank < set.n; rank++) {
    int node = rank / LOCAL, local = rank % LOCAL;
    struct tt_tree tree = {.up = rank - 1, .down = {local + 1 < LOCAL ? rank + 1 : -1, -1, -1}}, nodes;
    tt_tree_double(NODES, node, 0, &nodes);
    if (local == 0) {
      tree.up = nodes.up < 0 ? -1 : nodes.up * LOCAL;
      for (int i = 0; i < 2; i++) tree.down[1 + i] = nodes.down[i] < 0 ? -1 : nodes.down[i] * LOCAL;
    }
    struct tt_emit_request request = {
        .collective = TT_FUNC_ALL_REDUCE, .algorithm = TT_ALGO_TREE, .nranks = set.n, .rank = rank, .tree = &tree};
    ck_assert_int_eq(tt_program_emit(&request, &programs[rank]), ncclSuccess);
  }
  prove_all_ways(&operation, &set, 4);
  for (int rank = 0; rank < set.n; rank++) tt_program_free(programs[rank]);
}
END_TEST

Suite *validate_suite(void)
{
  int count;
  all_operations(&count);
  Suite *suite = suite_create("validate");
  TCase *tests = add_case(suite, "validate");
  tcase_add_loop_test(tests, all_sizes, 0, count);
  tcase_add_loop_test(tests, shuffled_rings, 0, count);
  tcase_add_test(tests, too_few_slots);
  tcase_add_test(tests, pairs);
  tcase_add_test(tests, trees_of_nodes);
  return suite;
}
