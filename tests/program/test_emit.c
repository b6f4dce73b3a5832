/* Emitters: the double binary tree's shape, sizes of programs, names, and requests that cannot be met. */
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "program_set.h"

static void check_tree(int n, int rank, int index, int32_t up, int32_t down0, int32_t down1)
{
  struct tt_tree tree;
  tt_tree_double(n, rank, index, &tree);
  ck_assert_msg(tree.up == up && tree.down[0] == down0 && tree.down[1] == down1 && tree.down[2] == -1,
                "tree %d of %d ranks, rank %d: up %d down %d %d %d", index, n, rank, tree.up, tree.down[0],
                tree.down[1], tree.down[2]);
}

/* By hand from the rule: eight ranks, mirrored; five ranks, shifted. */
START_TEST(tree_of_eight)
{
  check_tree(8, 0, 0, -1, -1, 4);
  check_tree(8, 4, 0, 0, 2, 6);
  check_tree(8, 2, 0, 4, 1, 3);
  check_tree(8, 6, 0, 4, 5, 7);
  check_tree(8, 5, 0, 6, -1, -1);
  check_tree(8, 7, 1, -1, -1, 3);
  check_tree(8, 3, 1, 7, 5, 1);
  check_tree(8, 1, 1, 3, 2, 0);
  check_tree(8, 0, 1, 1, -1, -1);
}
END_TEST

START_TEST(tree_of_five)
{
  check_tree(5, 0, 0, -1, -1, 4);
  check_tree(5, 4, 0, 0, 2, -1);
  check_tree(5, 2, 0, 4, 1, 3);
  check_tree(5, 1, 1, -1, -1, 0);
  check_tree(5, 0, 1, 1, 3, -1);
  check_tree(5, 3, 1, 0, 2, 4);
  check_tree(5, 4, 1, 3, -1, -1);
}
END_TEST

static int depth_of(int n, int rank, int index)
{
  struct tt_tree tree;
  int depth = 0;
  for (tt_tree_double(n, rank, index, &tree); tree.up >= 0; tt_tree_double(n, tree.up, index, &tree)) {
    ck_assert_int_le(++depth, n);
  }
  return depth;
}

/* Each child knows its parent and the other way round; depth is logarithmic; no rank is a leaf of both trees. */
START_TEST(tree_is_a_tree)
{
  for (int n = 1; n <= 300; n++) {
    int log2 = 0;
    while (1 << log2 < n) log2++;
    for (int rank = 0; rank < n; rank++) {
      int children[2] = {0, 0};
      for (int index = 0; index < 2; index++) {
        struct tt_tree tree, other;
        tt_tree_double(n, rank, index, &tree);
        ck_assert_int_le(depth_of(n, rank, index), log2 + 1);
        for (int i = 0; i < 3; i++) {
          if (tree.down[i] < 0) continue;
          children[index]++;
          tt_tree_double(n, tree.down[i], index, &other);
          ck_assert_int_eq(other.up, rank);
        }
        if (tree.up < 0) continue;
        tt_tree_double(n, tree.up, index, &other);
        ck_assert(other.down[0] == rank || other.down[1] == rank || other.down[2] == rank);
      }
      if (n > 1) ck_assert(children[0] > 0 || children[1] > 0);
    }
  }
}
END_TEST

/* The plan keeps programs of many communicators, so those for many ranks must stay small. */
START_TEST(ring_has_constant_size)
{
  const struct operation rings[] = {{TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0},
                                    {TT_FUNC_ALL_GATHER, TT_ALGO_RING, 0},
                                    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_RING, 0}};
  const uint32_t instructions[] = {5, 3, 3};
  for (int i = 0; i < 3; i++) {
    struct program_set set = emit_set(&rings[i], 100, 0, NULL);
    for (int rank = 0; rank < set.n; rank++) {
      ck_assert_uint_eq(set.programs[rank]->ninstructions, instructions[i]);
      ck_assert_uint_eq(set.programs[rank]->npeers, 2);
    }
    free_set(&set);
  }
}
END_TEST

START_TEST(two_ranks_are_one_peer)
{
  const struct operation ring = {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0};
  struct program_set set = emit_set(&ring, 2, 0, NULL);
  ck_assert_uint_eq(set.programs[0]->npeers, 1);
  ck_assert_int_eq(set.programs[0]->peers[0], 1);
  ck_assert_uint_eq(set.programs[0]->ninstructions, 3);
  free_set(&set);
}
END_TEST

/* Off the root a buffer may be NULL, so the program must say that it is not used. */
START_TEST(no_buffer_off_the_root)
{
  const struct operation broadcast = {TT_FUNC_BROADCAST, TT_ALGO_RING, 0}, reduce = {TT_FUNC_REDUCE, TT_ALGO_RING, 0};
  struct program_set sets[] = {emit_set(&broadcast, 4, 2, NULL), emit_set(&reduce, 4, 2, NULL)};
  for (int rank = 0; rank < 4; rank++) {
    ck_assert_uint_eq(sets[0].programs[rank]->input_blocks, rank == 2);
    ck_assert_uint_eq(sets[0].programs[rank]->output_blocks, 1);
    ck_assert_uint_eq(sets[1].programs[rank]->input_blocks, 1);
    ck_assert_uint_eq(sets[1].programs[rank]->output_blocks, rank == 2);
  }
  free_set(&sets[0]);
  free_set(&sets[1]);
}
END_TEST

/* Peers get connected, so there must be none that is not used. */
START_TEST(all_peers_are_used)
{
  int count;
  const struct operation *operations = all_operations(&count);
  for (int i = 0; i < count; i++) {
    for (int n = 1; n <= 9; n++) {
      struct program_set set = emit_set(&operations[i], n, n / 2, NULL);
      for (int rank = 0; rank < n; rank++) {
        const struct tt_program *program = set.programs[rank];
        for (uint32_t peer = 0; peer < program->npeers; peer++) {
          bool used = false;
          for (uint32_t j = 0; j < program->noperands; j++) {
            const struct tt_operand *operand = &program->operands[j];
            used |= (operand->kind == TT_SEND || operand->kind == TT_RECV) && operand->peer == peer;
          }
          ck_assert_msg(used, "%s, rank %d of %d: peer %u", operation_name(&operations[i]), rank, n, peer);
        }
      }
      free_set(&set);
    }
  }
}
END_TEST

static ncclResult_t try_emit(struct tt_emit_request request)
{
  struct tt_program *program = (struct tt_program *)&request;
  ncclResult_t result = tt_program_emit(&request, &program);
  if (result != ncclSuccess) ck_assert_ptr_null(program);
  tt_program_free(program);
  return result;
}

START_TEST(wrong_requests)
{
  const int32_t short_ring[] = {0, 1, 1}, wild_ring[] = {0, 1, 3};
  const struct tt_tree loop = {.up = 1, .down = {-1, -1, -1}}, twice = {.up = -1, .down = {0, 0, -1}};
  const struct tt_tree far = {.up = 3, .down = {-1, -1, -1}}, lonely = {.up = -1, .down = {-1, -1, -1}};
  const struct tt_emit_request ring = {
      .collective = TT_FUNC_ALL_REDUCE, .algorithm = TT_ALGO_RING, .nranks = 3, .rank = 2};
  struct tt_emit_request request = ring;
  ck_assert_int_eq(try_emit(request), ncclSuccess);
  request.collective = TT_FUNC_BROADCAST;
  request.algorithm = TT_ALGO_COLLNET_CHAIN;
  ck_assert_int_eq(try_emit(request), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "COLLNET_CHAIN"));
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "Broadcast"));
  request = ring;
  request.rank = 3;
  ck_assert_int_eq(try_emit(request), ncclInvalidArgument);
  request = ring;
  request.nranks = 0;
  ck_assert_int_eq(try_emit(request), ncclInvalidArgument);
  request = ring;
  request.collective = TT_FUNC_REDUCE;
  request.root = -1;
  ck_assert_int_eq(try_emit(request), ncclInvalidArgument);
  request = ring;
  request.ring = short_ring;
  ck_assert_int_eq(try_emit(request), ncclInvalidArgument);
  request.ring = wild_ring;
  ck_assert_int_eq(try_emit(request), ncclInvalidArgument);
  const struct tt_tree *trees[] = {&loop, &twice, &far, &lonely};
  for (int i = 0; i < 4; i++) {
    request = ring;
    request.algorithm = TT_ALGO_TREE;
    request.rank = 1;
    request.tree = trees[i];
    ck_assert_int_eq(try_emit(request), ncclInvalidArgument);
  }
  request = ring;
  request.collective = TT_FUNC_SEND;
  request.algorithm = TT_ALGO_POINT_TO_POINT;
  request.peer = 3;
  ck_assert_int_eq(try_emit(request), ncclInvalidArgument);
}
END_TEST

static void check_members(int32_t network, int32_t count, const int32_t *expected)
{
  const int32_t node[] = {1, 0, 1, 1, 0};
  int32_t members[5], found;
  ck_assert_int_eq(tt_collnet_members(5, node, network, members, &found), ncclSuccess);
  ck_assert_int_eq(found, count);
  for (int32_t i = 0; i < count; i++) ck_assert_int_eq(members[i], expected[i]);
}

/* Ranks 1 and 4 are on node 0, ranks 0, 2 and 3 on node 1. */
START_TEST(members_of_networks)
{
  check_members(0, 2, (const int32_t[]){0, 1});
  check_members(1, 2, (const int32_t[]){2, 4});
  check_members(2, 1, (const int32_t[]){3}); /* not on all nodes: no network */
  check_members(3, 0, NULL);
}
END_TEST

START_TEST(wrong_nodes)
{
  const int32_t gap[] = {0, 2, 2}, negative[] = {0, -1, 0}, large[] = {0, 1, 3};
  const int32_t *nodes[] = {gap, negative, large};
  for (int i = 0; i < 3; i++) {
    struct tt_emit_request request = {.collective = TT_FUNC_ALL_REDUCE, .nranks = 3, .rank = 1, .node = nodes[i]};
    request.algorithm = TT_ALGO_COLLNET_CHAIN;
    ck_assert_int_eq(try_emit(request), ncclInvalidArgument);
    request.algorithm = TT_ALGO_COLLNET_DIRECT;
    ck_assert_int_eq(try_emit(request), ncclInvalidArgument);
  }
}
END_TEST

static void must_refuse(struct tt_emit_request request, ncclResult_t result, const char *reason)
{
  ck_assert_int_eq(try_emit(request), result);
  ck_assert_msg(strstr(tt_log_thread_error(), reason) != NULL, "expected \"%s\": %s", reason, tt_log_thread_error());
}

START_TEST(nodes_that_share_memory)
{
  const int32_t two[] = {0, 0, 1, 1}, uneven[] = {0, 0, 1, 0}, apart[] = {0, 1, 2, 3}, gap[] = {0, 0, 2, 2},
                wild[] = {0, 0, 4, 4}, one[] = {0, 0, 0, 0};
  struct tt_emit_request request = {
      .collective = TT_FUNC_ALL_REDUCE, .algorithm = TT_ALGO_NVLS, .nranks = 4, .rank = 1, .node = two};
  must_refuse(request, ncclInvalidUsage, "is for ranks of one node, and ranks 0 and ");
  request.node = one;
  ck_assert_int_eq(try_emit(request), ncclSuccess);
  request.algorithm = TT_ALGO_NVLS_TREE;
  ck_assert_int_eq(try_emit(request), ncclSuccess);
  request.node = two;
  ck_assert_int_eq(try_emit(request), ncclSuccess);
  request.node = uneven;
  must_refuse(request, ncclInvalidUsage, "node 0 has 3 and node 1 has 1");
  request.node = apart;
  must_refuse(request, ncclInvalidUsage, "needs two or more ranks on each node");
  request.node = gap;
  must_refuse(request, ncclInvalidArgument, "node 1 of 3 has no ranks");
  request.node = wild;
  must_refuse(request, ncclInvalidArgument, "rank 2 is on node 4");
}
END_TEST

/* Members hear of each other as often as has been thought to be needed: three times for two groups, and for a tree
 * eight times for four. */
START_TEST(exchanges)
{
  for (int collective = 0; collective < TT_NUM_FUNCS; collective++) {
    for (int algorithm = TT_ALGO_NVLS; algorithm <= TT_ALGO_NVLS_TREE; algorithm++) {
      if (!tt_program_supports(collective, algorithm)) continue;
      struct tt_emit_request request = {.collective = collective, .algorithm = algorithm, .nranks = 5, .rank = 2};
      struct tt_program *program;
      uint32_t told = 0, heard = 0;
      ck_assert_int_eq(tt_program_emit(&request, &program), ncclSuccess);
      for (uint32_t i = 0; i < program->noperands; i++) {
        told += program->operands[i].count == 0 && program->operands[i].kind == TT_SEND;
        heard += program->operands[i].count == 0 && program->operands[i].kind == TT_RECV;
      }
      ck_assert_uint_eq(told, (algorithm == TT_ALGO_NVLS ? 3 : 8) * 4);
      ck_assert_uint_eq(heard, told);
      ck_assert_uint_eq(program->nmembers, 5);
      tt_program_free(program);
    }
  }
}
END_TEST

START_TEST(names_and_support)
{
  ck_assert_str_eq(tt_collective_name(TT_FUNC_REDUCE_SCATTER), "ReduceScatter");
  ck_assert_str_eq(tt_algorithm_name(TT_ALGO_RING), "RING");
  ck_assert_str_eq(tt_protocol_name(TT_PROTO_LL128), "LL128");
  ck_assert_str_eq(tt_collective_name(TT_NUM_FUNCS), "Unknown");
  ck_assert_str_eq(tt_algorithm_name(-1), "Unknown");
  for (int i = 0; i < TT_NUM_FUNCS; i++) ck_assert_int_gt((int)strlen(tt_collective_name(i)), 0);
  for (int i = 0; i < TT_NUM_ALGORITHMS; i++) ck_assert_int_gt((int)strlen(tt_algorithm_name(i)), 0);
  ck_assert(tt_program_supports(TT_FUNC_BROADCAST, TT_ALGO_RING));
  ck_assert(!tt_program_supports(TT_FUNC_BROADCAST, TT_ALGO_TREE));
  ck_assert(!tt_program_supports(TT_FUNC_ALL_REDUCE, TT_NUM_ALGORITHMS));
  ck_assert(!tt_program_supports(-1, TT_ALGO_RING));
}
END_TEST

Suite *emit_suite(void)
{
  Suite *suite = suite_create("emit");
  TCase *tests = add_case(suite, "emit");
  tcase_add_test(tests, tree_of_eight);
  tcase_add_test(tests, tree_of_five);
  tcase_add_test(tests, tree_is_a_tree);
  tcase_add_test(tests, ring_has_constant_size);
  tcase_add_test(tests, two_ranks_are_one_peer);
  tcase_add_test(tests, no_buffer_off_the_root);
  tcase_add_test(tests, all_peers_are_used);
  tcase_add_test(tests, wrong_requests);
  tcase_add_test(tests, members_of_networks);
  tcase_add_test(tests, wrong_nodes);
  tcase_add_test(tests, nodes_that_share_memory);
  tcase_add_test(tests, exchanges);
  tcase_add_test(tests, names_and_support);
  return suite;
}
