/* Handles: wild and freed ones are named, not followed; a communicator may be ended while other threads use it. */
#include "suites.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "nccl.h"

static void is_refused(ncclResult_t got)
{
  ck_assert_msg(got == ncclInvalidArgument, "result %d", got);
  ck_assert_msg(strstr(tt_log_thread_error(), "is not a communicator") != NULL, "%s", tt_log_thread_error());
}

/* Every call that takes a communicator. */
static void all_calls_refuse(ncclComm_t comm)
{
  int value;
  float data[4] = {0};
  ncclResult_t result;
  is_refused(ncclCommCount(comm, &value));
  is_refused(ncclCommCuDevice(comm, &value));
  is_refused(ncclCommUserRank(comm, &value));
  is_refused(ncclCommGetAsyncError(comm, &result));
  is_refused(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, comm, NULL));
  is_refused(ncclReduce(data, data, 1, ncclFloat, ncclSum, 0, comm, NULL));
  is_refused(ncclBroadcast(data, data, 1, ncclFloat, 0, comm, NULL));
  is_refused(ncclAllGather(data, data, 1, ncclFloat, comm, NULL));
  is_refused(ncclReduceScatter(data, data, 1, ncclFloat, ncclSum, comm, NULL));
  is_refused(ncclSend(data, 1, ncclFloat, 0, comm, NULL));
  is_refused(ncclRecv(data, 1, ncclFloat, 0, comm, NULL));
  is_refused(ncclCommFinalize(comm));
  is_refused(ncclCommDestroy(comm));
  is_refused(ncclCommAbort(comm));
  ck_assert_ptr_nonnull(ncclGetLastError(comm));
}

START_TEST(wild_and_freed)
{
  ncclComm_t comm;
  char bytes[sizeof(void *) * 64] = {0};
  all_calls_refuse((ncclComm_t)0x1234);
  all_calls_refuse((ncclComm_t)bytes);
  ck_assert_int_eq(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
  ck_assert_int_eq(ncclCommDestroy(comm), ncclSuccess);
  all_calls_refuse(comm);
  ck_assert_int_eq(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
  ck_assert_int_eq(ncclCommAbort(comm), ncclSuccess);
  all_calls_refuse(comm);
}
END_TEST

enum { RANKS = 2 };

struct user {
  ncclComm_t comm;
  _Atomic int *calls;
  pthread_t thread;
};

/* Uses the communicator until it is gone. */
static void *use(void *arg)
{
  struct user *user = arg;
  float in[100] = {0}, out[100];
  ncclResult_t result, error;
  do {
    result = ncclAllReduce(in, out, 100, ncclFloat, ncclSum, user->comm, NULL);
    atomic_fetch_add(user->calls, 1);
  } while (result == ncclSuccess);
  while (ncclCommGetAsyncError(user->comm, &error) == ncclSuccess) usleep(100);
  return NULL;
}

/* Each rank is used by a thread and aborted by another, at a moment that differs each time. */
START_TEST(abort_at_any_moment)
{
  for (int round = 0; round < 25; round++) {
    ncclComm_t comms[RANKS];
    struct user users[RANKS];
    _Atomic int calls = 0;
    ck_assert_int_eq(ncclCommInitAll(comms, RANKS, NULL), ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
      users[r] = (struct user){.comm = comms[r], .calls = &calls};
      ck_assert_int_eq(pthread_create(&users[r].thread, NULL, use, &users[r]), 0);
    }
    while (atomic_load(&calls) < round) usleep(10);
    for (int r = 0; r < RANKS; r++) ck_assert_int_eq(ncclCommAbort(comms[r]), ncclSuccess);
    for (int r = 0; r < RANKS; r++) pthread_join(users[r].thread, NULL);
  }
}
END_TEST

static void *abort_it(void *arg)
{
  return (void *)(intptr_t)ncclCommAbort(arg);
}

/* Of several that end a communicator at once, one does. */
START_TEST(ended_once)
{
  for (int round = 0; round < 50; round++) {
    enum { THREADS = 4 };
    ncclComm_t comm;
    pthread_t threads[THREADS];
    int ended = 0;
    ck_assert_int_eq(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
    for (int t = 0; t < THREADS; t++) ck_assert_int_eq(pthread_create(&threads[t], NULL, abort_it, comm), 0);
    for (int t = 0; t < THREADS; t++) {
      void *result;
      pthread_join(threads[t], &result);
      ck_assert((intptr_t)result == ncclSuccess || (intptr_t)result == ncclInvalidArgument);
      ended += (intptr_t)result == ncclSuccess;
    }
    ck_assert_int_eq(ended, 1);
  }
}
END_TEST

static void *reduce_alone(void *arg)
{
  float in[100] = {0}, out[100];
  ncclAllReduce(in, out, 100, ncclFloat, ncclSum, arg, NULL);
  return NULL;
}

/* Who destroys a communicator that a thread waits in is told so, and the handle stays good. */
START_TEST(destroy_while_in_use)
{
  ncclComm_t comms[RANKS];
  pthread_t thread;
  ncclResult_t result = ncclSuccess;
  ck_assert_int_eq(ncclCommInitAll(comms, RANKS, NULL), ncclSuccess);
  ck_assert_int_eq(pthread_create(&thread, NULL, reduce_alone, comms[0]), 0);
  usleep(100000); /* it waits for the other rank by then; if not, destroying it is fine and ends the test early */
  result = ncclCommDestroy(comms[0]);
  if (result != ncclSuccess) {
    ck_assert_int_eq(result, ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "another thread is using"));
    reduce_alone(comms[1]);
    pthread_join(thread, NULL);
    ck_assert_int_eq(ncclCommDestroy(comms[0]), ncclSuccess);
  } else {
    pthread_join(thread, NULL);
  }
  ck_assert_int_eq(ncclCommDestroy(comms[1]), ncclSuccess);
}
END_TEST

static bool is_of_parent(ncclResult_t got)
{
  return got == ncclInvalidUsage && strstr(tt_log_thread_error(), "before a fork") != NULL;
}

/* All that move data, make something of the communicator, or end it. */
static bool uses_are_of_parent(ncclComm_t comm)
{
  int exclude = 1;
  float data[4] = {0}, two = 2;
  void *registered;
  ncclComm_t child;
  ncclWindow_t window;
  ncclRedOp_t op;
  return is_of_parent(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, comm, NULL)) &&
         is_of_parent(ncclReduce(data, data, 1, ncclFloat, ncclSum, 0, comm, NULL)) &&
         is_of_parent(ncclBroadcast(data, data, 1, ncclFloat, 0, comm, NULL)) &&
         is_of_parent(ncclAllGather(data, data, 1, ncclFloat, comm, NULL)) &&
         is_of_parent(ncclReduceScatter(data, data, 1, ncclFloat, ncclSum, comm, NULL)) &&
         is_of_parent(ncclSend(data, 1, ncclFloat, 0, comm, NULL)) &&
         is_of_parent(ncclRecv(data, 1, ncclFloat, 0, comm, NULL)) &&
         is_of_parent(ncclCommSplit(comm, 0, 0, &child, NULL)) &&
         is_of_parent(ncclCommShrink(comm, &exclude, 1, &child, NULL, NCCL_SHRINK_DEFAULT)) &&
         is_of_parent(ncclCommRegister(comm, data, sizeof data, &registered)) &&
         is_of_parent(ncclCommDeregister(comm, NULL)) &&
         is_of_parent(ncclCommWindowRegister(comm, data, sizeof data, &window, NCCL_WIN_DEFAULT)) &&
         is_of_parent(ncclCommWindowDeregister(comm, NULL)) &&
         is_of_parent(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat, ncclScalarHostImmediate, comm)) &&
         is_of_parent(ncclRedOpDestroy((ncclRedOp_t)ncclNumOps, comm)) && is_of_parent(ncclCommFinalize(comm)) &&
         is_of_parent(ncclCommRevoke(comm, 0)) && is_of_parent(ncclCommDestroy(comm)) &&
         is_of_parent(ncclCommAbort(comm));
}

static bool questions_are_answered(ncclComm_t comm, int rank)
{
  int count = 0, user_rank = -1;
  ncclResult_t error = ncclInternalError;
  return ncclCommCount(comm, &count) == ncclSuccess && count == RANKS &&
         ncclCommUserRank(comm, &user_rank) == ncclSuccess && user_rank == rank &&
         ncclCommGetAsyncError(comm, &error) == ncclSuccess && error == ncclSuccess;
}

/* A child that waits for ever ends, and not by libcheck's handler, which would end its parent too. */
static void end_late(void)
{
  signal(SIGALRM, SIG_DFL);
  alarm(60);
}

static void begin_sum_group(ncclComm_t comms[RANKS], float data[RANKS])
{
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  for (int r = 0; r < RANKS; r++) {
    data[r] = (float)(r + 1);
    ck_assert_int_eq(ncclAllReduce(&data[r], &data[r], 1, ncclFloat, ncclSum, comms[r], NULL), ncclSuccess);
  }
}

static bool sum_group_ends(float data[RANKS])
{
  bool fine = ncclGroupEnd() == ncclSuccess;
  for (int r = 0; r < RANKS; r++) fine &= data[r] == 3;
  return fine;
}

/* What a child of a fork has of a communicator is no more than its memory: it may neither use nor end it, not even with
 * calls from before the fork, and does not disturb it. Where it could, it might wait for ever. */
START_TEST(in_a_forked_child)
{
  ncclComm_t comms[RANKS], halves[RANKS];
  float data[RANKS];
  int status;
  ck_assert_int_eq(ncclCommInitAll(comms, RANKS, NULL), ncclSuccess);
  begin_sum_group(comms, data);
  for (int r = 0; r < RANKS; r++) ck_assert_int_eq(ncclCommSplit(comms[r], r, 0, &halves[r], NULL), ncclSuccess);
  pid_t pid = fork();
  if (pid == 0) {
    end_late();
    bool fine = is_of_parent(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) fine &= uses_are_of_parent(comms[r]) && questions_are_answered(comms[r], r);
    _exit(fine ? 0 : 1);
  }
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x", (unsigned)status);
  ck_assert(sum_group_ends(data));
  begin_sum_group(comms, data);
  ck_assert(sum_group_ends(data));
  for (int r = 0; r < RANKS; r++) {
    ck_assert_int_eq(ncclCommDestroy(halves[r]), ncclSuccess);
    ck_assert_int_eq(ncclCommDestroy(comms[r]), ncclSuccess);
  }
}
END_TEST

/* A child's own communicators are like any. (The thread sanitizer refuses threads in children of a fork.) */
#ifndef __SANITIZE_THREAD__
START_TEST(of_a_forked_child)
{
  ncclComm_t comms[RANKS];
  int status;
  ck_assert_int_eq(ncclCommInitAll(comms, RANKS, NULL), ncclSuccess);
  pid_t pid = fork();
  if (pid == 0) {
    ncclComm_t own[RANKS];
    float data[RANKS];
    end_late();
    bool fine = ncclCommInitAll(own, RANKS, NULL) == ncclSuccess;
    if (fine) begin_sum_group(own, data);
    fine = fine && sum_group_ends(data) && is_of_parent(ncclCommDestroy(comms[0]));
    for (int r = 0; fine && r < RANKS; r++) fine = ncclCommDestroy(own[r]) == ncclSuccess;
    _exit(fine ? 0 : 1);
  }
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x", (unsigned)status);
  for (int r = 0; r < RANKS; r++) ck_assert_int_eq(ncclCommDestroy(comms[r]), ncclSuccess);
}
END_TEST
#endif

/* A thread that opened a group and does not end it holds nobody up: its group ends the communicator. */
static void *open_group(void *arg)
{
  struct user *user = arg;
  float data[4] = {0};
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  ck_assert_int_eq(ncclAllReduce(data, data, 4, ncclFloat, ncclSum, user->comm, NULL), ncclSuccess);
  atomic_store(user->calls, 1);
  while (atomic_load(user->calls) == 1) usleep(1000);
  ck_assert_int_ne(ncclGroupEnd(), ncclSuccess);
  return NULL;
}

START_TEST(abort_of_an_open_group)
{
  ncclComm_t comms[RANKS];
  _Atomic int state = 0;
  float data[4] = {0};
  ck_assert_int_eq(ncclCommInitAll(comms, RANKS, NULL), ncclSuccess);
  struct user user = {.comm = comms[0], .calls = &state};
  ck_assert_int_eq(pthread_create(&user.thread, NULL, open_group, &user), 0);
  while (atomic_load(&state) == 0) usleep(1000);
  ck_assert_int_eq(ncclAllReduce(data, data, 4, ncclFloat, ncclSum, comms[0], NULL), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "another thread"));
  ck_assert_int_eq(ncclCommDestroy(comms[0]), ncclInvalidUsage);
  ck_assert_int_eq(ncclCommAbort(comms[0]), ncclSuccess);
  is_refused(ncclCommAbort(comms[0]));
  atomic_store(&state, 2);
  pthread_join(user.thread, NULL);
  ck_assert_int_eq(ncclCommAbort(comms[1]), ncclSuccess);
}
END_TEST

Suite *handles_suite(void)
{
  Suite *suite = suite_create("handles");
  TCase *tests = tcase_create("handles");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, wild_and_freed);
  tcase_add_test(tests, abort_at_any_moment);
  tcase_add_test(tests, abort_of_an_open_group);
  tcase_add_test(tests, ended_once);
  tcase_add_test(tests, destroy_while_in_use);
  tcase_add_test(tests, in_a_forked_child);
#ifndef __SANITIZE_THREAD__
  tcase_add_test(tests, of_a_forked_child);
#endif
  suite_add_tcase(suite, tests);
  return suite;
}
