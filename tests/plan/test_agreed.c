/* Answers of a tuner that asks to be asked again: kinds of calls and their epochs, by themselves and among ranks, which
 * are threads with a bootstrap. The tuner is made up, and gives answers that never come again. */
#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/param.h"
#include "plan/agreed.h"
#include "plan/epochs.h"
#include "plugin/tuner_shim.h"
#include "program/emit.h"
#include "tests/bootstrap/ranks.h"

/* ---- Counting ---- */

static const struct tt_tuner_query some = {.collective = TT_FUNC_ALL_REDUCE, .bytes = 4096};

static struct tt_epoch *count(struct tt_epochs *epochs, const struct tt_tuner_query *kind)
{
  struct tt_epoch *epoch;
  ck_assert_int_eq(tt_epochs_count(epochs, kind, &epoch), ncclSuccess);
  return epoch;
}

START_TEST(epochs)
{
  struct tt_tuner_query other = some, variant = some;
  struct tt_epochs *all;
  struct tt_tuner_answer answer = {.said = TT_SAID_PAIR, .again = 3};
  struct tt_epoch *looked;
  other.bytes++;
  variant.without = TT_WITH_MAPPED;
  ck_assert_int_eq(tt_epochs_create(&all), ncclSuccess);
  ck_assert_int_eq(tt_epochs_look(all, &some, &looked), ncclSuccess); /* is no call */
  ck_assert_uint_eq(looked->made, 0);
  ck_assert(!looked->known);
  struct tt_epoch *epoch = count(all, &some);
  ck_assert_ptr_eq(epoch, looked);
  tt_epochs_learn(epoch, &answer);
  uint64_t first = epoch->choice;
  ck_assert_uint_ne(first, 0);
  for (int c = 0; c < 2; c++) ck_assert(count(all, &some)->known);
  ck_assert_int_eq(tt_epochs_look(all, &some, &looked), ncclSuccess);
  ck_assert(looked->known); /* only a call begins the next */
  epoch = count(all, &some);
  ck_assert(!epoch->known);
  ck_assert_uint_eq(epoch->query.epoch, 1);
  ck_assert_uint_eq(epoch->query.calls, 3);
  answer.again = 0;
  tt_epochs_learn(epoch, &answer);
  ck_assert_uint_eq(epoch->choice, first); /* it says the same */
  for (int c = 0; c < 1000; c++) ck_assert_uint_eq(count(all, &some)->query.epoch, 1);
  ck_assert(!count(all, &other)->known);
  ck_assert(!count(all, &variant)->known);
  answer.protocol = 1;
  tt_epochs_learn(count(all, &other), &answer);
  answer.protocol = 2;
  tt_epochs_learn(count(all, &variant), &answer);
  ck_assert_uint_ne(count(all, &other)->choice, count(all, &variant)->choice);
  ck_assert_uint_ne(count(all, &other)->choice, first);
  tt_epochs_destroy(all);
}
END_TEST

/* Calls that do not take place are counted again, across the border of an epoch with the answers of before. */
START_TEST(taken_back)
{
  struct tt_epochs *all;
  struct tt_tuner_answer one = {.algorithm = 1, .again = 2}, two = {.algorithm = 2, .again = 2};
  ck_assert_int_eq(tt_epochs_create(&all), ncclSuccess);
  struct tt_epoch *epoch = count(all, &some);
  tt_epochs_learn(epoch, &one);
  uint64_t first = epoch->choice;
  count(all, &some);
  epoch = count(all, &some);
  tt_epochs_learn(epoch, &two);
  uint64_t second = epoch->choice;
  ck_assert_uint_ne(second, first);
  ck_assert(tt_epochs_take_back(all, second));
  ck_assert(tt_epochs_take_back(all, first));
  epoch = count(all, &some);
  ck_assert(epoch->known && epoch->choice == first && epoch->query.epoch == 0);
  epoch = count(all, &some);
  ck_assert(epoch->known && epoch->choice == second && epoch->query.epoch == 1);
  for (int c = 0; c < 3; c++) ck_assert(tt_epochs_take_back(all, second));
  ck_assert(!tt_epochs_take_back(all, second));
  ck_assert(!tt_epochs_take_back(all, UINT64_C(7) << 32));
  tt_epochs_destroy(all);
}
END_TEST

START_TEST(many_kinds)
{
  struct tt_epochs *all;
  struct tt_tuner_query kind = some;
  ck_assert_int_eq(tt_epochs_create(&all), ncclSuccess);
  for (kind.bytes = 0; kind.bytes < TT_EPOCHS_KINDS; kind.bytes++) ck_assert_ptr_nonnull(count(all, &kind));
  ck_assert_ptr_null(count(all, &kind));
  kind.bytes = 5;
  ck_assert_uint_eq(count(all, &kind)->made, 2);
  tt_epochs_destroy(all);
}
END_TEST

/* ---- Among ranks ---- */

#define RANKS 4
#define CALLS 400

/* The questions that rank 0's tuner was asked, and the longest epoch. */
static _Atomic int questions, other_ranks, longest;
static uint64_t again;

/* A chunk for each question, so that answers are told apart, and whoever asks twice gets another one. */
static ncclResult_t get_epoch(void *ctx, const tuttiTunerEpoch_v1_t *epoch, float **table, int rows, int columns,
                              int *nchannels, uint64_t *after)
{
  float *cost = (float *)(void *)table;
  (void)rows, (void)nchannels;
  if (ctx != NULL) atomic_fetch_add(&other_ranks, 1);
  int number = atomic_fetch_add(&questions, 1);
  if ((int)epoch->calls > atomic_load(&longest)) atomic_store(&longest, (int)epoch->calls);
  cost[(number % 2 ? NCCL_ALGO_RING : NCCL_ALGO_TREE) * columns + NCCL_PROTO_SIMPLE] = 0;
  *after = again;
  return ncclSuccess;
}

static ncclResult_t get_chunk(void *ctx, ncclFunc_t collective, size_t bytes, int algorithm, int protocol, int channels,
                              size_t *chunk)
{
  (void)ctx, (void)collective, (void)bytes, (void)algorithm, (void)protocol, (void)channels;
  *chunk = 1024 + (size_t)atomic_load(&questions);
  return ncclSuccess;
}

static struct tt_tuner_plugin plugin;

static const struct tt_tuning_input input = {.kind = TT_TUNING_HOST,
                                             .nranks = RANKS,
                                             .nnodes = RANKS,
                                             .max_ranks_per_node = 1,
                                             .protocols = 1u << TT_PROTO_LL | 1u << TT_PROTO_SIMPLE,
                                             .min_channels = 1,
                                             .max_channels = 4,
                                             .buffer_bytes = {1 << 18, 0, 1 << 22}};

struct script {
  void (*before)(int rank, int call); /* of each call */
  bool again;
  struct tt_choice choices[RANKS][CALLS];
};

static ncclResult_t body(struct rank *me)
{
  struct script *script = me->arg;
  struct tt_tuner tuner = {.plugin = &plugin, .asks_again = script->again, .ctx = me->rank ? me : NULL};
  struct tt_agreed_config config = {.bootstrap = me->b, .tuner = &tuner, .rank = me->rank, .nranks = me->nranks};
  struct tt_tuning *tuning;
  struct tt_agreed *agreed;
  pthread_mutex_init(&tuner.lock, NULL);
  ck_assert_int_eq(tt_tuning_create(&input, &tuning), ncclSuccess);
  config.tuning = tuning;
  ck_assert_int_eq(tt_agreed_create(&config, &agreed), ncclSuccess);
  ncclResult_t result = tt_bootstrap_barrier(me->b);
  for (int c = 0; c < CALLS && result == ncclSuccess; c++) {
    uint64_t number;
    if (script->before) script->before(me->rank, c);
    result = tt_agreed_count(agreed, &some, &number);
    ck_assert((number != 0) == script->again);
    if (result == ncclSuccess) result = tt_agreed_choose(agreed, &some, &script->choices[me->rank][c]);
  }
  if (result == ncclSuccess) result = tt_bootstrap_barrier(me->b);
  tt_agreed_destroy(agreed, true);
  tt_tuning_destroy(tuning);
  pthread_mutex_destroy(&tuner.lock);
  return result;
}

static void make_plugin(void)
{
  memset(&plugin, 0, sizeof plugin);
  plugin.shim = &tt_tuner_shim_v6;
  plugin.abi.v6.name = "Made up";
  plugin.abi.v6.getChunkSize = get_chunk;
  plugin.extension.getEpochInfo = get_epoch;
  atomic_store(&questions, 0);
  atomic_store(&other_ranks, 0);
  atomic_store(&longest, 0);
}

static void run(struct script *script)
{
  environment(NULL);
  make_plugin();
  ranks_succeed(RANKS, body, script);
  for (int r = 1; r < RANKS; r++)
    for (int c = 0; c < CALLS; c++) {
      const struct tt_choice *zero = &script->choices[0][c], *mine = &script->choices[r][c];
      ck_assert_msg(zero->algorithm == mine->algorithm && zero->largest_chunk == mine->largest_chunk,
                    "call %d of rank %d: %s", c, r, mine->reason);
    }
  ck_assert_int_eq(atomic_load(&other_ranks), 0);
}

/* How often the choice changes from one call to the next. */
static int changes(const struct script *script)
{
  int count = 0;
  for (int c = 1; c < CALLS; c++)
    count += script->choices[0][c].largest_chunk != script->choices[0][c - 1].largest_chunk;
  return count;
}

static void sometimes_late(int rank, int call)
{
  if ((call * 7 + rank * 3) % 11 == 0) usleep((useconds_t)(rank * 100));
}

/* Whoever comes to a question first: all get the same answer at the same call, and the tuner is asked once. Where ranks
 * are not far apart epochs are as long as it says. */
START_TEST(ranks_agree)
{
  static struct script script;
  script = (struct script){.before = sometimes_late, .again = true};
  again = 100;
  run(&script);
  ck_assert_int_eq(atomic_load(&questions), CALLS / 100);
  ck_assert_int_eq(changes(&script), CALLS / 100 - 1);
  ck_assert_int_eq(script.choices[0][99].algorithm, TT_ALGO_TREE);
  ck_assert_int_eq(script.choices[0][100].algorithm, TT_ALGO_RING);
}
END_TEST

static _Atomic int lead_is_done;

/* Rank 0, or all but the last one, is through before the last begins. */
static void last_waits(int rank, int call)
{
  if (rank == 0 && call == CALLS - 1) atomic_store(&lead_is_done, 1);
  while (rank == RANKS - 1 && call == 0 && !atomic_load(&lead_is_done)) usleep(1000);
}

static void first_waits(int rank, int call)
{
  if (rank == RANKS - 1 && call == CALLS - 1) atomic_store(&lead_is_done, 1);
  while (rank == 0 && call == 0 && !atomic_load(&lead_is_done)) usleep(1000);
}

/* What rank 0 has to keep for a rank that is far behind, be it itself, grows as the logarithm of the distance. */
START_TEST(far_apart)
{
  static struct script script;
  script = (struct script){.before = _i ? first_waits : last_waits, .again = true};
  again = 1;
  atomic_store(&lead_is_done, 0);
  run(&script);
  ck_assert_int_lt(atomic_load(&questions), 20);
  ck_assert_int_ge(atomic_load(&longest), 32);
}
END_TEST

/* A question for each call, in step: nothing is kept for long, so that epochs stay short. */
static _Atomic int arrived[CALLS];
static void in_step(int rank, int call)
{
  (void)rank;
  if (call == 0) return;
  atomic_fetch_add(&arrived[call], 1);
  while (atomic_load(&arrived[call]) < RANKS) usleep(10);
}

START_TEST(short_epochs)
{
  static struct script script;
  script = (struct script){.before = in_step, .again = true};
  again = 1;
  memset(arrived, 0, sizeof arrived);
  run(&script);
  ck_assert_int_eq(atomic_load(&questions), CALLS);
  ck_assert_int_eq(atomic_load(&longest), 1);
}
END_TEST

/* The last answer is the last. */
START_TEST(never_again)
{
  static struct script script;
  script = (struct script){.again = true};
  again = 0;
  run(&script);
  ck_assert_int_eq(atomic_load(&questions), 1);
  ck_assert_int_eq(changes(&script), 0);
}
END_TEST

/* Many kinds, of each of which a rank that has not begun yet lacks several answers: what is kept is never so much that
 * one would be answered otherwise. */
#define KINDS 9000
#define PASSES 2
static size_t chunks[2][PASSES][KINDS];

static ncclResult_t body_kinds(struct rank *me)
{
  struct tt_tuner tuner = {.plugin = &plugin, .asks_again = true, .ctx = me->rank ? me : NULL};
  struct tt_agreed_config config = {.bootstrap = me->b, .tuner = &tuner, .rank = me->rank, .nranks = me->nranks};
  struct tt_tuning *tuning;
  struct tt_agreed *agreed;
  struct tt_choice choice;
  pthread_mutex_init(&tuner.lock, NULL);
  ck_assert_int_eq(tt_tuning_create(&input, &tuning), ncclSuccess);
  config.tuning = tuning;
  ck_assert_int_eq(tt_agreed_create(&config, &agreed), ncclSuccess);
  ncclResult_t result = tt_bootstrap_barrier(me->b);
  while (me->rank == 1 && !atomic_load(&lead_is_done)) usleep(1000);
  for (int k = 0; k < PASSES * KINDS && result == ncclSuccess; k++) {
    struct tt_tuner_query kind = some;
    uint64_t number;
    kind.bytes = (uint64_t)(k % KINDS);
    result = tt_agreed_count(agreed, &kind, &number);
    if (result == ncclSuccess) result = tt_agreed_choose(agreed, &kind, &choice);
    chunks[me->rank][k / KINDS][k % KINDS] = choice.largest_chunk;
  }
  atomic_store(&lead_is_done, 1);
  if (result == ncclSuccess) result = tt_bootstrap_barrier(me->b);
  tt_agreed_destroy(agreed, true);
  tt_tuning_destroy(tuning);
  pthread_mutex_destroy(&tuner.lock);
  return result;
}

START_TEST(many_kinds_late)
{
  environment(NULL);
  make_plugin();
  again = 1;
  atomic_store(&lead_is_done, 0);
  ranks_succeed(2, body_kinds, NULL);
  ck_assert_int_eq(memcmp(chunks[0], chunks[1], sizeof chunks[0]), 0);
  ck_assert_int_eq(atomic_load(&questions), PASSES * KINDS);
}
END_TEST

/* ---- Who does not ask to be asked again ---- */

static _Atomic int plain_questions;

static ncclResult_t get_plain(void *ctx, ncclFunc_t collective, size_t bytes, int pipe_ops, float **table, int rows,
                              int columns, int reg_buff, int *nchannels)
{
  float *cost = (float *)(void *)table;
  (void)ctx, (void)collective, (void)bytes, (void)pipe_ops, (void)rows, (void)reg_buff, (void)nchannels;
  atomic_fetch_add(&plain_questions, 1);
  cost[NCCL_ALGO_RING * columns + NCCL_PROTO_SIMPLE] = 0;
  return ncclSuccess;
}

START_TEST(asked_once)
{
  static struct script script;
  script = (struct script){.before = sometimes_late};
  atomic_store(&plain_questions, 0);
  environment(NULL);
  memset(&plugin, 0, sizeof plugin);
  plugin.shim = &tt_tuner_shim_v6;
  plugin.abi.v6.name = "Made up";
  plugin.abi.v6.getCollInfo = get_plain;
  ranks_succeed(RANKS, body, &script);
  ck_assert_int_eq(atomic_load(&plain_questions), RANKS);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("agreed");
  TCase *tcase = tcase_create("agreed");
  tcase_set_timeout(tcase, 200);
  tcase_add_test(tcase, epochs);
  tcase_add_test(tcase, taken_back);
  tcase_add_test(tcase, many_kinds);
  tcase_add_test(tcase, ranks_agree);
  tcase_add_loop_test(tcase, far_apart, 0, 2);
  tcase_add_test(tcase, short_epochs);
  tcase_add_test(tcase, never_again);
  tcase_add_test(tcase, many_kinds_late);
  tcase_add_test(tcase, asked_once);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
