/* The launch gate: where a thread of another rank waits until devices are idle before it makes its call, nothing is
 * launched before it has. And what holds without it: all that a group needs is made before anything is launched. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "collectives.h"
#include "tests/fakes/device/fake.h"
#include "tutti.h"

enum { MOST = 3, LONG_MS = 60000, SLEEP_MS = 5000, SHORT_MS = 150 };

static void said(const char *words)
{
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

static void open_comms(const char *mode, ncclComm_t *comms, int n)
{
  if (mode != NULL) setenv("NCCL_LAUNCH_MODE", mode, 1);
  tt_param_reset();
  ok(ncclCommInitAll(comms, n, NULL));
}

/* A rank and its calls, made on a thread of its own: `together` in one group, or each waited for before the next. */
struct caller {
  ncclComm_t comm;
  int rank, ncalls;
  bool together;
  struct operation calls[2];
  pthread_t thread;
  _Atomic int returned;
  ncclResult_t result;
  char error[1024];
};

static void prepare(struct caller *caller, ncclComm_t comm, enum kind kind, int n, int rank, int ncalls)
{
  *caller = (struct caller){.comm = comm, .rank = rank, .ncalls = ncalls};
  for (int c = 0; c < ncalls; c++) {
    caller->calls[c] = (struct operation){.kind = kind, .n = n, .rank = rank, .count = 3000, .seed = (uint32_t)(c + 1)};
    operation_open(&caller->calls[c]);
  }
}

static void wait_for_device(int rank)
{
  fake_set_device(rank);
  ck_assert_msg(fake_stream_wait(NULL, LONG_MS), "rank %d is not done", rank);
}

static void *make_calls(void *arg)
{
  struct caller *caller = arg;
  if (caller->together) ok(ncclGroupStart());
  for (int c = 0; c < caller->ncalls && caller->result == ncclSuccess; c++) {
    caller->result = operation_call(&caller->calls[c], caller->comm, NULL);
    if (!caller->together && caller->result == ncclSuccess && c + 1 < caller->ncalls) wait_for_device(caller->rank);
  }
  if (caller->together) caller->result = ncclGroupEnd();
  snprintf(caller->error, sizeof caller->error, "%s", tt_log_thread_error());
  atomic_store(&caller->returned, 1);
  return NULL;
}

static void start(struct caller *caller)
{
  ck_assert_int_eq(pthread_create(&caller->thread, NULL, make_calls, caller), 0);
}

static void finish(struct caller *caller)
{
  pthread_join(caller->thread, NULL);
  ck_assert_msg(caller->result == ncclSuccess, "rank %d: %s", caller->rank, caller->error);
  wait_for_device(caller->rank);
}

static void check(struct caller *callers, int n)
{
  for (int r = 0; r < n; r++)
    for (int c = 0; c < callers[r].ncalls; c++) {
      operation_check(&callers[r].calls[c]);
      operation_close(&callers[r].calls[c]);
    }
}

static void close_comms(ncclComm_t *comms, int n)
{
  for (int r = 0; r < n; r++) ok(ncclCommDestroy(comms[r]));
}

static int launches(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  return counts.launches;
}

static void returns(const struct caller *caller)
{
  for (int ms = 0; ms < LONG_MS && !atomic_load(&caller->returned); ms++) usleep(1000);
  ck_assert_msg(atomic_load(&caller->returned), "rank %d's call does not return", caller->rank);
}

/* Rank 1's thread waits for idle devices, as an allocation may, while rank 0 has made its call. _i: kind of operation.
 */
START_TEST(allocations_wait_for_works)
{
  struct caller callers[2];
  ncclComm_t comms[2];
  open_comms(NULL, comms, 2);
  for (int r = 0; r < 2; r++) prepare(&callers[r], comms[r], _i == 0 ? ALL_REDUCE : SEND_RECV, 2, r, 1);
  start(&callers[0]);
  returns(&callers[0]); /* without the gate it is launched, and runs until rank 1's comes */
  ck_assert(!fake_wait_idle(SHORT_MS));
  start(&callers[1]);
  for (int r = 0; r < 2; r++) finish(&callers[r]);
  check(callers, 2);
  close_comms(comms, 2);
}
END_TEST

START_TEST(the_gate_lets_allocations_pass)
{
  struct caller callers[2];
  ncclComm_t comms[2];
  open_comms("GROUP", comms, 2);
  for (int round = 0; round < 2; round++) {
    for (int r = 0; r < 2; r++) prepare(&callers[r], comms[r], _i == 0 ? ALL_REDUCE : SEND_RECV, 2, r, 1);
    start(&callers[round]);
    usleep(SHORT_MS * 1000);
    ck_assert_int_eq(launches(), 0);
    ck_assert(!atomic_load(&callers[round].returned));
    ck_assert(fake_wait_idle(LONG_MS));
    start(&callers[1 - round]);
    for (int r = 0; r < 2; r++) finish(&callers[r]);
    check(callers, 2);
  }
  close_comms(comms, 2);
}
END_TEST

/* One thread drives all ranks: whatever the mode, no rank allocates while another's work runs. _i: mode. */
START_TEST(made_before_launched)
{
  static const char *const modes[] = {NULL, "PARALLEL", "group"};
  ncclComm_t comms[MOST];
  open_comms(modes[_i], comms, MOST);
  for (int kind = 0; kind < KINDS; kind++) {
    struct caller callers[MOST];
    ok(ncclGroupStart());
    for (int r = 0; r < MOST; r++) {
      prepare(&callers[r], comms[r], (enum kind)kind, MOST, r, 1);
      ok(operation_call(&callers[r].calls[0], comms[r], NULL));
    }
    ok(ncclGroupEnd());
    for (int r = 0; r < MOST; r++) wait_for_device(r);
    check(callers, MOST);
  }
  ck_assert_int_eq(fake_late_allocations(), 0);
  close_comms(comms, MOST);
}
END_TEST

/* Rank 2 takes no part and is not waited for. */
START_TEST(only_partners_are_waited_for)
{
  enum { COUNT = 100 };
  static int32_t out[COUNT], in[COUNT];
  ncclComm_t comms[MOST];
  open_comms("GROUP", comms, MOST);
  for (int i = 0; i < COUNT; i++) out[i] = i;
  ok(ncclGroupStart());
  ok(ncclSend(out, COUNT, ncclInt32, 1, comms[0], NULL));
  ok(ncclRecv(in, COUNT, ncclInt32, 0, comms[1], NULL));
  ok(ncclGroupEnd());
  for (int r = 0; r < 2; r++) wait_for_device(r);
  for (int i = 0; i < COUNT; i++) ck_assert_int_eq(in[i], i);
  close_comms(comms, MOST);
}
END_TEST

/* Rank 0 makes two calls in a group, the other one after another, waiting in between. _i: kind. */
START_TEST(only_firsts_are_waited_for)
{
  struct caller callers[2];
  ncclComm_t comms[2];
  open_comms("GROUP", comms, 2);
  for (int r = 0; r < 2; r++) prepare(&callers[r], comms[r], _i == 0 ? ALL_REDUCE : SEND_RECV, 2, r, 2);
  callers[0].together = true;
  for (int r = 0; r < 2; r++) start(&callers[r]);
  for (int r = 0; r < 2; r++) finish(&callers[r]);
  check(callers, 2);
  close_comms(comms, 2);
}
END_TEST

static void until_at_gate(ncclComm_t comm)
{
  static char report[20000];
  for (int ms = 0; ms < LONG_MS; ms++) { /* as reports say */
    size_t bytes = sizeof report;
    ok(tuttiCommReport(comm, tuttiReportText, report, &bytes));
    if (strstr(report, "launch gate") != NULL) return;
    usleep(1000);
  }
  ck_abort_msg("no wait at the gate in: %s", report);
}

static void wait_at_gate(struct caller *caller, ncclComm_t comm)
{
  prepare(caller, comm, ALL_REDUCE, 2, 0, 1);
  start(caller);
  until_at_gate(comm);
}

static void has_failed(struct caller *caller, ncclResult_t result, const char *words)
{
  returns(caller);
  pthread_join(caller->thread, NULL);
  ck_assert_int_eq(caller->result, result);
  ck_assert_msg(strstr(caller->error, words) != NULL, "\"%s\" does not say \"%s\"", caller->error, words);
  operation_close(&caller->calls[0]);
}

START_TEST(abort_opens_it)
{
  struct caller caller, other;
  ncclComm_t comms[2];
  open_comms("GROUP", comms, 2);
  wait_at_gate(&caller, comms[0]);
  ok(ncclCommAbort(comms[0]));
  has_failed(&caller, ncclInternalError, "aborted at the launch gate");
  prepare(&other, comms[1], ALL_REDUCE, 2, 1, 1);
  start(&other);
  has_failed(&other, ncclRemoteError, "rank 0");
  ok(ncclCommAbort(comms[1]));
}
END_TEST

START_TEST(revoking_opens_it)
{
  struct caller caller;
  ncclComm_t comms[2];
  open_comms("GROUP", comms, 2);
  wait_at_gate(&caller, comms[0]);
  ok(ncclCommRevoke(comms[0], 0));
  has_failed(&caller, ncclInvalidUsage, "revoked");
  for (int r = 0; r < 2; r++) ok(ncclCommAbort(comms[r]));
}
END_TEST

START_TEST(who_is_awaited_leaves)
{
  struct caller caller;
  ncclComm_t comms[2];
  open_comms("GROUP", comms, 2);
  wait_at_gate(&caller, comms[0]);
  ok(ncclCommDestroy(comms[1]));
  has_failed(&caller, ncclRemoteError, "rank 1");
  ok(ncclCommAbort(comms[0]));
}
END_TEST

enum { COUNT = 3000 };
static int32_t sent[COUNT], received[COUNT];

static void *receive(void *arg)
{
  struct caller *caller = arg;
  fake_set_device(0);
  caller->result = ncclRecv(received, COUNT, ncclInt32, 1, caller->comm, NULL);
  snprintf(caller->error, sizeof caller->error, "%s", tt_log_thread_error());
  return NULL;
}

static _Atomic int sleeps, has_left;

/* As if the scheduler gave the thread no time. It may have the gate's lock, so that it cannot be for ever. */
static void sleep_meanwhile(int number)
{
  (void)number;
  atomic_store(&sleeps, 1);
  for (int ms = 0; ms < SLEEP_MS && !atomic_load(&has_left); ms++) usleep(1000);
}

/* Rank 0's thread looks only when rank 1 has come, has sent, and has left. */
START_TEST(who_came_and_left_is_not_missing)
{
  struct caller caller;
  ncclComm_t comms[2];
  open_comms("GROUP", comms, 2);
  caller = (struct caller){.comm = comms[0]};
  for (int i = 0; i < COUNT; i++) sent[i] = i;
  signal(SIGUSR1, sleep_meanwhile);
  ck_assert_int_eq(pthread_create(&caller.thread, NULL, receive, &caller), 0);
  until_at_gate(comms[0]);
  ck_assert_int_eq(pthread_kill(caller.thread, SIGUSR1), 0);
  for (int ms = 0; ms < LONG_MS && !atomic_load(&sleeps); ms++) usleep(1000);
  fake_set_device(1);
  ok(ncclSend(sent, COUNT, ncclInt32, 0, comms[1], NULL));
  wait_for_device(1);
  ok(ncclCommDestroy(comms[1]));
  atomic_store(&has_left, 1);
  finish(&caller);
  ck_assert_mem_eq(received, sent, sizeof sent);
  ok(ncclCommDestroy(comms[0]));
}
END_TEST

START_TEST(the_user_does_not_want_to_wait)
{
  struct caller caller;
  ncclComm_t comms[2];
  setenv("TUTTI_LATE_TIMEOUT", "1", 1);
  open_comms("GROUP", comms, 2);
  prepare(&caller, comms[0], ALL_REDUCE, 2, 0, 1);
  start(&caller);
  has_failed(&caller, ncclRemoteError, "TUTTI_LATE_TIMEOUT allows, at the launch gate");
  for (int r = 0; r < 2; r++) ok(ncclCommAbort(comms[r]));
}
END_TEST

START_TEST(no_such_mode)
{
  ncclComm_t comms[2];
  setenv("NCCL_LAUNCH_MODE", "SERIAL", 1);
  tt_param_reset();
  ck_assert_int_eq(ncclCommInitAll(comms, 2, NULL), ncclInvalidUsage);
  said("NCCL_LAUNCH_MODE=SERIAL");
}
END_TEST

void add_gate(Suite *suite)
{
  TCase *tests = tcase_create("gate");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, allocations_wait_for_works, 0, 2);
  tcase_add_loop_test(tests, the_gate_lets_allocations_pass, 0, 2);
  tcase_add_loop_test(tests, made_before_launched, 0, 3);
  tcase_add_test(tests, only_partners_are_waited_for);
  tcase_add_loop_test(tests, only_firsts_are_waited_for, 0, 2);
  tcase_add_test(tests, abort_opens_it);
  tcase_add_test(tests, revoking_opens_it);
  tcase_add_test(tests, who_is_awaited_leaves);
  tcase_add_test(tests, who_came_and_left_is_not_missing);
  tcase_add_test(tests, the_user_does_not_want_to_wait);
  tcase_add_test(tests, no_such_mode);
  suite_add_tcase(suite, tests);
}
