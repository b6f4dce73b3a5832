/* Which buffers, places and roots iterations use: what --dependent and --rotate ask, and else what nccl-tests does. The
 * collective here only writes down how it is called. */
#include <string.h>
#include "operate.h"
#include "suites.h"

enum { RANKS = 3, ROOT = 1, BYTES = 40, MOST = 16 };

static struct perf_call calls[MOST];
static int called;

static ncclResult_t write_down(const struct perf_call *call)
{
  ck_assert_int_lt(called, MOST);
  calls[called++] = *call;
  return ncclSuccess;
}

static const struct perf_collective recorder = {
    .name = "recorder", .rooted = true, .in_place = true, .run = write_down};
static const struct perf_backend device = {.streams = true};
static char sent[1 << 16], received[1 << 16];
static struct perf_buffer send = {.data = sent}, recv_ = {.data = received};

/* `iterations` of them, with the largest size `most`. */
static void enqueue(struct perf_options *o, bool in_place, int iterations, uint64_t most)
{
  static ncclComm_t comm;
  static cudaStream_t stream;
  o->comms = 1;
  o->max_bytes = most;
  struct perf_team team = {.options = o, .backend = &device, .ranks = RANKS};
  struct perf_worker worker = {.team = &team, .comms = &comm, .streams = &stream};
  struct perf_case c = {.collective = &recorder,
                        .type = perf_type_find("float"),
                        .root = ROOT,
                        .nranks = RANKS,
                        .in_place = in_place,
                        .shape = {.count = BYTES / 4, .send = BYTES / 4, .recv = BYTES / 4},
                        .send = &send,
                        .recv = &recv_};
  called = 0;
  for (int i = 0; i < iterations; i++) perf_enqueue(&worker, &c, 1, i);
  ck_assert_int_eq(called, iterations);
}

START_TEST(by_default_buffers_are_moved_through)
{
  struct perf_options o = {0};
  enqueue(&o, false, 5, 3 * BYTES);
  for (int i = 0; i < 5; i++) {
    ck_assert_ptr_eq(calls[i].send, sent + i % 3 * BYTES);
    ck_assert_ptr_eq(calls[i].recv, received + i % 3 * BYTES);
    ck_assert_int_eq(calls[i].root, ROOT);
  }
}
END_TEST

START_TEST(dependent_iterations_send_what_came)
{
  struct perf_options o = {.dependent = true};
  enqueue(&o, false, 5, 3 * BYTES);
  ck_assert_ptr_eq(calls[0].send, sent);
  for (int i = 1; i < 5; i++) {
    ck_assert_ptr_eq(calls[i].send, calls[i - 1].recv);
    ck_assert_ptr_ne(calls[i].recv, calls[i].send);
    ck_assert_int_eq(calls[i].root, (ROOT + i) % RANKS);
  }
  enqueue(&o, true, 4, 3 * BYTES);
  for (int i = 0; i < 4; i++) {
    ck_assert(calls[i].send == received && calls[i].recv == received);
    ck_assert_int_eq(calls[i].root, (ROOT + i) % RANKS);
  }
}
END_TEST

START_TEST(rotation_has_its_own_places)
{
  struct perf_options o = {.rotate = 4};
  enqueue(&o, false, 9, BYTES); /* the largest size: without rotation there would be one place */
  for (int i = 0; i < 9; i++) {
    ck_assert_ptr_eq(calls[i].send, sent + i % 4 * perf_options_stride(BYTES));
    ck_assert_ptr_eq(calls[i].recv, received + i % 4 * perf_options_stride(BYTES));
  }
  o.rotate = 1; /* always the same */
  enqueue(&o, false, 3, 10 * BYTES);
  for (int i = 0; i < 3; i++) ck_assert_ptr_eq(calls[i].send, sent);
}
END_TEST

Suite *suite_operate(void)
{
  Suite *suite = suite_create("operate");
  TCase *tests = tcase_create("operate");
  tcase_add_test(tests, by_default_buffers_are_moved_through);
  tcase_add_test(tests, dependent_iterations_send_what_came);
  tcase_add_test(tests, rotation_has_its_own_places);
  suite_add_tcase(suite, tests);
  return suite;
}
