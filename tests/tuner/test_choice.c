/* Which rule is applied, and what that does to the costs: in all five versions where they do not differ. */
#include "loader.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void *context;

static void begin(int version, const char *rules, size_t nranks, size_t nnodes)
{
  use_rules(rules);
  ck_assert_int_eq(start(version, nranks, nnodes, &context), ncclSuccess);
}

static void expect(int version, struct question question, int algorithm, int protocol, int nchannels)
{
  ck_assert_int_eq(ask(version, context, &question), ncclSuccess);
  ck_assert_msg(question.algorithm == algorithm && question.protocol == protocol,
                "v%d, %zu bytes: %d/%d wins, not %d/%d", version, question.bytes, question.algorithm, question.protocol,
                algorithm, protocol);
  ck_assert_int_eq(question.nchannels, nchannels);
}

static void expect_nothing(int version, struct question question)
{
  ck_assert_int_eq(ask(version, context, &question), ncclSuccess);
  ck_assert_msg(unchanged(version, &question), "v%d, %zu bytes: %d/%d, %d channels", version, question.bytes,
                question.algorithm, question.protocol, question.nchannels);
}

START_TEST(sizes_and_order)
{
  begin(_i,
        "allreduce,1000,2000,tree,ll,4,-1,-1\n"
        "allreduce,1500,3000,pat,ll128,5,-1,-1\n"
        "allreduce,3001,3001,ring,simple,-1,-1,-1\n"
        "allreduce,5000000000,-1,tree,simple,1,-1,-1\n",
        4, 1);
  expect_nothing(_i, all_reduce(0));
  expect_nothing(_i, all_reduce(999));
  expect(_i, all_reduce(1000), NCCL_ALGO_TREE, NCCL_PROTO_LL, 4);
  expect(_i, all_reduce(1700), NCCL_ALGO_TREE, NCCL_PROTO_LL, 4);
  expect(_i, all_reduce(2000), NCCL_ALGO_TREE, NCCL_PROTO_LL, 4);
  expect(_i, all_reduce(2001), NCCL_ALGO_PAT, NCCL_PROTO_LL128, 5);
  expect(_i, all_reduce(3001), NCCL_ALGO_RING, NCCL_PROTO_SIMPLE, 0);
  expect_nothing(_i, all_reduce(3002));
  expect_nothing(_i, all_reduce((size_t)5000000000 % ((size_t)1 << 32))); /* nothing is cut to 32 bits */
  expect(_i, all_reduce((size_t)1 << 40), NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE, 1);
  ck_assert_int_eq(finish(_i, context), ncclSuccess);
}
END_TEST

START_TEST(collectives)
{
  static const ncclFunc_t all[] = {ncclFuncBroadcast, ncclFuncReduce, ncclFuncAllGather, ncclFuncReduceScatter,
                                   ncclFuncAllReduce};
  begin(_i,
        "broadcast,0,-1,tree,simple,1,-1,-1\nreduce,0,-1,tree,simple,2,-1,-1\nallgather,0,-1,tree,simple,3,-1,-1\n"
        "reducescatter,0,-1,tree,simple,4,-1,-1\nallreduce,0,-1,tree,simple,5,-1,-1\n",
        4, 1);
  for (int i = 0; i < 5; i++) {
    struct question question = all_reduce(64);
    question.collective = all[i];
    expect(_i, question, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE, i + 1);
  }
  ck_assert_int_eq(finish(_i, context), ncclSuccess);
}
END_TEST

START_TEST(machines)
{
  static const struct {
    size_t nranks, nnodes;
    int nchannels; /* which rule it is */
  } cases[] = {{8, 2, 1}, {8, 1, 2}, {8, 4, 2}, {6, 3, 3}, {7, 3, 3}, {2, 1, 4}};
  for (int i = 0; i < 6; i++) {
    begin(_i,
          "allreduce,0,-1,tree,simple,1,2,8\nallreduce,0,-1,tree,simple,2,-1,8\n"
          "allreduce,0,-1,tree,simple,3,3,-1\nallreduce,0,-1,tree,simple,4,-1,-1\n",
          cases[i].nranks, cases[i].nnodes);
    expect(_i, all_reduce(64), NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE, cases[i].nchannels);
    ck_assert_int_eq(finish(_i, context), ncclSuccess);
  }
}
END_TEST

START_TEST(operations_planned_as_one)
{
  struct question question = all_reduce(64);
  begin(_i, "allreduce,0,-1,tree,simple,3,-1,-1,3\nallreduce,0,-1,tree,ll,1,-1,-1,1\n", 4, 1);
  expect(_i, question, NCCL_ALGO_TREE, NCCL_PROTO_LL, 1);
  question.pipe_ops = 3;
  expect(_i, question, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE, 3);
  question.pipe_ops = 2;
  expect_nothing(_i, question);
  ck_assert_int_eq(finish(_i, context), ncclSuccess);
}
END_TEST

/* Versions 2 and 3 are not told, so only rules for either can match. */
START_TEST(registered_buffers)
{
  struct question question = all_reduce(64);
  begin(_i,
        "allreduce,0,-1,tree,simple,1,-1,-1,-1,1\nallreduce,0,-1,tree,simple,2,-1,-1,-1,0\n"
        "allreduce,0,-1,tree,simple,3,-1,-1,-1,-1\n",
        4, 1);
  expect(_i, question, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE, _i < 4 ? 3 : 2);
  question.reg_buff = 1;
  expect(_i, question, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE, _i < 4 ? 3 : 1);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, _i < 4 ? "of which 1 can match" : "of which 3 can match"), 1);
  ck_assert_int_eq(finish(_i, context), ncclSuccess);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "is not told by this version"), _i < 4 ? 2 : 0);
}
END_TEST

/* A choice that is impossible is passed over for the next rule that fits. */
START_TEST(impossible_choices)
{
  struct question question = all_reduce(64);
  begin(_i,
        "allreduce,0,-1,nvls,simple,1,-1,-1\nallreduce,0,-1,collnet_chain,simple,2,-1,-1\n"
        "allreduce,0,100,tree,ll,3,-1,-1\n",
        4, 1);
  expect(_i, question, NCCL_ALGO_NVLS, NCCL_PROTO_SIMPLE, 1);
  question.costs[NCCL_ALGO_NVLS][NCCL_PROTO_SIMPLE] = NCCL_ALGO_PROTO_IGNORE;
  expect(_i, question, NCCL_ALGO_COLLNET_CHAIN, NCCL_PROTO_SIMPLE, 2);
  question.costs[NCCL_ALGO_COLLNET_CHAIN][NCCL_PROTO_SIMPLE] = NCCL_ALGO_PROTO_IGNORE;
  expect(_i, question, NCCL_ALGO_TREE, NCCL_PROTO_LL, 3);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "is passed over: the core says that it is impossible here or forbidden"), 2);
  question.bytes = 101; /* now no rule is left */
  struct question before = question;
  ck_assert_int_eq(ask(_i, context, &question), ncclSuccess);
  ck_assert(memcmp(before.costs, question.costs, sizeof before.costs) == 0);
  ck_assert_int_eq(question.nchannels, 0);
  ck_assert_int_eq(finish(_i, context), ncclSuccess);
}
END_TEST

/* Only the wanted cost changes, but for others that would win as well since they are 0 and come first. */
START_TEST(costs)
{
  struct question question = all_reduce(64), before;
  begin(_i, "allreduce,0,-1,pat,ll,-1,-1,-1\n", 4, 1);
  question.costs[NCCL_ALGO_TREE][NCCL_PROTO_LL128] = 0;
  question.costs[NCCL_ALGO_PAT][NCCL_PROTO_LL128] = 0;
  question.costs[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = NCCL_ALGO_PROTO_IGNORE;
  before = question;
  ck_assert_int_eq(ask(_i, context, &question), ncclSuccess);
  ck_assert_int_eq(question.algorithm, NCCL_ALGO_PAT);
  ck_assert_int_eq(question.protocol, NCCL_PROTO_LL);
  ck_assert(question.costs[NCCL_ALGO_PAT][NCCL_PROTO_LL] == 0);
  ck_assert(question.costs[NCCL_ALGO_TREE][NCCL_PROTO_LL128] > 0);
  ck_assert(question.costs[NCCL_ALGO_TREE][NCCL_PROTO_LL128] < 0.001f);
  question.costs[NCCL_ALGO_PAT][NCCL_PROTO_LL] = before.costs[NCCL_ALGO_PAT][NCCL_PROTO_LL];
  question.costs[NCCL_ALGO_TREE][NCCL_PROTO_LL128] = 0;
  ck_assert(memcmp(question.costs, before.costs, sizeof before.costs) == 0);
  ck_assert_int_eq(finish(_i, context), ncclSuccess);
}
END_TEST

/* Tutti's own algorithms: where the table has rows for them, and nowhere else. */
START_TEST(rows_beyond_seven)
{
  struct question question = all_reduce(64);
  begin(_i, "allreduce,0,-1,direct,simple,1,-1,-1\nallreduce,0,-1,one_shot,ll,2,-1,-1\n", 4, 1);
  struct question before = question;
  ck_assert_int_eq(ask(_i, context, &question), ncclSuccess); /* which checks that rows beyond the table stay */
  ck_assert(memcmp(question.costs, before.costs, sizeof before.costs) == 0);
  ck_assert_int_eq(question.nchannels, 0);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "is passed over: the core does not offer it"), 2);
  if (_i > 2) {
    question.rows = TUTTI_NUM_ALGORITHMS;
    expect(_i, question, TUTTI_ALGO_DIRECT, NCCL_PROTO_SIMPLE, 1);
    question.rows = TUTTI_ALGO_DIRECT;
    expect(_i, question, TUTTI_ALGO_ONE_SHOT, NCCL_PROTO_LL, 2);
  }
  ck_assert_int_eq(finish(_i, context), ncclSuccess);
}
END_TEST

/* A table of another width is still understood: its row is numProto wide. */
START_TEST(other_widths)
{
  float costs[NCCL_NUM_ALGORITHMS][5];
  int nchannels = 0;
  const ncclTuner_v6_t *v6;
  begin(6, "allreduce,0,-1,nvls,ll128,-1,-1,-1\n", 4, 1);
  v6 = plugin_symbol("ncclTunerPlugin_v6");
  for (int a = 0; a < NCCL_NUM_ALGORITHMS; a++)
    for (int p = 0; p < 5; p++) costs[a][p] = 3;
  ck_assert_int_eq(
      v6->getCollInfo(context, ncclFuncAllReduce, 64, 1, (float **)costs, NCCL_NUM_ALGORITHMS, 5, 0, &nchannels),
      ncclSuccess);
  for (int a = 0; a < NCCL_NUM_ALGORITHMS; a++)
    for (int p = 0; p < 5; p++) ck_assert(costs[a][p] == (a == NCCL_ALGO_NVLS && p == NCCL_PROTO_LL128 ? 0 : 3));
  /* Too narrow for the rule. */
  ck_assert_int_eq(
      v6->getCollInfo(context, ncclFuncAllReduce, 64, 1, (float **)costs, NCCL_NUM_ALGORITHMS, 1, 0, &nchannels),
      ncclSuccess);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "is passed over: the core does not offer it"), 1);
  ck_assert_int_eq(finish(6, context), ncclSuccess);
}
END_TEST

/* ---- Threads ---- */

#define THREADS 4
#define QUESTIONS 300

/* Threads 0 and 1 share a context, which one of them began; the others have their own, with other ranks. */
static void *use_contexts(void *argument)
{
  size_t index = (size_t)argument;
  int version = OLDEST + 1 + (int)index;
  void *own = context;
  if (index > 1) ck_assert_int_eq(start(version, index, 1, &own), ncclSuccess);
  for (int i = 0; i < QUESTIONS; i++) {
    struct question question = all_reduce((size_t)i);
    ck_assert_int_eq(ask(version, own, &question), ncclSuccess);
    ck_assert_int_eq(question.nchannels, index > 1 ? (int)index : 10);
  }
  if (index > 1) ck_assert_int_eq(finish(version, own), ncclSuccess);
  return NULL;
}

START_TEST(contexts_at_once)
{
  pthread_t threads[THREADS];
  char total[128];
  begin(6, "allreduce,0,-1,tree,ll,2,-1,2\nallreduce,0,-1,tree,ll,3,-1,3\nallreduce,0,-1,tree,ll,10,-1,10\n", 10, 1);
  for (size_t i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, use_contexts, (void *)i), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  ck_assert_int_eq(finish(6, context), ncclSuccess);
  /* No answer is lost from the counts, and none is counted for another context. */
  snprintf(total, sizeof total, "of %d questions, a rule matched %d and was applied to %d", 2 * QUESTIONS,
           2 * QUESTIONS, 2 * QUESTIONS);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, total), 1);
  snprintf(total, sizeof total, "of %d questions, a rule matched %d and was applied to %d", QUESTIONS, QUESTIONS,
           QUESTIONS);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, total), 2);
}
END_TEST

void add_choice(Suite *suite)
{
  TCase *tcase = tcase_create("choice");
  tcase_set_timeout(tcase, 100);
  tcase_add_loop_test(tcase, sizes_and_order, OLDEST, NEWEST + 1);
  tcase_add_loop_test(tcase, collectives, OLDEST, NEWEST + 1);
  tcase_add_loop_test(tcase, machines, OLDEST, NEWEST + 1);
  tcase_add_loop_test(tcase, operations_planned_as_one, OLDEST, NEWEST + 1);
  tcase_add_loop_test(tcase, registered_buffers, OLDEST, NEWEST + 1);
  tcase_add_loop_test(tcase, impossible_choices, OLDEST, NEWEST + 1);
  tcase_add_loop_test(tcase, costs, 3, NEWEST + 1);
  tcase_add_loop_test(tcase, rows_beyond_seven, OLDEST, NEWEST + 1);
  tcase_add_test(tcase, other_widths);
  tcase_add_test(tcase, contexts_at_once);
  suite_add_tcase(suite, tcase);
}
