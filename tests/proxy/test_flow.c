/* Slots arrive, whole, once, in order, whatever the network's mood. */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include "device.h"

/* A schedule of operations that both ends know. */
#define OPERATIONS 40
struct operation {
  int protocol;
  uint64_t steps;
};

static void make_operations(struct operation *operations, unsigned seed, bool simple_only)
{
  for (int i = 0; i < OPERATIONS; i++) {
    operations[i].protocol = simple_only || rand_r(&seed) % 2 ? TT_PROTO_SIMPLE : TT_PROTO_LL;
    operations[i].steps = rand_r(&seed) % 20;
  }
}

/* One end's progress through the operations. */
struct cursor {
  int operation;
  uint64_t left;
};

static bool device_step(struct end *end, const struct operation *operations, struct cursor *cursor)
{
  while (cursor->operation < OPERATIONS && cursor->left == 0) {
    cursor->operation++;
    if (cursor->operation < OPERATIONS) cursor->left = operations[cursor->operation].steps;
  }
  if (cursor->operation == OPERATIONS) return false;
  int protocol = operations[cursor->operation].protocol;
  bool moved = end->send ? device_send(end, protocol) : device_recv(end, protocol);
  cursor->left -= moved;
  return moved;
}

static void take_figures(void *context, const struct tt_proxy_figures *figures)
{
  struct tt_proxy_figures *taken = context;
  ck_assert_uint_eq(taken->steps, 0); /* there is one connection */
  *taken = *figures;
}

static void run_with_pool(int pool, const struct fake_mood *mood, uint64_t first, int send_mode, int recv_mode)
{
  ends_use_pool(pool);
  struct end ends[2];
  struct operation operations[OPERATIONS];
  struct cursor cursors[2] = {{-1, 0}, {-1, 0}};
  int expected[2] = {0, 0};
  uint64_t moved_bytes[2];
  unsigned seed = mood->seed;
  make_operations(operations, seed, send_mode != TT_FIFO_NORMAL || recv_mode != TT_FIFO_NORMAL);
  ends_open(ends, mood, first, send_mode, recv_mode);
  uint64_t total = 0;
  for (int i = 0; i < OPERATIONS; i++) total += operations[i].steps;
  bool finished = false;
  long turns = 0;
  while (!finished) {
    ck_assert_int_lt(turns++, 2000000);
    int e = (int)(rand_r(&seed) % 2);
    bool moved, idle;
    switch (rand_r(&seed) % 4) {
    case 0: /* the next operation is announced, sometimes long before the device comes to it */
      if (expected[e] < OPERATIONS && (expected[e] <= cursors[e].operation + 1 || rand_r(&seed) % 8 == 0)) {
        const struct operation *next = &operations[expected[e]++];
        ck_assert_int_eq(tt_proxy_expect(ends[e].proxied, next->protocol, next->steps), ncclSuccess);
      }
      break;
    case 1:
      device_step(&ends[e], operations, &cursors[e]);
      break;
    default:
      ck_assert_int_eq(tt_proxy_progress(ends[e].proxy, &moved, &idle), ncclSuccess);
    }
    finished = expected[0] == OPERATIONS && expected[1] == OPERATIONS;
    for (e = 0; e < 2 && finished; e++) {
      ck_assert_int_eq(tt_proxy_progress(ends[e].proxy, &moved, &idle), ncclSuccess);
      finished = idle && ends[e].conn.step == first + total;
    }
  }
  ck_assert(!ends[1].wrong_data);
  ck_assert_uint_eq(ends[1].head, first + total);
  ck_assert_uint_eq(ends[0].head, first + total - (pool ? TT_SLOTS : 0));
  struct fake_count count = fake_counts();
  ck_assert_int_eq(count.faults, 0);
  ck_assert_int_eq(count.sends, (int)total);
  ck_assert_int_eq(count.recvs, (int)total);
  ck_assert_int_eq(count.in_flight, 0);
  ck_assert_int_eq(count.tag, 3);
  if (!pool) ck_assert_int_eq(count.registered, 4); /* two protocols, two ends */
  if (pool) ck_assert_int_le(count.registered, 2);  /* one slab, two ends; no spare is left */
  for (int e = 0; e < 2 && pool; e++) {
    struct tt_proxy_state state;
    ck_assert(tt_proxy_look(ends[e].proxy, NULL, &state));
    ck_assert_uint_le(state.pool_bytes, (size_t)pool * SIMPLE_SLOT + 64);
    ck_assert_uint_gt(state.pool_bytes, 0);
  }
  for (int e = 0; e < 2; e++) {
    struct tt_proxy_figures figures = {0};
    uint64_t timed = 0;
    for (uint64_t step = first; step != first + total; step++) timed += step % TT_SLOTS == 0;
    ck_assert(tt_proxy_each_figures(ends[e].proxy, take_figures, &figures));
    ck_assert(figures.send == (e == 0));
    ck_assert_ptr_nonnull(figures.comm);
    ck_assert_uint_eq(figures.steps, total);
    ck_assert_uint_eq(figures.timed, timed);
    ck_assert_uint_ge(figures.bytes, total * TT_SLOT_HEADER);
    ck_assert_uint_le(figures.bytes, figures.room);
    ck_assert_uint_ge(figures.open, total);
    ck_assert_uint_le(figures.open, total * TT_SLOTS);
    ck_assert_uint_le(figures.most_ns, figures.ns);
    moved_bytes[e] = figures.bytes;
  }
  ck_assert_uint_eq(moved_bytes[0], moved_bytes[1]);
  ends_close(ends);
  count = fake_counts();
  ck_assert_int_eq(count.registered, 0);
  ck_assert_int_eq(count.closed, 2);
  ck_assert_int_eq(count.closed_in_flight, 0);
  ck_assert_int_eq(count.faults, 0);
}

static void run_schedule(const struct fake_mood *mood, uint64_t first, int send_mode, int recv_mode)
{
  run_with_pool(0, mood, first, send_mode, recv_mode);
}

/* Time counts from when something is announced until it is through; what lies between does not. */
START_TEST(busy)
{
  const struct fake_mood mood = {.seed = 1};
  const struct timespec pause = {.tv_nsec = 5000000};
  struct tt_proxy_state state[3];
  struct end ends[2];
  bool moved, idle[2] = {false, false};
  ends_open(ends, &mood, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  ck_assert(tt_proxy_look(ends[1].proxy, NULL, &state[0]));
  ck_assert_uint_eq(state[0].busy_ns, 0);
  for (int e = 0; e < 2; e++) ck_assert_int_eq(tt_proxy_expect(ends[e].proxied, TT_PROTO_SIMPLE, 1), ncclSuccess);
  nanosleep(&pause, NULL);
  ck_assert(tt_proxy_look(ends[1].proxy, NULL, &state[0])); /* while it lasts */
  ck_assert_uint_ge(state[0].busy_ns, 5000000);
  for (int turns = 0; !idle[0] || !idle[1]; turns++) {
    ck_assert_int_lt(turns, 1000000);
    for (int e = 0; e < 2; e++) {
      if (ends[e].conn.step == 0)
        e == 0 ? device_send(&ends[e], TT_PROTO_SIMPLE) : device_recv(&ends[e], TT_PROTO_SIMPLE);
      ck_assert_int_eq(tt_proxy_progress(ends[e].proxy, &moved, &idle[e]), ncclSuccess);
    }
  }
  ck_assert(tt_proxy_look(ends[1].proxy, NULL, &state[1]));
  nanosleep(&pause, NULL);
  ck_assert(tt_proxy_look(ends[1].proxy, NULL, &state[2]));
  ck_assert_uint_ge(state[1].busy_ns, state[0].busy_ns);
  ck_assert_uint_eq(state[2].busy_ns, state[1].busy_ns);
  ends_close(ends);
}
END_TEST

/* Slots of a pool, down to one slot for all. */
START_TEST(pooled)
{
  static const int pools[] = {1, 2, 3, 8};
  for (unsigned i = 0; i < 4; i++)
    for (unsigned seed = 0; seed < 2; seed++) {
      struct fake_mood mood = {.null_percent = 50, .slow_percent = 50, .seed = seed};
      run_with_pool(pools[i], &mood, UINT64_MAX - 7 - seed * 11, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
    }
}
END_TEST

START_TEST(calm)
{
  run_schedule(&(struct fake_mood){.in_order = true, .seed = 1}, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
}
END_TEST

START_TEST(requests_refused)
{
  for (unsigned seed = 0; seed < 20; seed++)
    run_schedule(&(struct fake_mood){.null_percent = 90, .slow_percent = 30, .seed = seed}, 0, TT_FIFO_NORMAL,
                 TT_FIFO_NORMAL);
}
END_TEST

START_TEST(completion_out_of_order)
{
  for (unsigned seed = 100; seed < 120; seed++)
    run_schedule(&(struct fake_mood){.null_percent = 10, .slow_percent = 80, .seed = seed}, 5, TT_FIFO_NORMAL,
                 TT_FIFO_NORMAL);
}
END_TEST

START_TEST(counters_wrap)
{
  for (unsigned seed = 0; seed < 10; seed++) {
    struct fake_mood mood = {.null_percent = 50, .slow_percent = 50, .seed = seed};
    run_schedule(&mood, UINT64_MAX - 7 - seed * 11, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
    run_schedule(&mood, (uint64_t)UINT32_MAX - seed * 13, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  }
}
END_TEST

START_TEST(offsets_and_pointers)
{
  static const int modes[] = {TT_FIFO_NORMAL, TT_FIFO_OFFSET, TT_FIFO_POINTER};
  for (int s = 0; s < 3; s++)
    for (int r = 0; r < 3; r++)
      run_schedule(&(struct fake_mood){.null_percent = 50, .slow_percent = 50, .seed = (unsigned)(s * 3 + r)}, 0,
                   modes[s], modes[r]);
}
END_TEST

static void progress(struct end *end, int times)
{
  bool moved, idle;
  for (int i = 0; i < times; i++) ck_assert_int_eq(tt_proxy_progress(end->proxy, &moved, &idle), ncclSuccess);
}

/* Nobody takes what has come: receives stop at the FIFO's end, and so do the sender's slots. */
START_TEST(back_pressure)
{
  struct end ends[2];
  ends_open(ends, &(struct fake_mood){.in_order = true}, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  for (int e = 0; e < 2; e++) ck_assert_int_eq(tt_proxy_expect(ends[e].proxied, TT_PROTO_SIMPLE, 100), ncclSuccess);
  int sent = 0;
  for (int i = 0; i < 200; i++) {
    sent += device_send(&ends[0], TT_PROTO_SIMPLE);
    progress(&ends[0], 1);
    progress(&ends[1], 1);
  }
  ck_assert_int_eq(fake_counts().recvs, TT_SLOTS);
  ck_assert_uint_eq(ends[1].tail, TT_SLOTS);
  ck_assert(device_recv(&ends[1], TT_PROTO_SIMPLE));
  progress(&ends[1], 2);
  ck_assert_int_eq(fake_counts().recvs, TT_SLOTS + 1);
  ck_assert_int_eq(sent, 100 + TT_SLOTS); /* the fake wire takes all that is expected; the device is held by its FIFO */
  ends_close(ends);
}
END_TEST

/* Slots beyond what is expected stay where they are, on both ends. */
START_TEST(no_more_than_expected)
{
  struct end ends[2];
  bool moved, idle;
  ends_open(ends, &(struct fake_mood){.in_order = true}, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  for (int i = 0; i < 5; i++) ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  ck_assert_int_eq(tt_proxy_progress(ends[0].proxy, &moved, &idle), ncclSuccess);
  ck_assert(!moved && idle);
  ck_assert_int_eq(tt_proxy_expect(ends[0].proxied, TT_PROTO_SIMPLE, 0), ncclSuccess);
  ck_assert_int_eq(tt_proxy_expect(ends[0].proxied, TT_PROTO_SIMPLE, 3), ncclSuccess);
  ck_assert_int_eq(tt_proxy_progress(ends[0].proxy, &moved, &idle), ncclSuccess);
  ck_assert(moved && idle);
  ck_assert_int_eq(fake_counts().sends, 3);
  ck_assert_int_eq(tt_proxy_expect(ends[1].proxied, TT_PROTO_SIMPLE, 2), ncclSuccess);
  ck_assert_int_eq(tt_proxy_progress(ends[1].proxy, &moved, &idle), ncclSuccess);
  ck_assert(moved && idle);
  ck_assert_int_eq(fake_counts().recvs, 2);
  ck_assert_int_eq(tt_proxy_expect(ends[1].proxied, TT_PROTO_SIMPLE, 2), ncclSuccess);
  ck_assert_int_eq(tt_proxy_progress(ends[1].proxy, &moved, &idle), ncclSuccess);
  ck_assert(moved && !idle); /* the fourth was never sent */
  ends_close(ends);
}
END_TEST

/* Several threads drive both proxies while devices run in threads of their own. */
struct team {
  struct end ends[2];
  struct operation operations[OPERATIONS];
  _Atomic int devices_left;
};

static void *run_device(void *arg)
{
  struct end *end = arg;
  struct team *team = (struct team *)(void *)((char *)(end - (end->send ? 0 : 1)) - offsetof(struct team, ends));
  struct cursor cursor = {-1, 0};
  for (int i = 0; i < OPERATIONS; i++)
    if (tt_proxy_expect(end->proxied, team->operations[i].protocol, team->operations[i].steps) != ncclSuccess)
      return end;
  while (cursor.operation < OPERATIONS)
    if (!device_step(end, team->operations, &cursor)) sched_yield();
  bool moved, idle = false;
  while (!idle)
    if (tt_proxy_progress(end->proxy, &moved, &idle) != ncclSuccess) return end;
  atomic_fetch_sub(&team->devices_left, 1);
  return NULL;
}

static void *run_driver(void *arg)
{
  struct team *team = arg;
  bool moved, idle;
  while (atomic_load(&team->devices_left) > 0) {
    for (int e = 0; e < 2; e++)
      if (tt_proxy_progress(team->ends[e].proxy, &moved, &idle) != ncclSuccess) return arg;
    sched_yield();
  }
  return NULL;
}

START_TEST(threads)
{
  struct team team = {.devices_left = 2};
  make_operations(team.operations, 4, false);
  ends_open(team.ends, &(struct fake_mood){.null_percent = 30, .slow_percent = 30, .seed = 4}, 0, TT_FIFO_NORMAL,
            TT_FIFO_NORMAL);
  pthread_t ids[4];
  for (int i = 0; i < 4; i++) {
    void *arg = i < 2 ? (void *)&team.ends[i] : (void *)&team;
    ck_assert_int_eq(pthread_create(&ids[i], NULL, i < 2 ? run_device : run_driver, arg), 0);
  }
  for (int i = 0; i < 4; i++) {
    void *failed;
    pthread_join(ids[i], &failed);
    ck_assert_ptr_null(failed);
  }
  ck_assert(!team.ends[1].wrong_data);
  ck_assert_int_eq(fake_counts().faults, 0);
  ends_close(team.ends);
}
END_TEST

void add_flow(Suite *suite)
{
  TCase *tc = tcase_create("flow");
  tcase_set_timeout(tc, 300);
  tcase_add_test(tc, calm);
  tcase_add_test(tc, busy);
  tcase_add_test(tc, pooled);
  tcase_add_test(tc, requests_refused);
  tcase_add_test(tc, completion_out_of_order);
  tcase_add_test(tc, counters_wrap);
  tcase_add_test(tc, offsets_and_pointers);
  tcase_add_test(tc, back_pressure);
  tcase_add_test(tc, no_more_than_expected);
  tcase_add_test(tc, threads);
  suite_add_tcase(suite, tc);
}
