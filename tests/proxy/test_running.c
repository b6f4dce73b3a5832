/* Connections that are free running: nothing is announced, what the network loses matters only to who waits for it, and
 * a thread moves them. */
#include <check.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "device.h"
#include "proxy/link.h"
#include "proxy/thread.h"

#define STEPS 100
#define LONG_TURNS 2000000

static void open_running(struct end ends[2], const struct fake_mood *mood, uint64_t first)
{
  ends_run_freely(true);
  ends_open(ends, mood, first, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  ends_run_freely(false);
}

static void progress(struct end *end)
{
  bool moved, idle;
  ck_assert_int_eq(tt_proxy_progress(end->proxy, &moved, &idle), ncclSuccess);
  ck_assert_msg(idle, "what is free running is never waited for");
}

/* All steps arrive, in whatever order the two sides come to act; receives are there for all slots that are free. */
static void run_steps(const struct fake_mood *mood, uint64_t first)
{
  struct end ends[2];
  unsigned seed = mood->seed;
  open_running(ends, mood, first);
  for (long turns = 0; ends[1].conn.step != first + STEPS; turns++) {
    ck_assert_int_lt(turns, LONG_TURNS);
    struct end *end = &ends[rand_r(&seed) % 2];
    if (rand_r(&seed) % 2)
      progress(end);
    else if (!end->send)
      device_recv(end, TT_PROTO_SIMPLE);
    else if (end->conn.step != first + STEPS)
      device_send(end, TT_PROTO_SIMPLE);
  }
  for (long turns = 0; !tt_proxy_quiet(ends[0].proxy); turns++) {
    ck_assert_int_lt(turns, LONG_TURNS);
    progress(&ends[0]);
  }
  for (int i = 0; i < 1000; i++) progress(&ends[1]);
  struct fake_count count = fake_counts();
  ck_assert(!ends[1].wrong_data);
  ck_assert_int_eq(count.faults, 0);
  ck_assert_int_eq(count.sends, STEPS);
  ck_assert_int_eq(count.recvs, STEPS + TT_SLOTS);
  ck_assert_uint_eq(ends[0].head, first + STEPS);
  ends_close(ends);
  count = fake_counts();
  ck_assert_int_eq(count.registered, 0);
  ck_assert_int_eq(count.closed, 2);
  ck_assert_int_eq(count.closed_in_flight, TT_SLOTS);
}

START_TEST(all_moods)
{
  for (unsigned seed = 0; seed < 10; seed++) {
    struct fake_mood mood = {.null_percent = 50, .slow_percent = 50, .seed = seed};
    run_steps(&mood, 0);
    run_steps(&mood, UINT64_MAX - 7 - seed * 11);
    run_steps(&mood, (uint64_t)UINT32_MAX - seed * 13);
  }
}
END_TEST

START_TEST(quiet_and_looks)
{
  struct end ends[2];
  struct tt_proxy_state state;
  struct tt_proxy_unsent before, unsent;
  open_running(ends, &(struct fake_mood){.in_order = true}, 5);
  ck_assert(tt_proxy_runs(ends[0].proxy));
  ck_assert(tt_proxy_quiet(ends[0].proxy));
  ck_assert(tt_proxy_look_unsent(ends[0].proxy, &before));
  ck_assert_int_eq(before.peer, -1);
  ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  ck_assert(!tt_proxy_quiet(ends[0].proxy));
  ck_assert(tt_proxy_look_unsent(ends[0].proxy, &unsent));
  ck_assert_int_eq(unsent.peer, 7);
  ck_assert_uint_eq(unsent.moves, before.moves);
  ck_assert(tt_proxy_look(ends[0].proxy, ends[0].proxied, &state));
  ck_assert_int_eq(state.active, 1);
  ck_assert_uint_eq(state.posted, 5);
  ck_assert_uint_eq(state.expected, 6);
  for (int i = 0; i < 3; i++) progress(&ends[0]);
  ck_assert(tt_proxy_quiet(ends[0].proxy));
  ck_assert(tt_proxy_look_unsent(ends[0].proxy, &unsent));
  ck_assert_int_eq(unsent.peer, -1);
  ck_assert_uint_gt(unsent.moves, before.moves);
  ck_assert(tt_proxy_look(ends[0].proxy, ends[0].proxied, &state));
  ck_assert_int_eq(state.active, 0);
  ck_assert_uint_eq(state.done, 6);
  /* What a launch announces to other connections means nothing to these. */
  ck_assert_int_eq(tt_proxy_expect(ends[0].proxied, TT_PROTO_SIMPLE, 3), ncclSuccess);
  ck_assert(tt_proxy_quiet(ends[0].proxy));
  tt_proxy_conn_destroy(ends[0].proxied);
  ck_assert(!tt_proxy_runs(ends[0].proxy));
  ends_close(ends);
}
END_TEST

/* A network that fails while receives are posted ahead fails nobody but who waits for a message, and says so once. */
START_TEST(lost_receives)
{
  static const enum fake_call calls[] = {FAKE_IRECV, FAKE_TEST};
  for (int i = 0; i < 2; i++) {
    struct end ends[2];
    open_running(ends, &(struct fake_mood){.in_order = true, .failing = calls[i], .fail_after = 3}, 0);
    for (int k = 0; k < 2; k++) ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
    ck_assert_int_eq(tt_proxy_lost(ends[1].proxy, -1), ncclSuccess);
    tt_log_remember("nothing");
    for (int k = 0; k < 20; k++) progress(&ends[1]);
    if (calls[i] == FAKE_IRECV) usleep(1100000); /* what was posted before may still come */
    ck_assert_int_eq(tt_proxy_lost(ends[1].proxy, 2), ncclSuccess);
    ck_assert_int_ne(tt_proxy_lost(ends[1].proxy, 3), ncclSuccess);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "receiving from rank 3 via NET/Fake/0"));
    ck_assert_int_ne(tt_proxy_lost(ends[1].proxy, -1), ncclSuccess);
    ends_close(ends);
  }
}
END_TEST

/* The other end may have left after its last message, of which parts are on their way when the network takes no further
 * receive: it is shown when it has come. */
START_TEST(message_under_way_at_a_refused_receive)
{
  struct end ends[2];
  struct fake_mood mood = {.in_order = true};
  open_running(ends, &mood, 0);
  ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  while (!tt_proxy_quiet(ends[0].proxy)) progress(&ends[0]);
  while (ends[1].tail == 0) progress(&ends[1]);
  ck_assert(device_recv(&ends[1], TT_PROTO_SIMPLE)); /* a slot is free */
  ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  while (!tt_proxy_quiet(ends[0].proxy)) progress(&ends[0]);
  mood.failing = FAKE_IRECV;
  mood.slow_percent = 100;
  fake_set_mood(&mood);
  for (int i = 0; i < 10; i++) progress(&ends[1]);
  ck_assert_uint_eq(ends[1].tail, 1);
  mood.slow_percent = 0;
  fake_set_mood(&mood);
  for (int i = 0; i < 10; i++) progress(&ends[1]);
  ck_assert_uint_eq(ends[1].tail, 2);
  ck_assert(device_recv(&ends[1], TT_PROTO_SIMPLE));
  ck_assert(!ends[1].wrong_data);
  mood.failing = FAKE_TEST; /* nor does the network bring anything any more: that is known at once */
  fake_set_mood(&mood);
  progress(&ends[1]);
  ck_assert_int_ne(tt_proxy_lost(ends[1].proxy, 3), ncclSuccess);
  ends_close(ends);
}
END_TEST

/* What is to be sent and cannot be is a failure at once. */
START_TEST(lost_sends)
{
  struct end ends[2];
  bool moved, idle;
  ncclResult_t result = ncclSuccess;
  open_running(ends, &(struct fake_mood){.in_order = true, .failing = FAKE_ISEND, .fail_after = 1}, 0);
  for (int k = 0; k < 2; k++) ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  for (int k = 0; k < 5 && result == ncclSuccess; k++) result = tt_proxy_progress(ends[0].proxy, &moved, &idle);
  ck_assert_int_ne(result, ncclSuccess);
  ck_assert_int_eq(tt_proxy_lost(ends[0].proxy, -1), ncclSuccess);
  ends_close(ends);
}
END_TEST

START_TEST(what_cannot_run_freely)
{
  struct end ends[2];
  void *comms[2];
  struct tt_proxy_conn *conn;
  ends_open(ends, &(struct fake_mood){.in_order = true}, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  for (int e = 0; e < 2; e++) tt_proxy_conn_destroy(ends[e].proxied);
  fake_open(&(struct fake_mood){.in_order = true}, &comms[0], &comms[1]);
  struct tt_proxy_conn_config config = end_config(&ends[0], comms[0]);
  config.free_running = true;
  ck_assert_int_eq(tt_proxy_conn_create(ends[0].proxy, &config, &conn), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "several protocols"));
  config.pool_units = 2;
  ck_assert_int_eq(tt_proxy_conn_create(ends[0].proxy, &config, &conn), ncclInternalError);
  ck_assert_int_eq(fake_counts().registered, 0);
  tt_net_close_send(fake_net(), comms[0]);
  tt_net_close_recv(fake_net(), comms[1]);
  ends_close(ends);
}
END_TEST

/* ---- The thread ---- */

struct side {
  struct tt_doorbell bell;
  struct tt_proxy_thread *thread;
  _Atomic int failures;
  _Atomic bool over;
};

static void failed(void *context, ncclResult_t result)
{
  struct side *side = context;
  ck_assert_int_ne(result, ncclSuccess);
  side->failures++;
}

static bool is_over(void *context)
{
  return ((struct side *)context)->over;
}

static void start_thread(struct side *side, struct end *end)
{
  struct tt_proxy_thread_config config = {.proxy = end->proxy,
                                          .bell = &side->bell,
                                          .crowd = 2,
                                          .device = -1,
                                          .failed = failed,
                                          .over = is_over,
                                          .context = side};
  memset(side, 0, sizeof *side);
  ck_assert_int_eq(tt_proxy_thread_start(&config, &side->thread), ncclSuccess);
}

/* With pauses in which the threads go to sleep; some are ended by a launch, others by nothing but data. */
START_TEST(threads)
{
  struct end ends[2];
  struct side sides[2];
  open_running(ends, &(struct fake_mood){.null_percent = 20, .slow_percent = 20, .seed = 3}, 0);
  for (int e = 0; e < 2; e++) start_thread(&sides[e], &ends[e]);
  for (uint64_t step = 0; step < STEPS; step++) {
    if (step % 20 == 0) usleep(20000);
    if (step % 40 == 0) tt_proxy_thread_wake(sides[0].thread);
    while (!device_send(&ends[0], TT_PROTO_SIMPLE)) sched_yield();
    if (step % 3 == 0) continue;
    while (!device_recv(&ends[1], TT_PROTO_SIMPLE)) sched_yield();
  }
  while (ends[1].conn.step != STEPS)
    if (!device_recv(&ends[1], TT_PROTO_SIMPLE)) sched_yield();
  while (!tt_proxy_quiet(ends[0].proxy)) sched_yield();
  for (int e = 0; e < 2; e++) tt_proxy_thread_end(sides[e].thread);
  ck_assert(!ends[1].wrong_data);
  ck_assert_int_eq(sides[0].failures + sides[1].failures, 0);
  ends_close(ends);
}
END_TEST

START_TEST(threads_that_fail_or_are_over)
{
  struct end ends[2];
  struct side sides[2];
  open_running(ends, &(struct fake_mood){.in_order = true, .failing = FAKE_ISEND, .fail_after = 0}, 0);
  for (int e = 0; e < 2; e++) start_thread(&sides[e], &ends[e]);
  ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  while (sides[0].failures == 0) usleep(100);
  sides[1].over = true;
  for (int e = 0; e < 2; e++) tt_proxy_thread_end(sides[e].thread);
  ck_assert_int_eq(sides[0].failures, 1);
  ck_assert_int_eq(sides[1].failures, 0);
  ends_close(ends);
}
END_TEST

void add_running(Suite *suite);
void add_running(Suite *suite)
{
  TCase *tcase = tcase_create("running");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, all_moods);
  tcase_add_test(tcase, quiet_and_looks);
  tcase_add_test(tcase, lost_receives);
  tcase_add_test(tcase, message_under_way_at_a_refused_receive);
  tcase_add_test(tcase, lost_sends);
  tcase_add_test(tcase, what_cannot_run_freely);
  tcase_add_test(tcase, threads);
  tcase_add_test(tcase, threads_that_fail_or_are_over);
  suite_add_tcase(suite, tcase);
}
