/* Sampled sizes up to thousands of ranks. What is proved follows the number of chunk events: rings of blocks or parts
 * and PAT have n of them a rank, and the direct algorithms n operands an instruction and as many connections, so those
 * stop earlier than chains and trees, which have a constant number. */
#include <stdlib.h>
#include "program_set.h"
#include "tests/common/effort.h"

static int largest(const struct operation *operation)
{
  if (operation->algorithm == TT_ALGO_ONE_SHOT || operation->algorithm == TT_ALGO_TWO_SHOT) return 511;
  if (operation->algorithm == TT_ALGO_DIRECT && !has_root(operation)) return 256;
  if (operation->algorithm == TT_ALGO_NVLS || operation->algorithm == TT_ALGO_MAPPED) return 129;
  if (operation->algorithm == TT_ALGO_NVLS_TREE) return operation->variant == 2 ? 1024 : 256;
  int shape = operation->variant % NODE_SHAPES;
  if (operation->algorithm == TT_ALGO_COLLNET_DIRECT) return shape == NODES_ONE || shape == NODES_DEALT ? 129 : 4096;
  if (operation->algorithm == TT_ALGO_COLLNET_CHAIN) return 4096;
  return operation->algorithm == TT_ALGO_TREE || has_root(operation) ? 4096 : 1024;
}

START_TEST(samples)
{
  const int sizes[] = {65, 96, 127, 128, 129, 255, 256, 511, 1000, 1024, 4096};
  int count;
  const struct operation *operation = &all_operations(&count)[_i];
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    int n = sizes[i];
    if (n > largest(operation) || (i + (size_t)_i) % EFFORT(1, 7) != 0) continue;
    int32_t *ring = i % 2 ? shuffled_ring(n, (uint64_t)n) : NULL;
    struct program_set set = emit_set(operation, n, n / 3, ring);
    bool in_place = (i / EFFORT(1, 7)) % 2; /* each of the two at every other size */
    struct way way = {.loops = n < 200 ? 2 : 1, .slots = in_place ? 2 : 8, .in_place = in_place, .seed = (uint64_t)n};
    must_prove(operation, &set, &way);
    free_set(&set);
    free(ring);
  }
}
END_TEST

Suite *large_suite(void)
{
  int count;
  all_operations(&count);
  Suite *suite = suite_create("large");
  TCase *tests = add_case(suite, "large");
  tcase_add_loop_test(tests, samples, 0, count);
  return suite;
}
