/* Programs as text. The expectations are derived by hand from what each algorithm is, so they test emitters too. */
#include <stdlib.h>
#include <string.h>
#include "program/dump.h"
#include "program_set.h"

static void must_print(const struct tt_program *program, const char *expected)
{
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  ck_assert_ptr_nonnull(out);
  tt_program_print(program, out);
  ck_assert_int_eq(fclose(out), 0);
  ck_assert_str_eq(text, expected);
  free(text);
}

static void must_print_rank(struct operation operation, int n, int root, const int32_t *ring, int rank,
                            const char *expected)
{
  struct program_set set = emit_set(&operation, n, root, ring);
  must_print(set.programs[rank], expected);
  free_set(&set);
}

START_TEST(ring_all_reduce)
{
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0}, 4, 0, NULL, 2,
                  "AllReduce RING: rank 2 of 4, parts 4, input 1, output 1\n"
                  "strand 0\n"
                  "  0       input[1] -> send 3\n"
                  "  1  x2   recv 1 + input[0-i mod 4] -> send 3\n"
                  "  2       recv 1 + input[2] -> output[2], send 3  final\n"
                  "  3  x2   recv 1 -> output[1-i mod 4], send 3\n"
                  "  4       output[3] <- recv 1\n");
}
END_TEST

/* Ring 0 3 1 2: rank 1 receives from 3 and sends to 2; blocks arrive in the order 3, 0, 2. */
START_TEST(ring_all_gather)
{
  const int32_t ring[] = {0, 3, 1, 2};
  must_print_rank((struct operation){TT_FUNC_ALL_GATHER, TT_ALGO_RING, 0}, 4, 0, ring, 1,
                  "AllGather RING: rank 1 of 4, parts 1, input 1, output 4\n"
                  "strand 0\n"
                  "  0       input[0] -> output[1], send 2\n"
                  "  1  x2   recv 3 -> output[3-3i mod 4], send 2\n"
                  "  2       output[2] <- recv 3\n");
}
END_TEST

START_TEST(ring_reduce_scatter)
{
  must_print_rank((struct operation){TT_FUNC_REDUCE_SCATTER, TT_ALGO_RING, 0}, 3, 0, NULL, 0,
                  "ReduceScatter RING: rank 0 of 3, parts 1, input 3, output 1\n"
                  "strand 0\n"
                  "  0       input[2] -> send 1\n"
                  "  1       recv 2 + input[1] -> send 1\n"
                  "  2       recv 2 + input[0] -> output[0]  final\n");
}
END_TEST

START_TEST(ring_chains)
{
  must_print_rank((struct operation){TT_FUNC_BROADCAST, TT_ALGO_RING, 0}, 3, 1, NULL, 2,
                  "Broadcast RING: rank 2 of 3, root 1, parts 1, input 0, output 1\n"
                  "strand 0\n"
                  "  0       recv 1 -> output[0], send 0\n");
  must_print_rank((struct operation){TT_FUNC_BROADCAST, TT_ALGO_RING, 0}, 3, 1, NULL, 0,
                  "Broadcast RING: rank 0 of 3, root 1, parts 1, input 0, output 1\n"
                  "strand 0\n"
                  "  0       output[0] <- recv 2\n");
  must_print_rank((struct operation){TT_FUNC_REDUCE, TT_ALGO_RING, 0}, 3, 1, NULL, 1,
                  "Reduce RING: rank 1 of 3, root 1, parts 1, input 1, output 1\n"
                  "strand 0\n"
                  "  0       recv 0 + input[0] -> output[0]  final\n");
  must_print_rank((struct operation){TT_FUNC_REDUCE, TT_ALGO_RING, 0}, 3, 1, NULL, 2,
                  "Reduce RING: rank 2 of 3, root 1, parts 1, input 1, output 0\n"
                  "strand 0\n"
                  "  0       input[0] -> send 0\n");
}
END_TEST

START_TEST(tree_all_reduce)
{
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 0}, 8, 0, NULL, 0,
                  "AllReduce TREE: rank 0 of 8, parts 1, input 1, output 1\n"
                  "strand 0\n"
                  "  0       input[0] + recv 4 -> output[0]  final\n"
                  "  1       signal 0\n"
                  "strand 1\n"
                  "  2       wait 0\n"
                  "  3       output[0] -> send 4\n");
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 0}, 8, 0, NULL, 6,
                  "AllReduce TREE: rank 6 of 8, parts 1, input 1, output 1\n"
                  "strand 0\n"
                  "  0       input[0] + recv 5 + recv 7 -> send 4\n"
                  "strand 1\n"
                  "  1       recv 4 -> output[0], send 5, send 7\n");
}
END_TEST

START_TEST(direct_all_reduce)
{
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0}, 3, 0, NULL, 1,
                  "AllReduce ONE_SHOT: rank 1 of 3, parts 1, input 1, output 1\n"
                  "strand 0\n"
                  "  0       input[0] -> send 2, send 0\n"
                  "  1       recv 0 + input[0] + recv 2 -> output[0]  final\n");
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_TWO_SHOT, 0}, 3, 0, NULL, 1,
                  "AllReduce TWO_SHOT: rank 1 of 3, parts 3, input 1, output 1\n"
                  "strand 0\n"
                  "  0       send 2 <- input[2], send 0 <- input[0]\n"
                  "  1       recv 0 + input[1] + recv 2 -> output[1], send 2, send 0  final\n"
                  "  2       output[2] <- recv 2, output[0] <- recv 0\n");
}
END_TEST

START_TEST(point_to_point)
{
  struct program_set pair = emit_pair(5, 3, 1), self = emit_pair(5, 2, 2);
  must_print(pair.programs[3], "Send P2P: rank 3 of 5, parts 1, input 1, output 0\n"
                               "strand 0\n"
                               "  0       input[0] -> send 1\n");
  must_print(pair.programs[1], "Recv P2P: rank 1 of 5, parts 1, input 0, output 1\n"
                               "strand 0\n"
                               "  0       output[0] <- recv 3\n");
  must_print(self.programs[2], "Send P2P: rank 2 of 5, parts 1, input 1, output 1\n"
                               "strand 0\n"
                               "  0       input[0] -> output[0]\n");
  free_set(&pair);
  free_set(&self);
}
END_TEST

START_TEST(direct)
{
  must_print_rank((struct operation){TT_FUNC_ALL_GATHER, TT_ALGO_DIRECT, 0}, 3, 0, NULL, 1,
                  "AllGather DIRECT: rank 1 of 3, parts 1, input 1, output 3\n"
                  "strand 0\n"
                  "  0       input[0] -> output[1], send 2, send 0\n"
                  "strand 1\n"
                  "  1       output[2] <- recv 2, output[0] <- recv 0\n");
  must_print_rank((struct operation){TT_FUNC_REDUCE_SCATTER, TT_ALGO_DIRECT, 0}, 3, 0, NULL, 1,
                  "ReduceScatter DIRECT: rank 1 of 3, parts 1, input 3, output 1\n"
                  "strand 0\n"
                  "  0       send 2 <- input[2], send 0 <- input[0]\n"
                  "strand 1\n"
                  "  1       recv 0 + input[1] + recv 2 -> output[0]  final\n");
  must_print_rank((struct operation){TT_FUNC_ALL_TO_ALL, TT_ALGO_DIRECT, 0}, 3, 0, NULL, 0,
                  "AlltoAll DIRECT: rank 0 of 3, parts 1, input 3, output 3\n"
                  "strand 0\n"
                  "  0       input[0] -> output[0]; send 1 <- input[1], send 2 <- input[2]\n"
                  "  1       signal 0\n"
                  "strand 1\n"
                  "  2       wait 0\n"
                  "  3       output[1] <- recv 1, output[2] <- recv 2\n");
}
END_TEST

START_TEST(direct_with_root)
{
  must_print_rank((struct operation){TT_FUNC_REDUCE, TT_ALGO_DIRECT, 0}, 3, 1, NULL, 1,
                  "Reduce DIRECT: rank 1 of 3, root 1, parts 1, input 1, output 1\n"
                  "strand 0\n"
                  "  0       recv 0 + input[0] + recv 2 -> output[0]  final\n");
  must_print_rank((struct operation){TT_FUNC_BROADCAST, TT_ALGO_DIRECT, 0}, 3, 1, NULL, 1,
                  "Broadcast DIRECT: rank 1 of 3, root 1, parts 1, input 1, output 1\n"
                  "strand 0\n"
                  "  0       input[0] -> output[0], send 2, send 0\n");
  must_print_rank((struct operation){TT_FUNC_SCATTER, TT_ALGO_DIRECT, 0}, 3, 1, NULL, 1,
                  "Scatter DIRECT: rank 1 of 3, root 1, parts 1, input 3, output 1\n"
                  "strand 0\n"
                  "  0       input[1] -> output[0]; send 2 <- input[2], send 0 <- input[0]\n");
  must_print_rank((struct operation){TT_FUNC_SCATTER, TT_ALGO_DIRECT, 0}, 3, 1, NULL, 0,
                  "Scatter DIRECT: rank 0 of 3, root 1, parts 1, input 0, output 1\n"
                  "strand 0\n"
                  "  0       output[0] <- recv 1\n");
  must_print_rank((struct operation){TT_FUNC_GATHER, TT_ALGO_DIRECT, 0}, 3, 1, NULL, 1,
                  "Gather DIRECT: rank 1 of 3, root 1, parts 1, input 1, output 3\n"
                  "strand 0\n"
                  "  0       input[0] -> output[1]; output[2] <- recv 2, output[0] <- recv 0\n");
  must_print_rank((struct operation){TT_FUNC_GATHER, TT_ALGO_DIRECT, 0}, 3, 1, NULL, 2,
                  "Gather DIRECT: rank 2 of 3, root 1, parts 1, input 1, output 0\n"
                  "strand 0\n"
                  "  0       send 1 <- input[0]\n");
}
END_TEST

/* Seven ranks: the last step moves only the three blocks that are still missing. Messages of two blocks at most. */
START_TEST(pat)
{
  must_print_rank((struct operation){TT_FUNC_ALL_GATHER, TT_ALGO_PAT, 0}, 7, 0, NULL, 5,
                  "AllGather PAT: rank 5 of 7, parts 1, input 1, output 7\n"
                  "strand 0\n"
                  "  0       input[0] -> output[5], send 4\n"
                  "  1       wait 0\n"
                  "  2       send 3 <- output[5..6 mod 7]\n"
                  "  3       wait 0\n"
                  "  4       send 1 <- output[5..0 mod 7]\n"
                  "strand 1\n"
                  "  5       output[6] <- recv 6\n"
                  "  6       signal 0\n"
                  "  7       output[0..1 mod 7] <- recv 0\n"
                  "  8       signal 0\n"
                  "  9       output[2..4 mod 7] <- recv 2\n");
  must_print_rank((struct operation){TT_FUNC_REDUCE_SCATTER, TT_ALGO_PAT, 2}, 7, 0, NULL, 5,
                  "ReduceScatter PAT: rank 5 of 7, parts 1, input 7, output 1\n"
                  "strand 0\n"
                  "  0       send 2 <- input[2..3 mod 7]\n"
                  "  1       send 2 <- input[4]\n"
                  "  2       wait 0\n"
                  "  3       send 0 <- scratch0[2]\n"
                  "  4       send 0 <- input[1]\n"
                  "  5       wait 0\n"
                  "  6       send 6 <- scratch0[1]\n"
                  "  7       signal 1\n"
                  "strand 1\n"
                  "  8       input[5..6 mod 7] + recv 1 -> scratch0[0..1 mod 3]\n"
                  "  9       input[0] + recv 1 -> scratch0[2]\n"
                  "  10      signal 0\n"
                  "  11      scratch0[0] + recv 3 -> scratch0[0]\n"
                  "  12      scratch0[1] + recv 3 -> scratch0[1]\n"
                  "  13      signal 0\n"
                  "  14      scratch0[0] + recv 4 -> output[0]  final\n"
                  "  15      wait 1\n");
  must_print_rank((struct operation){TT_FUNC_ALL_GATHER, TT_ALGO_PAT, 1}, 4, 0, NULL, 0,
                  "AllGather PAT: rank 0 of 4, parts 1, input 1, output 4\n"
                  "strand 0\n"
                  "  0       input[0] -> output[0], send 3\n"
                  "  1       wait 0\n"
                  "  2  x2   send 2 <- output[0+i mod 4]\n"
                  "strand 1\n"
                  "  3       output[1] <- recv 1\n"
                  "  4       signal 0\n"
                  "  5  x2   output[2+i mod 4] <- recv 2\n");
}
END_TEST

/* What no emitter uses yet: a reduction with moves beside it, lists with another step, repeated lists. */
/* Ranks 0 and 1 on one node, 2 and 3 on another: networks 0 and 1 join 0 with 2 and 1 with 3. */
START_TEST(networks)
{
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_OF_TWO}, 4, 0, NULL, 0,
                  "AllReduce COLLNET_CHAIN: rank 0 of 4, parts 1, input 1, output 1\n"
                  "strand 0\n"
                  "  0       input[0] + recv 1 -> send network 0\n"
                  "strand 1\n"
                  "  1       recv network 0 -> output[0], send 1  final\n");
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_OF_TWO + NODE_SHAPES}, 4, 0, NULL,
                  2,
                  "AllReduce COLLNET_CHAIN: rank 2 of 4, parts 1, input 1, output 1\n"
                  "strand 0\n"
                  "  0       input[0] -> send 3\n"
                  "strand 1\n"
                  "  1       recv 3 -> output[0]\n");
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_DIRECT, NODES_OF_TWO}, 4, 0, NULL, 1,
                  "AllReduce COLLNET_DIRECT: rank 1 of 4, parts 8, input 1, output 1\n"
                  "strand 0\n"
                  "  0  x4   send 0 <- input[0+2i mod 8]\n"
                  "  1       signal 0\n"
                  "  2  x4   recv network 1 -> output[1+2i mod 8], send 0  final\n"
                  "strand 1\n"
                  "  3  x4   recv 0 + input[1+2i mod 8] -> send network 1\n"
                  "  4       wait 0\n"
                  "  5  x4   output[0+2i mod 8] <- recv 0\n");
  /* The third rank of a node, where the smallest has two. */
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_DIRECT, NODES_OF_FOUR}, 6, 0, NULL, 2,
                  "AllReduce COLLNET_DIRECT: rank 2 of 6, parts 8, input 1, output 1\n"
                  "strand 0\n"
                  "  0  x4   send 0 <- input[0+2i mod 8], send 1 <- input[1+2i mod 8]\n"
                  "  1       signal 0\n"
                  "strand 1\n"
                  "  2       wait 0\n"
                  "  3  x4   output[0+2i mod 8] <- recv 0, output[1+2i mod 8] <- recv 1\n");
}
END_TEST

/* What ranks share, and messages without data. */
START_TEST(shared_memory)
{
  must_print_rank((struct operation){TT_FUNC_ALL_GATHER, TT_ALGO_NVLS, 0}, 2, 0, NULL, 1,
                  "AllGather NVLS: rank 1 of 2, parts 2, input 1, output 2\n"
                  "shared 2 by 0 1\n"
                  "strand 0\n"
                  "  0       signal 0\n"
                  "  1       wait 1\n"
                  "  2       shared[0] -> output[0]\n"
                  "strand 1\n"
                  "  3       signal 2\n"
                  "  4       wait 3\n"
                  "  5       shared[1] -> output[1]\n"
                  "strand 2\n"
                  "  6       wait 0\n"
                  "  7       send 0 <- nothing\n"
                  "  8       nothing <- recv 0\n"
                  "  9       input[0] -> multicast[2], output[2]\n"
                  "  10      wait 2\n"
                  "  11      send 0 <- nothing\n"
                  "  12      nothing <- recv 0\n"
                  "  13      signal 1\n"
                  "  14      input[1] -> multicast[3], output[3]\n"
                  "  15      send 0 <- nothing\n"
                  "  16      nothing <- recv 0\n"
                  "  17      signal 3\n");
}
END_TEST

START_TEST(members_buffers)
{
  must_print_rank((struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_MAPPED, 0}, 2, 0, NULL, 1,
                  "AllReduce MAPPED: rank 1 of 2, parts 2, input 1, output 1\n"
                  "members 0 1\n"
                  "strand 0\n"
                  "  0       send 0 <- nothing\n"
                  "  1       nothing <- recv 0\n"
                  "  2       input of 0[1] + input of 1[1] -> output of 0[1], output of 1[1]  final\n"
                  "  3       send 0 <- nothing\n"
                  "  4       nothing <- recv 0\n");
  must_print_rank((struct operation){TT_FUNC_BROADCAST, TT_ALGO_MAPPED, 0}, 3, 1, NULL, 1,
                  "Broadcast MAPPED: rank 1 of 3, root 1, parts 2, input 1, output 1\n"
                  "members 0 1 2\n"
                  "strand 0\n"
                  "  0  x2   input[0+i mod 2] -> output[0+i mod 2]\n"
                  "  1       send 2 <- nothing, send 0 <- nothing\n"
                  "  2       nothing <- recv 2, nothing <- recv 0\n");
  must_print_rank((struct operation){TT_FUNC_SCATTER, TT_ALGO_MAPPED, 0}, 3, 1, NULL, 2,
                  "Scatter MAPPED: rank 2 of 3, root 1, parts 1, input 0, output 1\n"
                  "members 0 1 2\n"
                  "strand 0\n"
                  "  0       nothing <- recv 1\n"
                  "  1       input of 1[2] -> output[0]\n"
                  "  2       send 1 <- nothing\n");
}
END_TEST

START_TEST(everything_else)
{
  const int32_t peers[] = {1};
  const struct tt_operand operands[] = {{TT_SRC, TT_SCRATCH + 1, 0, 1, 2, 8, 1, 0},
                                        {TT_DST, TT_OUTPUT, 0, 0, 0, 1, 1, 0},
                                        {TT_SEND, TT_SCRATCH, 0, 3, 0, 8, 3, 2},
                                        {TT_RECV, TT_SCRATCH, 0, 2, -1, 8, 2, 1}};
  const struct tt_instruction instructions[] = {{TT_OP_DATA, 0, 0, 3, 0, 4}};
  const struct tt_strand strands[] = {{0, 1}};
  const struct tt_program program = {.size = sizeof(program),
                                     .nranks = 2,
                                     .collective = TT_FUNC_ALL_REDUCE,
                                     .algorithm = TT_ALGO_PAT,
                                     .parts = 8,
                                     .input_blocks = 1,
                                     .output_blocks = 1,
                                     .nscratch = 2,
                                     .scratch_blocks = 1,
                                     .npeers = 1,
                                     .nstrands = 1,
                                     .ninstructions = 1,
                                     .noperands = 4,
                                     .peers = peers,
                                     .strands = strands,
                                     .instructions = instructions,
                                     .operands = operands};
  must_print(&program, "AllReduce PAT: rank 0 of 2, parts 8, input 1, output 1\n"
                       "strand 0\n"
                       "  0  x3   scratch1[1+2i mod 8] -> output[0]; send 1 <- scratch0[3..7 step 2 mod 8], "
                       "scratch0[2-i..3-i mod 8] <- recv 1\n");
}
END_TEST

Suite *dump_suite(void)
{
  Suite *suite = suite_create("dump");
  TCase *tests = add_case(suite, "dump");
  tcase_add_test(tests, ring_all_reduce);
  tcase_add_test(tests, ring_all_gather);
  tcase_add_test(tests, ring_reduce_scatter);
  tcase_add_test(tests, ring_chains);
  tcase_add_test(tests, tree_all_reduce);
  tcase_add_test(tests, direct_all_reduce);
  tcase_add_test(tests, direct);
  tcase_add_test(tests, direct_with_root);
  tcase_add_test(tests, pat);
  tcase_add_test(tests, point_to_point);
  tcase_add_test(tests, networks);
  tcase_add_test(tests, shared_memory);
  tcase_add_test(tests, members_buffers);
  tcase_add_test(tests, everything_else);
  return suite;
}
