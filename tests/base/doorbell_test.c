/* Ringing and sleeping, between threads and processes. */
#include "support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/doorbell.h"
#include "base/timer.h"

/* Long enough that a lost ring shows as a test that takes minutes, short enough that it still ends. */
#define BOUND_USEC 5000000
#define ROUNDS 2000

struct side {
  struct tt_doorbell bell;
  _Atomic uint64_t count;
};

struct table {
  struct side sides[2];
  _Atomic uint64_t slow; /* waits that reached the bound */
};

static void wait_for(struct table *table, struct side *side, uint64_t value)
{
  struct tt_doorbell *bells[] = {&side->bell};
  struct tt_waiter waiter;
  tt_waiter_init(&waiter, bells, 1, 1);
  uint64_t start = tt_timer_ns();
  while (atomic_load_explicit(&side->count, memory_order_acquire) < value) tt_waiter_idle(&waiter, BOUND_USEC);
  tt_waiter_done(&waiter);
  if (tt_timer_ns() - start >= BOUND_USEC * 1000ull) atomic_fetch_add(&table->slow, 1);
}

static void play(struct table *table, int own)
{
  struct side *mine = &table->sides[own], *theirs = &table->sides[!own];
  for (uint64_t i = 1; i <= ROUNDS; i++) {
    if (own == 1) wait_for(table, mine, i);
    atomic_fetch_add_explicit(&theirs->count, 1, memory_order_release);
    tt_doorbell_ring(&theirs->bell);
    if (own == 0) wait_for(table, mine, i);
  }
}

static const char *const spins[] = {"0", "5", "200", "-1"};

/* A ring is never lost: with a bound of seconds, not one of thousands of hand-overs may take so long. */
START_TEST(processes)
{
  set_variable("TUTTI_SPIN_USEC", spins[_i]);
  struct table *table = zone_of_zeros(sizeof(*table));
  pid_t child = fork();
  if (child == 0) {
    play(table, 1);
    _exit(0);
  }
  play(table, 0);
  int status;
  waitpid(child, &status, 0);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ck_assert_uint_eq(atomic_load(&table->slow), 0);
}
END_TEST

static void *play_second(void *arg)
{
  play(arg, 1);
  return NULL;
}

START_TEST(two_threads)
{
  set_variable("TUTTI_SPIN_USEC", spins[_i]);
  struct table *table = zone_of_zeros(sizeof(*table));
  pthread_t thread;
  pthread_create(&thread, NULL, play_second, table);
  play(table, 0);
  pthread_join(thread, NULL);
  ck_assert_uint_eq(atomic_load(&table->slow), 0);
}
END_TEST

START_TEST(sleeps_are_bounded)
{
  struct tt_doorbell bells[3];
  struct tt_doorbell *list[] = {&bells[0], &bells[1], &bells[2]};
  memset(bells, 0, sizeof(bells));
  for (int count = 0; count <= 3; count++) {
    struct tt_waiter waiter;
    tt_waiter_init(&waiter, list, count, 1);
    uint64_t start = tt_timer_ns();
    while (tt_timer_ns() - start < 20000000u) tt_waiter_idle(&waiter, 3000);
    /* A busy machine may not have let it come that far. */
    while (count > 0 && !waiter.armed && tt_timer_ns() - start < 60000000000u) tt_waiter_idle(&waiter, 3000);
    if (count > 0) {
      ck_assert(waiter.armed);
      ck_assert_uint_eq(atomic_load(&bells[0].sleeping), 1);
    }
    tt_waiter_done(&waiter);
    for (int i = 0; i < 3; i++) ck_assert_uint_eq(atomic_load(&bells[i].sleeping), 0);
  }
}
END_TEST

/* The waiter looks once more between arming and sleeping, and a ring in between ends the sleep at once. */
START_TEST(ring_between_arm_and_sleep)
{
  struct tt_doorbell bell;
  struct tt_doorbell *list[] = {&bell};
  struct tt_waiter waiter;
  memset(&bell, 0, sizeof(bell));
  set_variable("TUTTI_SPIN_USEC", "0");
  tt_waiter_init(&waiter, list, 1, 1);
  while (!waiter.armed) tt_waiter_idle(&waiter, BOUND_USEC);
  tt_doorbell_ring(&bell);
  ck_assert_uint_eq(atomic_load(&bell.word), 1);
  uint64_t start = tt_timer_ns();
  tt_waiter_idle(&waiter, BOUND_USEC);
  ck_assert_uint_lt(tt_timer_ns() - start, BOUND_USEC * 1000ull);
  /* Armed again: the ring was used up. */
  ck_assert_uint_eq(atomic_load(&bell.sleeping), 1);
  tt_waiter_progress(&waiter);
  ck_assert(!waiter.armed);
  ck_assert_uint_eq(atomic_load(&bell.sleeping), 0);
  tt_doorbell_ring(&bell); /* nobody sleeps: costs nothing */
  ck_assert_uint_eq(atomic_load(&bell.word), 1);
  tt_doorbell_ring(NULL);
}
END_TEST

/* Who polls does not sleep while a message of a network may be on its way, if there is room; in a crowd it does as soon
 * as others. */
START_TEST(polling_looks_for_longer)
{
  struct tt_doorbell bell;
  struct tt_doorbell *list[] = {&bell};
  struct tt_waiter waiter;
  memset(&bell, 0, sizeof(bell));
  set_variable("TUTTI_SPIN_USEC", "0");
  tt_waiter_init(&waiter, list, 1, 100000);
  int crowded = waiter.look_usec;
  tt_waiter_init(&waiter, list, 1, 1);
  ck_assert_int_gt(waiter.look_usec, 4 * crowded);
  uint64_t look = (uint64_t)waiter.look_usec * 1000u, start = tt_timer_ns();
  while (!waiter.armed) tt_waiter_idle_polled(&waiter);
  ck_assert_uint_ge(tt_timer_ns() - start, look);
  ck_assert_uint_eq(atomic_load(&bell.sleeping), 1);
  tt_waiter_done(&waiter);
  /* However long the wait, no sleep is long. With no bell to arm each call from here on sleeps. */
  tt_waiter_init(&waiter, NULL, 0, 1);
  waiter.idle_since = 1;
  start = tt_timer_ns();
  for (int i = 0; i < 20; i++) tt_waiter_idle_polled(&waiter);
  ck_assert_uint_lt(tt_timer_ns() - start, BOUND_USEC * 1000ull);
  tt_waiter_done(&waiter);
}
END_TEST

struct later {
  struct tt_doorbell *bell;
  _Atomic bool *flag;
};

static void *ring_later(void *arg)
{
  struct later *later = arg;
  usleep(30000);
  atomic_store(later->flag, true);
  tt_doorbell_ring(later->bell);
  return NULL;
}

/* Any one of several doorbells ends the sleep. */
START_TEST(several)
{
  enum { COUNT = 5 };
  struct tt_doorbell bells[COUNT];
  struct tt_doorbell *list[COUNT];
  memset(bells, 0, sizeof(bells));
  for (int i = 0; i < COUNT; i++) list[i] = &bells[i];
  for (int i = 0; i < COUNT; i++) {
    _Atomic bool flag = false;
    struct later later = {list[i], &flag};
    struct tt_waiter waiter;
    pthread_t thread;
    tt_waiter_init(&waiter, list, COUNT, 1);
    pthread_create(&thread, NULL, ring_later, &later);
    uint64_t start = tt_timer_ns();
    while (!atomic_load(&flag)) tt_waiter_idle(&waiter, BOUND_USEC);
    ck_assert_uint_lt(tt_timer_ns() - start, BOUND_USEC * 1000ull);
    tt_waiter_done(&waiter);
    pthread_join(thread, NULL);
  }
}
END_TEST

Suite *doorbell_suite(void)
{
  Suite *suite = suite_create("doorbells");
  TCase *one = clean_case(suite, "doorbells");
  tcase_add_loop_test(one, processes, 0, (int)TT_COUNT(spins));
  tcase_add_loop_test(one, two_threads, 0, (int)TT_COUNT(spins));
  tcase_add_test(one, sleeps_are_bounded);
  tcase_add_test(one, ring_between_arm_and_sleep);
  tcase_add_test(one, polling_looks_for_longer);
  tcase_add_test(one, several);
  return suite;
}
