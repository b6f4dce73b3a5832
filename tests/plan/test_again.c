/* A tuner that asks to be asked again (tests/plugin/tuner_stub.c), on devices with streams: which calls count. It wants
 * trees and rings by turns, and works that are kept must not outlive that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/param.h"
#include "collectives.h"
#include "plugin/tuner.h"
#include "tests/fakes/device/fake.h"

enum { N = 3, COUNT = 5000, LONG_MS = 60000 };

static char asked_path[64];
static ncclComm_t comms[N];
static void *streams[N];
static struct operation operations[N];

static void open_all(void)
{
  snprintf(asked_path, sizeof asked_path, "/tmp/test_again.%d", (int)getpid());
  unlink(asked_path);
  setenv("NCCL_TUNER_PLUGIN", TUNER_AGAIN, 1);
  setenv("STUB_TUNER_DOES", "again=4 price=0,2,0.5 odd=1,2", 1);
  setenv("STUB_TUNER_LOG", asked_path, 1);
  setenv("NCCL_GRAPH_REGISTER", "0", 1); /* so that all calls are of one kind */
  setenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE", "0", 1);
  tt_param_reset();
  ok(ncclCommInitAll(comms, N, NULL));
  for (int r = 0; r < N; r++) {
    streams[r] = fake_stream_create(r);
    operations[r] = (struct operation){.kind = ALL_REDUCE, .n = N, .rank = r, .count = COUNT};
    operation_open(&operations[r]);
  }
}

static void close_all(void)
{
  for (int r = 0; r < N; r++) {
    ok(ncclCommDestroy(comms[r]));
    fake_stream_destroy(streams[r]);
    operation_close(&operations[r]);
  }
  unlink(asked_path);
}

/* Questions so far, each of which was asked once, after four calls. */
static int asked(void)
{
  char line[256], wanted[256];
  FILE *file = fopen(asked_path, "r");
  int count = 0;
  ck_assert_ptr_nonnull(file);
  while (fgets(line, sizeof line, file)) {
    if (strncmp(line, "epoch ", 6) != 0) continue;
    snprintf(wanted, sizeof wanted, "epoch 4 %zu bytes, variant 0, %d after %d calls, stats 0\n",
             COUNT * sizeof(uint32_t), count, count ? 4 : 0);
    ck_assert_str_eq(line, wanted);
    count++;
  }
  fclose(file);
  return count;
}

static void call_all(void)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(operation_call(&operations[r], comms[r], streams[r]));
  ok(ncclGroupEnd());
}

static void check_all(uint32_t seed)
{
  for (int r = 0; r < N; r++) ck_assert_msg(fake_stream_wait(streams[r], LONG_MS), "rank %d is not done", r);
  for (int r = 0; r < N; r++) operation_check(&operations[r]);
  for (int r = 0; r < N; r++) operation_fill(&operations[r], seed);
}

START_TEST(eager)
{
  open_all();
  for (int call = 0; call < 40; call++) {
    call_all();
    check_all((uint32_t)call);
    ck_assert_int_eq(asked(), call / 4 + 1);
  }
  close_all();
}
END_TEST

/* A call counts when it is captured, and not when its graph runs. */
START_TEST(captured)
{
  struct fake_graph *graphs[N];
  open_all();
  for (int call = 0; call < 4; call++) call_all();
  check_all(1);
  ck_assert_int_eq(asked(), 1);
  for (int r = 0; r < N; r++) fake_capture_begin(streams[r]);
  for (int call = 0; call < 3; call++) call_all();
  for (int r = 0; r < N; r++) graphs[r] = fake_capture_end(streams[r]);
  ck_assert_int_eq(asked(), 2);
  for (uint32_t time = 0; time < 5; time++) {
    for (int r = 0; r < N; r++) fake_graph_replay(graphs[r], streams[r]);
    check_all(time);
  }
  call_all();
  check_all(2);
  ck_assert_int_eq(asked(), 2);
  call_all();
  check_all(3);
  ck_assert_int_eq(asked(), 3);
  for (int r = 0; r < N; r++) fake_graph_replay(graphs[r], streams[r]); /* by what was chosen then */
  check_all(4);
  for (int r = 0; r < N; r++) fake_graph_destroy(graphs[r]);
  close_all();
}
END_TEST

/* A group that cannot be planned, since it has a mistake in it, has made no call. */
START_TEST(taken_back)
{
  char from[8], to[8];
  open_all();
  for (int call = 0; call < 3; call++) call_all();
  check_all(1);
  for (int time = 0; time < 3; time++) {
    ok(ncclGroupStart());
    for (int again = 0; again < 3; again++) /* the second begins an epoch */
      for (int r = 0; r < N; r++) ok(operation_call(&operations[r], comms[r], streams[r]));
    for (int r = 0; r < N; r++) {
      ok(ncclSend(from, 8, ncclInt8, r, comms[r], streams[r]));
      ok(ncclRecv(to, 4, ncclInt8, r, comms[r], streams[r]));
    }
    ck_assert_int_eq(ncclGroupEnd(), ncclInvalidUsage);
  }
  for (int call = 0; call < 6; call++) {
    call_all();
    check_all(2);
  }
  ck_assert_int_eq(asked(), 3);
  close_all();
}
END_TEST

void add_again(Suite *suite)
{
  TCase *tests = tcase_create("again");
  tcase_set_timeout(tests, 300);
  tcase_add_test(tests, eager);
  tcase_add_test(tests, captured);
  tcase_add_test(tests, taken_back);
  suite_add_tcase(suite, tests);
}
