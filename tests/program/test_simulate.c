/* The simulator: times that can be worked out by hand, numbers of steps that are known, and what strands are for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "program/simulate.h"
#include "program_set.h"

static double simulate(const struct program_set *set, const struct tt_simulate_cost *cost, uint64_t loops, size_t chunk,
                       uint32_t slots, bool sequential)
{
  struct tt_simulation simulation;
  uint32_t parts = 1;
  for (int rank = 0; rank < set->n; rank++)
    if (set->programs[rank]) parts = set->programs[rank]->parts;
  struct tt_simulate_channel channel = {.programs = (const struct tt_program *const *)set->programs,
                                        .geometry = tt_simulate_even(parts, loops, chunk)};
  struct tt_simulate_input input = {.nranks = set->n,
                                    .channels = &channel,
                                    .nchannels = 1,
                                    .slots = slots,
                                    .element_bytes = 1,
                                    .cost = cost,
                                    .sequential = sequential};
  ck_assert_msg(tt_simulate(&input, &simulation) == ncclSuccess, "%s", tt_log_thread_error());
  double time = simulation.time;
  tt_simulation_free(&simulation);
  return time;
}

static double steps_of(const struct operation *operation, int n, int root, uint64_t loops)
{
  struct tt_simulate_cost steps = tt_simulate_steps();
  struct program_set set = emit_set(operation, n, root, NULL);
  double time = simulate(&set, &steps, loops, 64, 0, false);
  free_set(&set);
  return time;
}

static int log2_up(int n)
{
  int steps = 0;
  while (1 << steps < n) steps++;
  return steps;
}

/* Ranks on the longest way up. */
static int depth_of(int n, int tree_index)
{
  int deepest = 0;
  for (int rank = 0; rank < n; rank++) {
    int depth = 0;
    struct tt_tree tree;
    for (tt_tree_double(n, rank, tree_index, &tree); tree.up >= 0; tt_tree_double(n, tree.up, tree_index, &tree))
      depth++;
    if (depth > deepest) deepest = depth;
  }
  return deepest;
}

START_TEST(known_steps)
{
  for (int n = 1; n <= 32; n++) {
    int root = n / 3;
#define STEPS(collective, algorithm, variant, loops)                                                                   \
  steps_of(&(struct operation){TT_FUNC_##collective, TT_ALGO_##algorithm, variant}, n, root, loops)
    ck_assert_double_eq(STEPS(ALL_GATHER, RING, 0, 1), n - 1);
    ck_assert_double_eq(STEPS(REDUCE_SCATTER, RING, 0, 1), n - 1);
    ck_assert_double_eq(STEPS(ALL_REDUCE, RING, 0, 1), 2 * (n - 1));
    for (int loops = 1; loops <= 20 && n > 1; loops += 6) {
      ck_assert_double_eq(STEPS(BROADCAST, RING, 0, (uint64_t)loops), n - 1 + loops - 1);
      ck_assert_double_eq(STEPS(REDUCE, RING, 0, (uint64_t)loops), n - 1 + loops - 1);
    }
    ck_assert_double_eq(STEPS(ALL_REDUCE, TREE, 0, 1), 2 * depth_of(n, 0));
    ck_assert_double_eq(STEPS(ALL_REDUCE, TREE, 1, 1), 2 * depth_of(n, 1));
    ck_assert_double_eq(STEPS(ALL_REDUCE, ONE_SHOT, 0, 1), n > 1);
    ck_assert_double_eq(STEPS(ALL_REDUCE, TWO_SHOT, 0, 1), n > 1 ? 2 : 0);
    ck_assert_double_eq(STEPS(ALL_TO_ALL, DIRECT, 0, 1), n > 1);
    ck_assert_double_eq(STEPS(ALL_GATHER, DIRECT, 0, 1), n > 1);
    ck_assert_double_eq(STEPS(GATHER, DIRECT, 0, 1), n > 1);
#undef STEPS
  }
}
END_TEST

/* Of what PAT sends in a step some may be two messages, so these steps are latencies. Just above a power of two the
 * farthest step moves few blocks, and need not wait for the one before. */
START_TEST(pat_steps)
{
  struct tt_simulate_cost latency = {.near = {.latency = 1}};
  for (int n = 1; n <= 64; n++) {
    for (int scatters = 0; scatters < 2; scatters++) {
      struct operation pat = {scatters ? TT_FUNC_REDUCE_SCATTER : TT_FUNC_ALL_GATHER, TT_ALGO_PAT, 64};
      struct program_set set = emit_set(&pat, n, 0, NULL);
      double steps = simulate(&set, &latency, 1, 64, 0, false);
      ck_assert_double_le(steps, log2_up(n));
      ck_assert_double_ge(steps, (n & (n - 1)) ? log2_up(n) - 1 : log2_up(n));
      free_set(&set);
    }
  }
}
END_TEST

/* One message, then another: what each cost adds is visible in the sum. */
START_TEST(by_hand)
{
  struct tt_simulate_cost cost = {.near = {.latency = 10, .gap = 2, .byte = 0.5},
                                  .instruction = 3,
                                  .message = 1,
                                  .copy_byte = 0.25,
                                  .reduce_byte = 1000};
  struct program_set pair = emit_pair(3, 2, 0);
  /* The sender reads and writes 1000 bytes: 3 + 1 + 250 + 250 = 504. The link is busy for 2 + 500, and 10 later the
   * message is there. The receiver stores it in 3 + 1 + 250. */
  ck_assert_double_eq(simulate(&pair, &cost, 1, 1000, 1, false), 504 + 502 + 10 + 254);
  /* With one slot the second message waits for the first one's slot, and for word of that. */
  ck_assert_double_eq(simulate(&pair, &cost, 2, 1000, 1, false), 1270 + 10 + 1270);
  /* With two it leaves as soon as it can be written, at 1008, when the link has been free for 2. */
  ck_assert_double_eq(simulate(&pair, &cost, 2, 1000, 2, false), 1008 + 502 + 10 + 254);
  free_set(&pair);
  /* Two ranks add up: each reads its input twice, once alone and once with what came. */
  struct operation one_shot = {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0};
  struct program_set both = emit_set(&one_shot, 2, 0, NULL);
  cost.reduce_byte = 2;
  ck_assert_double_eq(simulate(&both, &cost, 1, 100, 8, false), (3 + 1 + 50) + (2 + 50) + 10 + (3 + 1 + 400 + 25));
  free_set(&both);
}
END_TEST

static double shared_time(const struct operation *operation, int n, const int32_t *node,
                          const struct tt_simulate_cost *cost)
{
  struct tt_simulation simulation;
  struct program_set set = emit_set(operation, n, 0, NULL);
  struct tt_simulate_channel channel = {.programs = (const struct tt_program *const *)set.programs,
                                        .geometry = tt_simulate_even(1, 1, 100)};
  struct tt_simulate_input input = {
      .nranks = n, .node = node, .channels = &channel, .nchannels = 1, .element_bytes = 1, .cost = cost};
  ck_assert_int_eq(tt_simulate(&input, &simulation), ncclSuccess);
  double time = simulation.time;
  tt_simulation_free(&simulation);
  free_set(&set);
  return time;
}

/* Five ranks send 100 bytes to each other; then to one of them. Then four on two nodes. */
START_TEST(shared_links)
{
  const struct operation all = {TT_FUNC_ALL_GATHER, TT_ALGO_DIRECT, 0}, to_root = {TT_FUNC_GATHER, TT_ALGO_DIRECT, 0};
  const int32_t node[] = {0, 0, 1, 1};
  struct tt_simulate_cost cost = {.near = {.byte = 1}};
  ck_assert_double_eq(shared_time(&all, 5, NULL, &cost), 100);
  ck_assert_double_eq(shared_time(&to_root, 5, NULL, &cost), 100);
  cost.near.sharing = TT_SHARE_RANK;
  ck_assert_double_eq(shared_time(&all, 5, NULL, &cost), 400);
  ck_assert_double_eq(shared_time(&to_root, 5, NULL, &cost), 400);
  cost = (struct tt_simulate_cost){.far = {.byte = 1, .sharing = TT_SHARE_RANK}};
  ck_assert_double_eq(shared_time(&to_root, 4, node, &cost), 200);
  /* Both ranks of a node first send to the same rank of the other, and so come to the last one late. */
  ck_assert_double_eq(shared_time(&all, 4, node, &cost), 300);
  cost.far.sharing = TT_SHARE_NODE;
  ck_assert_double_eq(shared_time(&all, 4, node, &cost), 400);
}
END_TEST

/* Steps of the two trees of `n` ranks, on a channel each. `merged`: both halves of a rank are one list. */
static double double_tree(int n, uint64_t loops, bool merged, bool sequential)
{
  struct tt_simulation simulation;
  struct tt_simulate_cost steps = tt_simulate_steps();
  struct program_set sets[2];
  struct tt_simulate_channel channels[2];
  struct tt_strand strands[2][64];
  ck_assert_int_le(n, 64);
  for (int tree = 0; tree < 2; tree++) {
    struct operation operation = {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, tree};
    sets[tree] = emit_set(&operation, n, 0, NULL);
    channels[tree] = (struct tt_simulate_channel){.programs = (const struct tt_program *const *)sets[tree].programs,
                                                  .geometry = tt_simulate_even(1, loops, 64)};
    for (int rank = 0; merged && rank < n; rank++) {
      struct tt_program *program = sets[tree].programs[rank];
      strands[tree][rank] = (struct tt_strand){0, program->ninstructions};
      program->strands = &strands[tree][rank];
      program->nstrands = 1;
    }
  }
  struct tt_simulate_input input = {
      .nranks = n, .channels = channels, .nchannels = 2, .element_bytes = 1, .cost = &steps, .sequential = sequential};
  ck_assert_int_eq(tt_simulate(&input, &simulation), ncclSuccess);
  double time = simulation.time;
  tt_simulation_free(&simulation);
  for (int tree = 0; tree < 2; tree++) free_set(&sets[tree]);
  return time;
}

START_TEST(tree_halves_overlap)
{
  for (int n = 4; n <= 64; n *= 2) {
    double overlapped = double_tree(n, 64, false, false), sequential = double_tree(n, 64, false, true);
    double merged = double_tree(n, 64, true, false);
    double there_and_back = 2 * depth_of(n, 0);
    printf("double tree, %2d ranks, 64 loops: %g steps; one after the other: %g; one list: %g\n", n, overlapped,
           sequential, merged);
    /* Loops follow each other step by step, on the way up and on the way down at once. */
    ck_assert_double_eq(overlapped, there_and_back + 64 - 1);
    /* Without strands nothing of a loop begins before the one before has come back. */
    ck_assert_double_eq(sequential, 64 * there_and_back);
    ck_assert_double_eq(merged, 64 * there_and_back);
    ck_assert_double_gt(sequential / overlapped, 3);
  }
}
END_TEST

START_TEST(no_deadlock)
{
  int count;
  const struct operation *operation = &all_operations(&count)[_i];
  struct tt_simulate_cost steps = tt_simulate_steps();
  for (int n = 1; n <= 32; n++) {
    struct program_set set = emit_set(operation, n, n - 1, NULL);
    for (uint64_t loops = 1; loops <= 12; loops += 11) {
      double strands = simulate(&set, &steps, loops, 16, 0, false);
      double sequential = simulate(&set, &steps, loops, 16, 0, true);
      ck_assert_msg(strands <= sequential, "%s, %d ranks, %d loops: %g steps with strands, %g without",
                    operation_name(operation), n, (int)loops, strands, sequential);
      simulate(&set, &steps, loops, 16, least_slots(operation, n), false);
    }
    free_set(&set);
  }
}
END_TEST

START_TEST(deadlock_is_named)
{
  struct operation ring = {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0};
  struct program_set set = emit_set(&ring, 4, 0, NULL);
  struct tt_simulate_cost steps = tt_simulate_steps();
  struct tt_simulation simulation;
  struct tt_simulate_channel channel = {.programs = (const struct tt_program *const *)set.programs,
                                        .geometry = tt_simulate_even(4, 1, 1)};
  struct tt_simulate_input input = {
      .nranks = 4, .channels = &channel, .nchannels = 1, .slots = 1, .element_bytes = 1, .cost = &steps};
  ck_assert_int_eq(tt_simulate(&input, &simulation), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "rank 0, strand 0, instruction 1, repetition 0 of loop 0 waits "
                                                      "for room in the FIFO to rank 1 forever"));
  ck_assert_ptr_null(simulation.ranks);
  free_set(&set);
}
END_TEST

START_TEST(monotone)
{
  int count;
  const struct operation *operation = &all_operations(&count)[_i];
  for (int n = 2; n <= 9; n += 3) {
    struct program_set set = emit_set(operation, n, 0, NULL);
    for (int sequential = 0; sequential < 2; sequential++) {
      const struct tt_simulate_link link = {.latency = 100, .byte = 1}, slower = {.latency = 150, .byte = 1};
      struct tt_simulate_cost cost = {
          .near = link, .network = link, .multicast = link, .instruction = 5, .reduce_byte = 0.5};
      double first = simulate(&set, &cost, 3, 64, 0, sequential);
      double bytes = simulate(&set, &cost, 3, 96, 0, sequential);
      cost.near = cost.network = cost.multicast = slower;
      double latency = simulate(&set, &cost, 3, 64, 0, sequential);
      ck_assert_double_gt(latency, first);
      ck_assert_double_gt(bytes, first);
    }
    free_set(&set);
  }
}
END_TEST

/* A program of `ninstructions` strands of one instruction each, for one rank of `nranks`. */
static struct tt_program by_strands(int32_t nranks, int32_t rank, const int32_t *peer, struct tt_strand *strands,
                                    const struct tt_instruction *instructions, uint32_t ninstructions,
                                    const struct tt_operand *operands)
{
  for (uint32_t i = 0; i < ninstructions; i++) strands[i] = (struct tt_strand){i, 1};
  return (struct tt_program){.size = sizeof(struct tt_program),
                             .collective = TT_FUNC_ALL_REDUCE,
                             .nranks = nranks,
                             .rank = rank,
                             .parts = 1,
                             .input_blocks = 1,
                             .output_blocks = 1,
                             .npeers = peer ? 1 : 0,
                             .nstrands = ninstructions,
                             .ninstructions = ninstructions,
                             .peers = peer,
                             .strands = strands,
                             .instructions = instructions,
                             .operands = operands};
}

static double simulate_programs(const struct tt_program *programs, int n, const struct tt_simulate_cost *cost,
                                uint64_t loops, uint32_t slots)
{
  const struct tt_program *pointers[4];
  for (int i = 0; i < n; i++) pointers[i] = &programs[i];
  struct program_set set = {.n = n, .programs = (struct tt_program **)pointers};
  return simulate(&set, cost, loops, 100, slots, false);
}

/* Each rank sends to its network in one strand and stores what comes back in another. */
START_TEST(reducing_network)
{
  const struct tt_operand operands[] = {{TT_SEND, TT_INPUT, 0, 0, 0, 1, 1, 0}, {TT_RECV, TT_OUTPUT, 0, 0, 0, 1, 1, 0}};
  const struct tt_instruction instructions[] = {{TT_OP_DATA, 0, 0, 1, 0, 1}, {TT_OP_DATA, 0, 0, 1, 1, 1}};
  const int32_t first = TT_PEER_NETWORK, second = TT_PEER_NETWORK - 1;
  struct tt_strand strands[2];
  struct tt_program programs[4];
  struct tt_simulate_cost cost = {.network = {.latency = 10, .gap = 2, .byte = 0.5}, .instruction = 1};
  for (int32_t rank = 0; rank < 4; rank++)
    programs[rank] = by_strands(4, rank, rank < 2 ? &first : &second, strands, instructions, 2, operands);
  /* An instruction, the way there and back, an instruction. */
  ck_assert_double_eq(simulate_programs(programs, 4, &cost, 1, 0), 1 + 52 + 10 + 1);
  /* The network's link is busy with three messages in a row. */
  ck_assert_double_eq(simulate_programs(programs, 4, &cost, 3, 0), 1 + 3 * 52 + 10 + 1);
  /* With one slot a message leaves when the result of the one before is there. */
  ck_assert_double_eq(simulate_programs(programs, 4, &cost, 3, 1), 3 * (1 + 52 + 10) + 1);
  /* A network waits for its own ranks only: two that send nothing are not missed by the other two, but for each other
   * they are. */
  programs[2].peers = programs[3].peers = NULL;
  programs[2].npeers = programs[3].npeers = programs[2].nstrands = programs[3].nstrands = 0;
  ck_assert_double_eq(simulate_programs(programs, 4, &cost, 1, 0), 64);
  programs[1].nstrands = 0;
  struct tt_simulation simulation;
  const struct tt_program *pointers[] = {&programs[0], &programs[1]};
  struct tt_simulate_channel channel = {.programs = pointers, .geometry = tt_simulate_even(1, 1, 100)};
  struct tt_simulate_input input = {.nranks = 2, .channels = &channel, .nchannels = 1, .cost = &cost};
  ck_assert_int_eq(tt_simulate(&input, &simulation), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "waits for a message from network 0 forever"));
}
END_TEST

/* A message without data, and operands in memory that members share. */
START_TEST(shared_memory)
{
  const struct tt_operand tell = {TT_SEND, TT_INPUT, 0, 0, 0, 1, 0, 0}, hear = {TT_RECV, TT_INPUT, 0, 0, 0, 1, 0, 0};
  const struct tt_operand both[] = {{TT_SRC, TT_MULTICAST, 0, 0, 0, 1, 1, 0}, {TT_DST, TT_MULTICAST, 0, 0, 0, 1, 1, 0}};
  const struct tt_operand own[] = {{TT_SRC, TT_SHARED, 0, 0, 0, 1, 1, 0}, {TT_DST, TT_OUTPUT, 0, 0, 0, 1, 1, 0}};
  const struct tt_instruction message = {TT_OP_DATA, 0, 0, 1, 0, 1}, reduction = {TT_OP_DATA, 0, 0, 1, 0, 2};
  const int32_t peers[] = {1, 0};
  struct tt_strand strands[1];
  struct tt_simulate_cost cost = {.near = {.latency = 7, .gap = 2, .byte = 1000},
                                  .multicast = {.latency = 20, .gap = 1, .byte = 0.1},
                                  .instruction = 3,
                                  .copy_byte = 0.5};
  struct tt_program programs[] = {by_strands(2, 0, &peers[0], strands, &message, 1, &tell),
                                  by_strands(2, 1, &peers[1], strands, &message, 1, &hear)};
  ck_assert_double_eq(simulate_programs(programs, 2, &cost, 1, 0), 3 + 2 + 7 + 3);
  programs[0] = by_strands(1, 0, NULL, strands, &reduction, 1, both);
  ck_assert_double_eq(simulate_programs(programs, 1, &cost, 2, 0), 2 * (3 + 50 + 50 + 20 + 2 * (1 + 10)));
  programs[0] = by_strands(1, 0, NULL, strands, &reduction, 1, own);
  ck_assert_double_eq(simulate_programs(programs, 1, &cost, 1, 0), 3 + 50 + 50);
}
END_TEST

START_TEST(large)
{
  const struct operation tree = {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 0}, chain = {TT_FUNC_BROADCAST, TT_ALGO_RING, 0},
                         gather = {TT_FUNC_ALL_GATHER, TT_ALGO_PAT, 512};
  ck_assert_double_eq(steps_of(&tree, 1024, 0, 1), 2 * depth_of(1024, 0));
  ck_assert_double_eq(steps_of(&chain, 1024, 17, 8), 1023 + 7);
  ck_assert_double_eq(steps_of(&gather, 1024, 0, 1), 10);
}
END_TEST

static Suite *simulate_suite(void)
{
  int count;
  all_operations(&count);
  Suite *suite = suite_create("simulate");
  TCase *tests = add_case(suite, "simulate");
  tcase_add_test(tests, known_steps);
  tcase_add_test(tests, pat_steps);
  tcase_add_test(tests, by_hand);
  tcase_add_test(tests, shared_links);
  tcase_add_test(tests, tree_halves_overlap);
  tcase_add_loop_test(tests, no_deadlock, 0, count);
  tcase_add_test(tests, deadlock_is_named);
  tcase_add_loop_test(tests, monotone, 0, count);
  tcase_add_test(tests, reducing_network);
  tcase_add_test(tests, shared_memory);
  tcase_add_test(tests, large);
  return suite;
}

int main(void)
{
  SRunner *runner = srunner_create(simulate_suite());
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
