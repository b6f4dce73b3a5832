/* What ranks learn of each other's trouble. Ranks are threads of this process over a real bootstrap; each test is a
 * function that every rank runs. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/timer.h"
#include "health/health.h"

#define RANKS 5

struct rank {
  pthread_t thread;
  ncclUniqueId id;
  int rank;
  void (*body)(struct rank *me);
  struct tt_bootstrap *bootstrap;
  struct tt_health *health;
  _Atomic uint32_t abort;
};

static void describe(const struct tt_signature *signature, char *text, size_t size)
{
  snprintf(text, size, "call of %d elements", (int)signature->count);
}

static void differ(const struct tt_signature *a, const struct tt_signature *b, char *text, size_t size)
{
  snprintf(text, size, "difference of %d", abs((int)a->count - (int)b->count));
}

static void *run_rank(void *arg)
{
  struct rank *me = arg;
  ck_assert_int_eq(tt_bootstrap_create(&me->id, me->rank, RANKS, &me->abort, &me->bootstrap), ncclSuccess);
  ck_assert_int_eq(tt_health_create(me->bootstrap, me->rank, RANKS, describe, differ, &me->health), ncclSuccess);
  ck_assert_int_eq(tt_bootstrap_barrier(me->bootstrap), ncclSuccess);
  me->body(me);
  ck_assert_int_eq(tt_bootstrap_barrier(me->bootstrap), ncclSuccess);
  tt_health_destroy(me->health);
  tt_bootstrap_destroy(me->bootstrap);
  return NULL;
}

static void run(void (*body)(struct rank *me))
{
  struct rank ranks[RANKS] = {0};
  ck_assert_int_eq(tt_bootstrap_unique_id(&ranks[0].id), ncclSuccess);
  for (int r = 0; r < RANKS; r++) {
    ranks[r].id = ranks[0].id;
    ranks[r].rank = r;
    ranks[r].body = body;
    ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
  }
  for (int r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
}

/* Trouble, waited for; the test's own time limit is the only bound. */
static ncclResult_t wait_for_trouble(struct rank *me)
{
  ncclResult_t result;
  while ((result = tt_health_check(me->health, true)) == ncclSuccess) usleep(1000);
  return result;
}

static void expect_words(const char *word)
{
  ck_assert_msg(strstr(tt_log_thread_error(), word) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(), word);
}

static void begin(struct rank *me, uint64_t sequence, uint64_t count)
{
  struct tt_signature signature = {.sequence = sequence, .count = count};
  tt_health_begin(me->health, &signature);
}

static void one_fails(struct rank *me)
{
  begin(me, 0, 10);
  if (me->rank == 2) {
    tt_health_failed(me->health, ncclSystemError, "the disk is full");
    return;
  }
  ck_assert_int_eq(wait_for_trouble(me), ncclRemoteError);
  expect_words("rank 2");
  expect_words("the disk is full");
}

START_TEST(a_failure_reaches_all)
{
  run(one_fails);
}
END_TEST

/* Only rank 3 differs; all stall, and everyone gets both sides named. */
static void one_differs(struct rank *me)
{
  begin(me, 0, 10);
  begin(me, 1, me->rank == 3 ? 77 : 55);
  tt_health_stalled(me->health);
  ncclResult_t result = wait_for_trouble(me);
  ck_assert_int_eq(result, ncclInvalidUsage);
  expect_words("77");
  expect_words("55");
  expect_words("difference of 22");
  expect_words("rank 3");
  tt_health_failed(me->health, result, tt_log_thread_error());
}

START_TEST(a_disagreement_is_named)
{
  run(one_differs);
}
END_TEST

/* Works on streams: all ranks have begun more than they are at. */
static void one_differed_before(struct rank *me)
{
  for (uint64_t s = 0; s < 200; s++) begin(me, s, me->rank == 3 && s == 150 ? 77 : 55);
  tt_health_stalled(me->health);
  ncclResult_t result = wait_for_trouble(me);
  ck_assert_int_eq(result, ncclInvalidUsage);
  expect_words("collective 150 ");
  expect_words("77");
  expect_words("rank 3");
  tt_health_failed(me->health, result, tt_log_thread_error());
}

START_TEST(an_earlier_disagreement_is_named)
{
  run(one_differed_before);
}
END_TEST

/* Two threads of a rank ask: both learn what it is. */
static void *ask_again(void *arg)
{
  ck_assert_int_eq(wait_for_trouble(arg), ncclRemoteError);
  expect_words("the disk is full");
  return NULL;
}

static void two_ask(struct rank *me)
{
  pthread_t other;
  if (me->rank == 2) {
    tt_health_failed(me->health, ncclSystemError, "the disk is full");
    return;
  }
  ck_assert_int_eq(pthread_create(&other, NULL, ask_again, me), 0);
  ask_again(me);
  pthread_join(other, NULL);
}

START_TEST(all_threads_are_told)
{
  run(two_ask);
}
END_TEST

/* Rank 4 comes late, after the others said what they are at, and then finds the difference by itself. */
static void one_is_late(struct rank *me)
{
  if (me->rank != 4) {
    begin(me, 0, 10);
    tt_health_stalled(me->health);
  }
  ck_assert_int_eq(tt_bootstrap_barrier(me->bootstrap), ncclSuccess);
  char late[64] = "?";
  while (strcmp(late, me->rank == 4 ? "" : "4") != 0) {               /* until all others have said what they are at */
    ck_assert_int_eq(tt_health_check(me->health, true), ncclSuccess); /* being late is no mistake */
    usleep(1000);
    tt_health_late(me->health, 0, late, sizeof late);
  }
  ck_assert_int_eq(tt_bootstrap_barrier(me->bootstrap), ncclSuccess);
  if (me->rank != 4) return;
  begin(me, 0, 11);
  ck_assert_int_eq(wait_for_trouble(me), ncclInvalidUsage);
  expect_words("10 elements");
  expect_words("11 elements");
}

START_TEST(who_is_late_compares_then)
{
  run(one_is_late);
}
END_TEST

/* Rank 0 begins two at once, rank 4 none: who is late depends on which of the two rank 0 waits in. */
static void one_begins_two(struct rank *me)
{
  char late[64] = "?";
  if (me->rank != 4) begin(me, 0, 10);
  if (me->rank == 0) begin(me, 1, 10);
  tt_health_stalled(me->health);
  while (me->rank == 0 && strcmp(late, "4") != 0) { /* until the others have said what they are at */
    ck_assert_int_eq(tt_health_check(me->health, true), ncclSuccess);
    usleep(1000);
    tt_health_late(me->health, 0, late, sizeof late);
  }
  if (me->rank != 0) return;
  tt_health_late(me->health, 1, late, sizeof late);
  ck_assert_str_eq(late, "1, 2, 3, 4");
  tt_health_late(me->health, TT_HEALTH_LATEST, late, sizeof late);
  ck_assert_str_eq(late, "1, 2, 3, 4");
}

START_TEST(who_is_late_in_an_earlier_one)
{
  run(one_begins_two);
}
END_TEST

/* Rank 0 stalls and says what it is at; the others find the difference, fail and never stall themselves. Rank 0 must
 * hear of it all the same, whether they report their failure or just leave. */
static void one_waits(struct rank *me, bool report)
{
  begin(me, 0, me->rank == 0 ? 77 : 55);
  ck_assert_int_eq(tt_bootstrap_barrier(me->bootstrap), ncclSuccess);
  if (me->rank == 0) tt_health_stalled(me->health);
  ncclResult_t result = wait_for_trouble(me);
  ck_assert_int_eq(result, ncclInvalidUsage);
  expect_words("77");
  expect_words("55");
  if (me->rank != 0 && report) tt_health_failed(me->health, result, tt_log_thread_error());
  if (me->rank != 0) tt_health_leave(me->health);
}

static void one_waits_others_fail(struct rank *me)
{
  one_waits(me, true);
}

static void one_waits_others_leave(struct rank *me)
{
  one_waits(me, false);
}

START_TEST(who_stalled_first_hears_of_the_disagreement)
{
  run(one_waits_others_fail);
  run(one_waits_others_leave);
}
END_TEST

static void all_agree(struct rank *me)
{
  for (uint64_t sequence = 0; sequence < 200; sequence++) {
    begin(me, sequence, sequence * 3);
    if (sequence % 7 == (uint64_t)me->rank) tt_health_stalled(me->health);
  }
  ck_assert_int_eq(tt_bootstrap_barrier(me->bootstrap), ncclSuccess);
  usleep(50000);
  ck_assert_int_eq(tt_health_check(me->health, true), ncclSuccess);
}

START_TEST(agreement_is_no_trouble)
{
  run(all_agree);
}
END_TEST

/* A rank that leaves in order after fewer collectives than the others begin is what they wait for in vain. */
static void one_leaves_early(struct rank *me)
{
  begin(me, 0, 10);
  if (me->rank == 1) {
    tt_health_leave(me->health);
    return;
  }
  begin(me, 1, 10);
  ck_assert_int_eq(wait_for_trouble(me), ncclInvalidUsage);
  expect_words("rank 1");
}

START_TEST(leaving_too_early)
{
  run(one_leaves_early);
}
END_TEST

/* A death that a rank sees, at times of the test's. */
#define MS UINT64_C(1000000)
static _Thread_local uint64_t clock_ns;             /* 0: it is as late as it is, and nobody has died */
static _Thread_local struct tt_health *looked_past; /* by whom it is looked at between this look's begin and its end */

uint64_t __real_tt_timer_ns(void);
uint64_t __wrap_tt_timer_ns(void);
uint64_t __wrap_tt_timer_ns(void)
{
  return clock_ns ? clock_ns : __real_tt_timer_ns();
}

bool __real_tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t size);
bool __wrap_tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t size);
bool __wrap_tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t size)
{
  if (clock_ns == 0) return __real_tt_bootstrap_dead(bootstrap, rank, why, size);
  struct tt_health *health = looked_past;
  looked_past = NULL;
  clock_ns += MS;
  if (health) ck_assert_int_eq(tt_health_check(health, true), ncclSuccess); /* as another thread would */
  clock_ns += MS;
  *rank = 1;
  snprintf(why, size, "is gone");
  return true;
}

static void one_dies(struct rank *me)
{
  if (me->rank != 0) return;
  clock_ns = 1000 * MS;
  looked_past = me->health;
  ck_assert_int_eq(tt_health_check(me->health, true), ncclSuccess);
  clock_ns += 50 * MS;
  ck_assert_int_eq(tt_health_check(me->health, true), ncclSuccess);
  clock_ns += 100 * MS;
  ck_assert_int_eq(tt_health_check(me->health, true), ncclRemoteError);
  expect_words("rank 1 is gone");
  clock_ns = 0;
}

/* What the dead one has sent before is waited for, by whichever thread it was noticed. */
START_TEST(a_death_is_an_error_a_little_later)
{
  run(one_dies);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("health");
  TCase *tests = tcase_create("health");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, a_failure_reaches_all);
  tcase_add_test(tests, a_disagreement_is_named);
  tcase_add_test(tests, an_earlier_disagreement_is_named);
  tcase_add_test(tests, all_threads_are_told);
  tcase_add_test(tests, who_is_late_compares_then);
  tcase_add_test(tests, who_is_late_in_an_earlier_one);
  tcase_add_test(tests, who_stalled_first_hears_of_the_disagreement);
  tcase_add_test(tests, agreement_is_no_trouble);
  tcase_add_test(tests, leaving_too_early);
  tcase_add_test(tests, a_death_is_an_error_a_little_later);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
