/* The adaptive tuner with counters that are made up: what is tried, what is settled on, and when it looks again. */
#include "loader.h"

#include <stdlib.h>
#include <string.h>

/* A network in which a call takes so long by each choice, and moves so many bytes; 0: nothing is counted. */
static struct world {
  double usec[ROWS][COLUMNS];
  double bytes, retries;
  uint64_t busy_ns, moved, messages, retried;
  int away; /* questions for which there are no figures now */
  int lag;  /* calls that are not counted yet */
  double queue[16];
} world;

static ncclResult_t net_stats(void *core, tuttiNetStats_t *stats)
{
  ck_assert_ptr_eq(core, &world);
  ck_assert_uint_ge(stats->size, sizeof *stats);
  if (world.away > 0) {
    world.away--;
    return ncclInProgress;
  }
  stats->busyNs = world.busy_ns;
  stats->send.bytes = stats->recv.bytes = world.moved / 2;
  stats->send.messages = world.messages;
  stats->send.retries = world.retried;
  return ncclSuccess;
}

/* One kind of calls, as the core asks about it. */
struct kind {
  struct question question;
  uint32_t variant;
  uint64_t epoch, calls, again, total;
};

static const tuttiTunerExtension_v1_t *extension;
static void *ctx;

static void open_adapt(void)
{
  setenv("TUTTI_TUNER_ADAPT", "1", 1);
  use_plugin();
  extension = plugin_symbol("tuttiTunerExtension_v1");
  ck_assert_int_eq(start(6, 4, 4, &ctx), ncclSuccess);
  ck_assert_int_eq(extension->asksAgain(ctx), 1);
  world = (struct world){.bytes = 1000};
  for (int a = 0; a < ROWS; a++)
    for (int p = 0; p < COLUMNS; p++) world.usec[a][p] = 100;
}

/* Ring Simple is the model's best with 5, then Tree Simple with 6 and Ring LL with 9; others have more than 10. */
static struct kind new_kind(size_t bytes)
{
  struct kind kind = {.question = all_reduce(bytes)};
  kind.question.costs[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 6;
  kind.question.costs[NCCL_ALGO_RING][NCCL_PROTO_LL] = 9;
  kind.question.costs[NCCL_ALGO_TREE][NCCL_PROTO_LL] = 10.5f; /* more than twice the best */
  return kind;
}

/* A question; what wins is then in kind->question. */
static void ask_it(struct kind *kind)
{
  const tuttiTunerEpoch_v1_t epoch = {.size = sizeof epoch,
                                      .collType = kind->question.collective,
                                      .nBytes = kind->question.bytes,
                                      .numPipeOps = 1,
                                      .variant = kind->variant,
                                      .epoch = kind->epoch,
                                      .calls = kind->calls,
                                      .netStats = net_stats,
                                      .core = &world};
  struct question before = kind->question;
  float best = -1;
  kind->question.rows = ROWS;
  kind->again = 77;
  ck_assert_int_eq(extension->getEpochInfo(ctx, &epoch, (float **)(void *)kind->question.costs, ROWS, COLUMNS,
                                           &kind->question.nchannels, &kind->again),
                   ncclSuccess);
  for (int a = 0; a < ROWS; a++)
    for (int p = 0; p < COLUMNS; p++) {
      float cost = kind->question.costs[a][p];
      if (best >= 0 && cost >= best) continue;
      best = cost;
      kind->question.algorithm = a;
      kind->question.protocol = p;
    }
  ck_assert_int_eq(kind->question.nchannels, 0);
  memcpy(kind->question.costs, before.costs, sizeof before.costs);
  kind->epoch++;
  kind->calls = 0;
}

/* One call of the kind, before which it is asked if it is time. */
static void call(struct kind *kind)
{
  if (kind->epoch == 0 || (kind->again != 0 && kind->calls == kind->again)) ask_it(kind);
  double usec = world.usec[kind->question.algorithm][kind->question.protocol];
  kind->calls++;
  double counted = world.queue[(kind->total + 16 - (uint64_t)world.lag) % 16];
  world.queue[kind->total % 16] = usec;
  if (world.lag == 0) counted = usec;
  kind->total++;
  world.busy_ns += (uint64_t)(counted * 1000);
  world.moved += usec > 0 ? (uint64_t)world.bytes : 0;
  world.messages += usec > 0;
  world.retried += (uint64_t)world.retries;
}

static void call_often(struct kind *kind, int calls)
{
  for (int c = 0; c < calls; c++) call(kind);
}

static void expect(const struct kind *kind, int algorithm, int protocol)
{
  ck_assert_int_eq(kind->question.algorithm, algorithm);
  ck_assert_int_eq(kind->question.protocol, protocol);
}

#define SETTLES 400 /* calls: more than four candidates take */
#define LONG 4000   /* calls: several epochs of what is settled */

START_TEST(best_is_kept)
{
  bool tried[ROWS][COLUMNS] = {0};
  struct kind kind = new_kind(4096);
  open_adapt();
  world.usec[NCCL_ALGO_RING][NCCL_PROTO_LL] = 60;
  for (int c = 0; c < SETTLES; c++) {
    call(&kind);
    tried[kind.question.algorithm][kind.question.protocol] = true;
  }
  for (int a = 0; a < ROWS; a++) /* within twice the model's best: no more are tried */
    for (int p = 0; p < COLUMNS; p++) ck_assert(tried[a][p] == (kind.question.costs[a][p] <= 10));
  expect(&kind, NCCL_ALGO_RING, NCCL_PROTO_LL);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "allreduce of 4096 bytes tries "), 3);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "took 60.0 us a call by ring ll, with 1000 bytes"), 1);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "settles on ring ll: 60.0 us a call, where ring simple took 100.0 us"), 1);
  uint64_t questions = kind.epoch;
  call_often(&kind, LONG);
  expect(&kind, NCCL_ALGO_RING, NCCL_PROTO_LL);
  ck_assert_uint_le(kind.epoch - questions, 10); /* seldom, once it has settled */
  ck_assert_uint_eq(kind.again, 1024);
  finish(6, ctx);
}
END_TEST

/* Less than a tenth better is not better, so that noise changes nothing. */
START_TEST(near_is_not_better)
{
  struct kind kind = new_kind(4096);
  open_adapt();
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 93;
  call_often(&kind, SETTLES);
  expect(&kind, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "stays with ring simple: 100.0 us a call"), 1);
  finish(6, ctx);
}
END_TEST

/* However many are near. */
START_TEST(four_at_most)
{
  bool tried[ROWS][COLUMNS] = {0};
  struct kind kind = new_kind(4096);
  open_adapt();
  kind.question.costs[NCCL_ALGO_TREE][NCCL_PROTO_LL] = 9.5f;
  kind.question.costs[NCCL_ALGO_TREE][NCCL_PROTO_LL128] = 9.9f;
  kind.question.costs[NCCL_ALGO_PAT][NCCL_PROTO_SIMPLE] = 9.8f;
  for (int c = 0; c < SETTLES; c++) {
    call(&kind);
    tried[kind.question.algorithm][kind.question.protocol] = true;
  }
  for (int a = 0; a < ROWS; a++)
    for (int p = 0; p < COLUMNS; p++) ck_assert(tried[a][p] == (kind.question.costs[a][p] <= 9.5f));
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "allreduce of 4096 bytes tries "), 4);
  finish(6, ctx);
}
END_TEST

/* One choice only: nothing to try, and it is not asked again. */
START_TEST(one_candidate)
{
  struct kind kind = {.question = all_reduce(64)};
  open_adapt();
  for (int a = 0; a < ROWS; a++)
    for (int p = 0; p < COLUMNS; p++)
      if (kind.question.costs[a][p] != 5) kind.question.costs[a][p] = 11;
  call_often(&kind, SETTLES);
  ck_assert_uint_eq(kind.epoch, 1);
  expect(&kind, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE);
  finish(6, ctx);
}
END_TEST

START_TEST(drift)
{
  struct kind kind = new_kind(4096);
  open_adapt();
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 50;
  call_often(&kind, LONG);
  expect(&kind, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE);
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 70; /* less than by half */
  call_often(&kind, LONG);
  expect(&kind, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "looks again"), 0);
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 200;
  call_often(&kind, LONG);
  expect(&kind, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "takes 200.0 us a call and 0.00 retries, where it took 50.0 us"), 1);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "settles on ring simple: 100.0 us a call, where tree simple took 200.0 us"),
                   1);
  finish(6, ctx);
}
END_TEST

/* One bad epoch is not enough. */
START_TEST(a_moment_is_no_drift)
{
  struct kind kind = new_kind(4096);
  open_adapt();
  call_often(&kind, LONG);
  for (int times = 0; times < 5; times++) {
    uint64_t epoch = kind.epoch;
    while (kind.epoch == epoch) call(&kind);
    world.usec[NCCL_ALGO_RING][NCCL_PROTO_SIMPLE] = 1000;
    while (kind.epoch == epoch + 1) call(&kind);
    world.usec[NCCL_ALGO_RING][NCCL_PROTO_SIMPLE] = 100;
    call_often(&kind, LONG);
  }
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "looks again"), 0);
  finish(6, ctx);
}
END_TEST

/* Where it gets worse again and again and looking is in vain, it looks ever more seldom. */
START_TEST(patience_grows)
{
  struct kind kind = new_kind(4096);
  open_adapt();
  double usec = 100;
  for (int times = 0; times < 100; times++) {
    for (int a = 0; a < ROWS; a++)
      for (int p = 0; p < COLUMNS; p++) world.usec[a][p] = usec;
    usec = usec < 1000 ? 10000 : 100;
    call_often(&kind, 256 * 10);
  }
  int looks = logged(NCCL_LOG_INFO, "looks again");
  ck_assert_int_ge(looks, 2);
  ck_assert_int_le(looks, 6);
  finish(6, ctx);
}
END_TEST

START_TEST(retries)
{
  struct kind kind = new_kind(4096);
  open_adapt();
  call_often(&kind, LONG);
  world.retries = 1;
  call_often(&kind, LONG);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "and 1.00 retries, where it took 100.0 us and 0.00: looks again"), 1);
  finish(6, ctx);
}
END_TEST

/* Shared memory, or devices whose operations are not timed: it is said once, and the model's choice holds. */
START_TEST(nothing_counts)
{
  struct kind kind = new_kind(4096), other = new_kind(8192);
  open_adapt();
  memset(world.usec, 0, sizeof world.usec);
  call_often(&kind, LONG);
  call_often(&other, LONG);
  expect(&kind, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE);
  expect(&other, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE);
  ck_assert_uint_eq(kind.again, 0);
  ck_assert_uint_eq(other.again, 0);
  ck_assert_uint_le(kind.epoch, 4);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "moves nothing over the network that is timed"), 1);
  finish(6, ctx);
}
END_TEST

/* A choice that moves nothing over this rank's network cannot be compared, and is not taken. */
START_TEST(unseen_is_not_best)
{
  struct kind kind = new_kind(4096);
  open_adapt();
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 0;
  call_often(&kind, SETTLES);
  expect(&kind, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "has no figure for tree simple: it moves nothing over this rank's network"),
                   1);
  finish(6, ctx);
}
END_TEST

/* Other calls in between, now more and now fewer: no figure of such epochs counts. */
START_TEST(unsteady_mixture)
{
  struct kind kind = new_kind(4096);
  open_adapt();
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 10;
  for (int c = 0; c < LONG; c++) {
    world.bytes = c / 8 % 2 ? 1000 : 5000;
    call(&kind);
  }
  expect(&kind, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "stays with ring simple, since nothing can be compared with it"), 1);
  finish(6, ctx);
}
END_TEST

/* Two kinds by turns: one is tried at a time, each finds its best, and another variant is another kind. */
START_TEST(kinds_take_turns)
{
  struct kind one = new_kind(4096), two = new_kind(4096);
  two.variant = 4;
  open_adapt();
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 30;
  for (int c = 0; c < LONG; c++) {
    call(&one);
    call(&two);
    bool first = one.question.algorithm != NCCL_ALGO_RING || one.question.protocol != NCCL_PROTO_SIMPLE;
    bool second = two.question.algorithm != NCCL_ALGO_RING || two.question.protocol != NCCL_PROTO_SIMPLE;
    if (c < 8 * 3 * 4) ck_assert(!second || !first || one.again > 8);
  }
  expect(&one, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE);
  expect(&two, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "settles on tree simple"), 2);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "looks again"), 0);
  finish(6, ctx);
}
END_TEST

/* A kind that is not called any more keeps no other from its turn for ever. */
START_TEST(abandoned)
{
  struct kind one = new_kind(4096), two = new_kind(8192);
  open_adapt();
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 30;
  call_often(&one, 20);
  call_often(&two, 32 * 300);
  expect(&two, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE);
  call_often(&one, LONG);
  expect(&one, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE);
  finish(6, ctx);
}
END_TEST

/* Figures that cannot be had now and then. */
START_TEST(not_now)
{
  struct kind kind = new_kind(4096);
  open_adapt();
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 30;
  for (int c = 0; c < LONG; c++) {
    if (c % 40 == 0) world.away = 1;
    call(&kind);
  }
  expect(&kind, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE);
  finish(6, ctx);
}
END_TEST

/* Counters that are some calls behind, as those of who asks while others are already further. */
START_TEST(lag)
{
  struct kind kind = new_kind(4096);
  open_adapt();
  world.lag = 7;
  world.usec[NCCL_ALGO_TREE][NCCL_PROTO_SIMPLE] = 30;
  call_often(&kind, SETTLES);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "took 30.0 us a call by tree simple"), 1);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "took 100.0 us a call by ring ll"), 1);
  expect(&kind, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE);
  finish(6, ctx);
}
END_TEST

/* A rule is a decision: nothing is tried. And without the parameter nothing is asked again. */
START_TEST(rules_win)
{
  struct kind kind = new_kind(4096);
  use_rules("allreduce,0,-1,tree,ll,2,-1,-1\n");
  open_adapt();
  const tuttiTunerEpoch_v1_t epoch = {.size = sizeof epoch,
                                      .collType = ncclFuncAllReduce,
                                      .nBytes = 64,
                                      .numPipeOps = 1,
                                      .netStats = net_stats,
                                      .core = &world};
  ck_assert_int_eq(extension->getEpochInfo(ctx, &epoch, (float **)(void *)kind.question.costs, ROWS, COLUMNS,
                                           &kind.question.nchannels, &kind.again),
                   ncclSuccess);
  ck_assert_int_eq(kind.question.nchannels, 2);
  ck_assert_uint_eq(kind.again, 0);
  ck_assert(kind.question.costs[NCCL_ALGO_TREE][NCCL_PROTO_LL] == 0);
  finish(6, ctx);
  unsetenv("TUTTI_TUNER_ADAPT");
  use_plugin();
  extension = plugin_symbol("tuttiTunerExtension_v1");
  ck_assert_int_eq(start(6, 4, 4, &ctx), ncclSuccess);
  ck_assert_int_eq(extension->asksAgain(ctx), 0);
  finish(6, ctx);
}
END_TEST

void add_adapt(Suite *suite)
{
  TCase *tcase = tcase_create("adapt");
  tcase_set_timeout(tcase, 100);
  tcase_add_test(tcase, best_is_kept);
  tcase_add_test(tcase, near_is_not_better);
  tcase_add_test(tcase, four_at_most);
  tcase_add_test(tcase, one_candidate);
  tcase_add_test(tcase, drift);
  tcase_add_test(tcase, a_moment_is_no_drift);
  tcase_add_test(tcase, patience_grows);
  tcase_add_test(tcase, retries);
  tcase_add_test(tcase, nothing_counts);
  tcase_add_test(tcase, unseen_is_not_best);
  tcase_add_test(tcase, unsteady_mixture);
  tcase_add_test(tcase, kinds_take_turns);
  tcase_add_test(tcase, abandoned);
  tcase_add_test(tcase, not_now);
  tcase_add_test(tcase, lag);
  tcase_add_test(tcase, rules_win);
  suite_add_tcase(suite, tcase);
}
