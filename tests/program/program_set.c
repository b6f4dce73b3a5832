/* See program_set.h. */
#include <stdio.h>
#include <stdlib.h>
#include "program_set.h"

static const struct operation operations[] = {
    {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0},
    {TT_FUNC_ALL_GATHER, TT_ALGO_RING, 0},
    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_RING, 0},
    {TT_FUNC_BROADCAST, TT_ALGO_RING, 0},
    {TT_FUNC_REDUCE, TT_ALGO_RING, 0},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 0},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 1},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_TWO_SHOT, 0},
    {TT_FUNC_ALL_GATHER, TT_ALGO_DIRECT, 0},
    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_DIRECT, 0},
    {TT_FUNC_BROADCAST, TT_ALGO_DIRECT, 0},
    {TT_FUNC_REDUCE, TT_ALGO_DIRECT, 0},
    {TT_FUNC_ALL_TO_ALL, TT_ALGO_DIRECT, 0},
    {TT_FUNC_ALL_TO_ALL, TT_ALGO_DIRECT, 1}, /* apart */
    {TT_FUNC_SCATTER, TT_ALGO_DIRECT, 0},
    {TT_FUNC_GATHER, TT_ALGO_DIRECT, 0},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_MAPPED, 0},
    {TT_FUNC_ALL_GATHER, TT_ALGO_MAPPED, 0},
    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_MAPPED, 0},
    {TT_FUNC_BROADCAST, TT_ALGO_MAPPED, 0},
    {TT_FUNC_REDUCE, TT_ALGO_MAPPED, 0},
    {TT_FUNC_ALL_TO_ALL, TT_ALGO_MAPPED, 0},
    {TT_FUNC_SCATTER, TT_ALGO_MAPPED, 0},
    {TT_FUNC_GATHER, TT_ALGO_MAPPED, 0},
    {TT_FUNC_ALL_GATHER, TT_ALGO_PAT, 0},
    {TT_FUNC_ALL_GATHER, TT_ALGO_PAT, 2},
    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_PAT, 0},
    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_PAT, 2},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS, 0},
    {TT_FUNC_ALL_GATHER, TT_ALGO_NVLS, 0},
    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_NVLS, 0},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS_TREE, 2},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS_TREE, 4 + NVLS_TREE_TWO},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS_TREE, 3 + NVLS_DEALT},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_DIRECT, NODES_ONE},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_DIRECT, NODES_OF_TWO},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_DIRECT, NODES_DEALT},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_DIRECT, NODES_OF_FOUR},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_DIRECT, NODES_APART},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_ONE},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_OF_TWO + NODE_SHAPES},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_DEALT + 3 * NODE_SHAPES},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_OF_FOUR + NODE_SHAPES},
    {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_APART},
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

bool shares_memory(const struct operation *operation)
{
  return operation->algorithm == TT_ALGO_NVLS || operation->algorithm == TT_ALGO_NVLS_TREE ||
         operation->algorithm == TT_ALGO_MAPPED;
}

bool is_dense(const struct operation *operation)
{
  return operation->algorithm == TT_ALGO_COLLNET_DIRECT && operation->variant == NODES_ONE;
}

bool has_nodes(const struct operation *operation)
{
  return operation->algorithm == TT_ALGO_COLLNET_DIRECT || operation->algorithm == TT_ALGO_COLLNET_CHAIN;
}

int32_t node_of(const struct operation *operation, int32_t rank)
{
  const int32_t nodes[NODE_SHAPES] = {0, rank / 2, rank % 3, rank / 4, rank};
  return has_nodes(operation) ? nodes[operation->variant % NODE_SHAPES] : 0;
}

static int32_t equal_node(int variant, int n, int32_t rank)
{
  int size = variant % NVLS_TREE_TWO;
  while (size > 1 && n % size) size--;
  if (size == 1) return 0;
  return variant & NVLS_DEALT ? rank % (n / size) : rank / size;
}

static bool is_apart(const struct operation *operation)
{
  return operation->collective == TT_FUNC_ALL_TO_ALL && operation->algorithm == TT_ALGO_DIRECT &&
         operation->variant == 1;
}

struct program_set emit_set(const struct operation *operation, int n, int root, const int32_t *ring)
{
  struct program_set set = {.n = n, .programs = calloc((size_t)n, sizeof(*set.programs))};
  struct tt_emit_request request = {.collective = operation->collective,
                                    .algorithm = operation->algorithm,
                                    .nranks = n,
                                    .root = root,
                                    .ring = ring,
                                    .apart = is_apart(operation),
                                    .most_pieces = operation->algorithm == TT_ALGO_PAT ? operation->variant : 0};
  int32_t *node = calloc((size_t)n, sizeof(*node));
  ck_assert(set.programs && node);
  for (int32_t rank = 0; rank < n; rank++) node[rank] = node_of(operation, rank);
  if (has_nodes(operation) && operation->variant % NODE_SHAPES != NODES_ONE) request.node = node;
  if (has_nodes(operation)) request.tree_index = operation->variant / NODE_SHAPES;
  if (operation->algorithm == TT_ALGO_TREE) request.tree_index = operation->variant;
  if (operation->algorithm == TT_ALGO_NVLS_TREE) {
    for (int32_t rank = 0; rank < n; rank++) node[rank] = equal_node(operation->variant, n, rank);
    request.node = node;
    request.tree_index = (operation->variant & NVLS_TREE_TWO) != 0;
  }
  for (request.rank = 0; request.rank < n; request.rank++)
    ck_assert_int_eq(tt_program_emit(&request, &set.programs[request.rank]), ncclSuccess);
  free(node);
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

bool in_place_is_possible(const struct operation *operation)
{
  return !is_apart(operation) && tt_program_in_place(operation->collective, operation->algorithm);
}

/* Programs that cannot be in place are proved out of place. */
static bool in_place_of(const struct program_set *set, const struct way *way)
{
  const struct tt_program *first = set->programs[0];
  for (int rank = 1; !first && rank < set->n; rank++) first = set->programs[rank];
  struct operation operation = {first->collective, first->algorithm, 0};
  bool exchange = operation.collective == TT_FUNC_ALL_TO_ALL && set->n > 1;
  if (exchange && first->nsemaphores == 0) operation.variant = 1;
  return way->in_place && in_place_is_possible(&operation);
}

bool is_proved(const struct program_set *set, const struct way *way, char *why, size_t why_size)
{
  struct tt_validate_step step = {.programs = (const struct tt_program *const *)set->programs,
                                  .loops = way->loops,
                                  .in_place = in_place_of(set, way)};
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

/* Ranks of the smallest node. */
static int smallest_node(const struct operation *operation, int n)
{
  int smallest = n;
  for (int rank = 0; rank < n; rank++) {
    int with = 0;
    for (int other = 0; other < n; other++) with += node_of(operation, other) == node_of(operation, rank);
    if (with < smallest) smallest = with;
  }
  return smallest;
}

uint32_t least_slots(const struct operation *operation, int n)
{
  if (n == 1) return 1;
  if (operation->algorithm == TT_ALGO_TWO_SHOT) return 2;
  if (operation->algorithm == TT_ALGO_COLLNET_DIRECT) return smallest_node(operation, n) > 1 ? 2 : 1;
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
