/* See program_set.h. */
#include <stdio.h>
#include <stdlib.h>
#include "program_set.h"

static const struct operation operations[] = {
    {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0},       {TT_FUNC_ALL_GATHER, TT_ALGO_RING, 0},
    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_RING, 0},   {TT_FUNC_BROADCAST, TT_ALGO_RING, 0},
    {TT_FUNC_REDUCE, TT_ALGO_RING, 0},           {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 0},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 1},       {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_TWO_SHOT, 0},   {TT_FUNC_ALL_GATHER, TT_ALGO_DIRECT, 0},
    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_DIRECT, 0}, {TT_FUNC_BROADCAST, TT_ALGO_DIRECT, 0},
    {TT_FUNC_REDUCE, TT_ALGO_DIRECT, 0},         {TT_FUNC_ALL_TO_ALL, TT_ALGO_DIRECT, 0},
    {TT_FUNC_SCATTER, TT_ALGO_DIRECT, 0},        {TT_FUNC_GATHER, TT_ALGO_DIRECT, 0},
    {TT_FUNC_ALL_GATHER, TT_ALGO_PAT, 0},        {TT_FUNC_ALL_GATHER, TT_ALGO_PAT, 2},
    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_PAT, 0},    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_PAT, 2},
};

const struct operation *all_operations(int *count)
{
  *count = sizeof(operations) / sizeof(operations[0]);
  return operations;
}

const char *operation_name(const struct operation *operation)
{
  static char name[64];
  snprintf(name, sizeof(name), "%s %s %d", tt_collective_name(operation->collective),
           tt_algorithm_name(operation->algorithm), operation->variant);
  return name;
}

bool has_root(const struct operation *operation)
{
  return operation->collective == TT_FUNC_BROADCAST || operation->collective == TT_FUNC_REDUCE ||
         operation->collective == TT_FUNC_SCATTER || operation->collective == TT_FUNC_GATHER;
}

struct program_set emit_set(const struct operation *operation, int n, int root, const int32_t *ring)
{
  struct program_set set = {.n = n, .programs = calloc((size_t)n, sizeof(*set.programs))};
  struct tt_emit_request request = {.collective = operation->collective,
                                    .algorithm = operation->algorithm,
                                    .nranks = n,
                                    .root = root,
                                    .ring = ring,
                                    .tree_index = operation->algorithm == TT_ALGO_TREE ? operation->variant : 0,
                                    .most_pieces = operation->algorithm == TT_ALGO_PAT ? operation->variant : 0};
  ck_assert_ptr_nonnull(set.programs);
  for (request.rank = 0; request.rank < n; request.rank++)
    ck_assert_int_eq(tt_program_emit(&request, &set.programs[request.rank]), ncclSuccess);
  return set;
}

struct program_set emit_pair(int n, int from, int to)
{
  struct program_set set = {.n = n, .programs = calloc((size_t)n, sizeof(*set.programs))};
  struct tt_emit_request request = {
      .collective = TT_FUNC_SEND, .algorithm = TT_ALGO_POINT_TO_POINT, .nranks = n, .rank = from, .peer = to};
  ck_assert_ptr_nonnull(set.programs);
  ck_assert_int_eq(tt_program_emit(&request, &set.programs[from]), ncclSuccess);
  if (from == to) return set;
  request.collective = TT_FUNC_RECV;
  request.rank = to;
  request.peer = from;
  ck_assert_int_eq(tt_program_emit(&request, &set.programs[to]), ncclSuccess);
  return set;
}

void free_set(struct program_set *set)
{
  for (int rank = 0; rank < set->n; rank++) tt_program_free(set->programs[rank]);
  free(set->programs);
  set->programs = NULL;
}

bool is_proved(const struct program_set *set, const struct way *way, char *why, size_t why_size)
{
  struct tt_validate_step step = {
      .programs = (const struct tt_program *const *)set->programs, .loops = way->loops, .in_place = way->in_place};
  struct tt_validate_options options = {.slots = way->slots, .seed = way->seed, .same_everywhere = true};
  return tt_program_validate(set->n, &step, 1, &options, why, why_size) == ncclSuccess;
}

void must_prove(const struct operation *operation, const struct program_set *set, const struct way *way)
{
  char why[256];
  if (is_proved(set, way, why, sizeof(why))) return;
  ck_abort_msg("%s, %d ranks, %u loops, %u slots, %s, seed %llu: %s", operation_name(operation), set->n, way->loops,
               way->slots, way->in_place ? "in place" : "out of place", (unsigned long long)way->seed, why);
}

uint32_t least_slots(const struct operation *operation, int n)
{
  if (n == 1) return 1;
  if (operation->algorithm == TT_ALGO_TWO_SHOT) return 2;
  if (operation->algorithm != TT_ALGO_RING || has_root(operation)) return 1;
  return operation->collective == TT_FUNC_ALL_REDUCE || n > 2 ? 2 : 1;
}

uint64_t next_random(uint64_t *state)
{
  *state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
  return *state >> 33;
}

int32_t *shuffled_ring(int n, uint64_t seed)
{
  int32_t *ring = calloc((size_t)n, sizeof(*ring));
  ck_assert_ptr_nonnull(ring);
  for (int i = 0; i < n; i++) {
    int other = (int)(next_random(&seed) % (uint64_t)(i + 1));
    ring[i] = ring[other];
    ring[other] = i;
  }
  return ring;
}

TCase *add_case(Suite *suite, const char *name)
{
  TCase *tests = tcase_create(name);
  tcase_set_timeout(tests, 0);
  suite_add_tcase(suite, tests);
  return tests;
}
