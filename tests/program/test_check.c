/* tt_program_check: every static rule, each broken once. */
#include <string.h>
#include "mutant.h"
#include "program_set.h"

static struct mutant *new_ring(void)
{
  const struct operation ring = {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0};
  struct program_set set = emit_set(&ring, 4, 0, NULL);
  struct mutant *mutant = mutant_new(set.programs[1]);
  free_set(&set);
  return mutant;
}

static struct mutant *new_tree_root(void)
{
  const struct operation tree = {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 0};
  struct program_set set = emit_set(&tree, 4, 0, NULL);
  struct mutant *mutant = mutant_new(set.programs[0]);
  free_set(&set);
  return mutant;
}

/* A head: its peers are network 0 and rank 1. */
static struct mutant *new_chain(void)
{
  const struct operation chain = {TT_FUNC_ALL_REDUCE, TT_ALGO_COLLNET_CHAIN, NODES_OF_TWO};
  struct program_set set = emit_set(&chain, 4, 0, NULL);
  struct mutant *mutant = mutant_new(set.programs[0]);
  free_set(&set);
  return mutant;
}

/* Its peers are ranks 2 and 0; instructions 9 and 10 are messages without data to and from both. */
static struct mutant *new_nvls(void)
{
  const struct operation nvls = {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS, 0};
  struct program_set set = emit_set(&nvls, 3, 0, NULL);
  struct mutant *mutant = mutant_new(set.programs[1]);
  free_set(&set);
  return mutant;
}

/* The root of a reduce is rank 1; instruction 2 reads parts of all inputs and writes to the root's output. */
static struct mutant *new_mapped(void)
{
  const struct operation mapped = {TT_FUNC_REDUCE, TT_ALGO_MAPPED, 0};
  struct program_set set = emit_set(&mapped, 3, 1, NULL);
  struct mutant *mutant = mutant_new(set.programs[0]);
  free_set(&set);
  return mutant;
}

static struct tt_operand *first_of(struct mutant *mutant, uint32_t instruction)
{
  return &mutant->operands[mutant->instructions[instruction].first_operand];
}

static void must_reject(struct mutant *mutant, const char *reason)
{
  char why[256];
  ck_assert_int_eq(tt_program_check(&mutant->program, why, sizeof(why)), ncclInternalError);
  ck_assert_msg(strstr(why, reason) != NULL, "expected \"%s\": %s", reason, why);
  mutant_free(mutant);
}

#define REJECT(make, reason, change)                                                                                   \
  do {                                                                                                                 \
    struct mutant *m = make();                                                                                         \
    change;                                                                                                            \
    must_reject(m, reason);                                                                                            \
  } while (0)

START_TEST(good_programs)
{
  struct mutant *mutants[] = {new_ring(), new_tree_root(), new_chain(), new_mapped()};
  for (int i = 0; i < 4; i++) {
    char why[64];
    ck_assert_int_eq(tt_program_check(&mutants[i]->program, why, sizeof(why)), ncclSuccess);
    ck_assert_str_eq(why, "");
    mutant_free(mutants[i]);
  }
}
END_TEST

START_TEST(wrong_head)
{
  REJECT(new_ring, "another version", m->program.size = 8);
  REJECT(new_ring, "another version", m->program.version++);
  REJECT(new_ring, "version 0: written for another version than 1", m->program.version = 0);
  REJECT(new_ring, "algorithm 12", m->program.algorithm = TT_NUM_ALGORITHMS);
  REJECT(new_ring, "collective 11", m->program.collective = TT_NUM_FUNCS);
  REJECT(new_ring, "rank 4", m->program.rank = 4);
  REJECT(new_ring, "root -1", m->program.root = -1);
  REJECT(new_ring, "no parts", m->program.parts = 0);
  REJECT(new_ring, "too many", m->program.npeers = 9);
  REJECT(new_ring, "too many", m->program.nscratch = 300);
  REJECT(new_ring, "blocks", m->program.input_blocks = 2);
  REJECT(new_ring, "blocks", m->program.output_blocks = 0);
  REJECT(new_ring, "peer 1", m->peers[1] = m->peers[0]);
  REJECT(new_ring, "peer 0", m->peers[0] = 1);
  REJECT(new_ring, "peer 0", m->peers[0] = 4);
}
END_TEST

START_TEST(wrong_strands)
{
  REJECT(new_ring, "belong to no strand", m->strands[0].ninstructions--);
  REJECT(new_ring, "should come next", m->strands[0].ninstructions++);
  REJECT(new_ring, "should come next", m->strands[0].first_instruction = 1);
  REJECT(new_ring, "belong to no strand", m->program.nstrands = 0);
  REJECT(new_ring, "is used by strand 0 too", mutant_split_strand(m, 2));
  REJECT(new_tree_root, "semaphore 0 is used by strand 0 too", m->instructions[2].opcode = TT_OP_SIGNAL);
}
END_TEST

START_TEST(wrong_instructions)
{
  REJECT(new_ring, "opcode 3", m->instructions[0].opcode = 3);
  REJECT(new_ring, "flags", m->instructions[0].flags = 2);
  REJECT(new_ring, "zero times", m->instructions[1].repeat = 0);
  REJECT(new_ring, "operands", m->instructions[1].first_operand = m->program.noperands);
  REJECT(new_ring, "operands", m->instructions[1].first_operand = UINT32_MAX);
  REJECT(new_ring, "operands", m->instructions[1].noperands = UINT32_MAX);
  REJECT(new_ring, "operands", m->instructions[1].noperands = 0);
  REJECT(new_ring, "nothing is reduced", m->instructions[4].flags = TT_FLAG_FINAL);
  REJECT(new_tree_root, "semaphore 1 of 1", m->instructions[1].semaphore = 1);
  REJECT(new_tree_root, "no operands", m->instructions[1].noperands = 1);
  REJECT(new_tree_root, "no operands", m->instructions[1].flags = TT_FLAG_FINAL);
}
END_TEST

START_TEST(wrong_operands)
{
  REJECT(new_ring, "kind 4", m->operands[0].kind = 4);
  REJECT(new_ring, "peer index 2", m->operands[1].peer = 2);
  REJECT(new_ring, "peer index 1", m->operands[0].peer = 1);
  REJECT(new_ring, "modulo 0", m->operands[0].modulo = 0);
  REJECT(new_ring, "chunks up to 4", m->operands[0].modulo = 5);
  REJECT(new_ring, "chunks up to 3 of buffer 2", m->operands[0].buffer = TT_SCRATCH);
  REJECT(new_ring, "names the result", m->operands[0].buffer = TT_RESULT);
  REJECT(new_ring, "input would be written", m->operands[m->instructions[4].first_operand].buffer = TT_INPUT);
  REJECT(new_ring, "different parts", m->operands[0].start++);
  REJECT(new_ring, "repetition 1 reduces", m->operands[m->instructions[1].first_operand].stride = 1);
  REJECT(new_ring, "goes nowhere", mutant_drop_operand(m, 0, 1));
  REJECT(new_ring, "comes from nowhere", mutant_drop_operand(m, 0, 0));
  REJECT(new_ring, "used twice in one instruction", mutant_double_operand(m, 0, 1));
}
END_TEST

START_TEST(wrong_members)
{
  REJECT(new_mapped, "member index 3 of 3", first_of(m, 2)[1].peer = 3);
  REJECT(new_mapped, "member index 0 of 0", m->program.nmembers = 0);
  REJECT(new_mapped, "input would be written", first_of(m, 2)[3].buffer = TT_MEMBER_INPUT);
  REJECT(new_mapped, "of buffer 252, which has 0", first_of(m, 2)[3].peer = 2);
  REJECT(new_mapped, "of buffer 251, which has 2", first_of(m, 2)[0].modulo = 3);
  REJECT(new_mapped, "message names a member's buffer", first_of(m, 0)->buffer = TT_MEMBER_INPUT);
  REJECT(new_mapped, "not among its members", m->program.nmembers = 2; m->members[0] = 1; m->members[1] = 2);
}
END_TEST

START_TEST(wrong_sharing)
{
  REJECT(new_nvls, "1 blocks are shared by 0 members", m->program.nmembers = 0);
  REJECT(new_nvls, "of buffer 253, which has 0", m->program.shared_blocks = 0);
  REJECT(new_nvls, "shared by 4 members", m->program.nmembers = 4);
  REJECT(new_nvls, "member 1 is rank 0", m->members[1] = 0);
  REJECT(new_nvls, "member 2 is rank 3", m->members[2] = 3);
  REJECT(new_nvls, "member 0 is rank -1", m->members[0] = -1);
  REJECT(new_nvls, "not among its members", m->program.nmembers = 2; m->members[1] = 2);
  REJECT(new_nvls, "chunks up to 6 of buffer 253", first_of(m, 0)[1].modulo = 7);
  REJECT(new_nvls, "chunks up to 6 of buffer 254", first_of(m, 11)->modulo = 7);
  REJECT(new_nvls, "without data names buffer 1", first_of(m, 9)->buffer = TT_OUTPUT);
  REJECT(new_nvls, "without data names buffer 255", first_of(m, 10)->buffer = TT_RESULT);
  REJECT(new_nvls, "a list of 0", first_of(m, 0)->count = 0);
  REJECT(new_nvls, "to or from all copies", first_of(m, 9)->count = 1; first_of(m, 9)->buffer = TT_MULTICAST);
  REJECT(new_ring, "chunks up to 3 of buffer 253", m->operands[0].buffer = TT_SHARED);
  REJECT(new_ring, "too many", m->program.nscratch = TT_MEMBER_INPUT - TT_SCRATCH + 1);
}
END_TEST

START_TEST(wrong_lists)
{
  REJECT(new_ring, "a list of 0 out of 4", m->operands[0].count = 0);
  REJECT(new_ring, "a list of 5 out of 4", m->operands[0].count = 5);
  REJECT(new_ring, "a list of -1", m->operands[1].count = -1);
  REJECT(new_ring, "a list of 2 chunks with one of 1", m->operands[0].count = 2);
  REJECT(new_ring, "different parts", m->operands[0].count = m->operands[1].count = 2; m->operands[1].step = 1);
}
END_TEST

START_TEST(wrong_networks)
{
  REJECT(new_chain, "peer 0", m->peers[0] = TT_PEER_NETWORK - 4);
  REJECT(new_chain, "peer 1", m->peers[1] = TT_PEER_NETWORK);
  REJECT(new_chain, "the collective does not", m->program.collective = TT_FUNC_BROADCAST);
  REJECT(new_chain, "a list of 2 chunks in a message with a network", m->operands[2].count = 2);
}
END_TEST

Suite *check_suite(void)
{
  Suite *suite = suite_create("check");
  TCase *tests = add_case(suite, "check");
  tcase_add_test(tests, good_programs);
  tcase_add_test(tests, wrong_head);
  tcase_add_test(tests, wrong_strands);
  tcase_add_test(tests, wrong_instructions);
  tcase_add_test(tests, wrong_operands);
  tcase_add_test(tests, wrong_members);
  tcase_add_test(tests, wrong_sharing);
  tcase_add_test(tests, wrong_lists);
  tcase_add_test(tests, wrong_networks);
  return suite;
}
