/* Streams of ranks in processes of their own. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/param.h"
#include "bootstrap/bootstrap.h"
#include "collectives.h"
#include "tests/fakes/device/fake.h"

#define N 3
#define LONG_MS 60000

/* A rank's part; the process's status says what came of it: a check that fails ends it with another one. */
typedef void rank_body(int rank, ncclComm_t comm);

static void start(int rank, int id_pipe[2], rank_body *body)
{
  ncclUniqueId id;
  ncclComm_t comm;
  if (rank == 0) {
    ok(ncclGetUniqueId(&id));
    for (int r = 1; r < N; r++) ck_assert_int_eq(write(id_pipe[1], &id, sizeof id), sizeof id);
  } else {
    ck_assert_int_eq(read(id_pipe[0], &id, sizeof id), sizeof id);
  }
  fake_set_device(rank);
  ok(ncclCommInitRank(&comm, N, id, rank));
  int device;
  ok(ncclCommCuDevice(comm, &device));
  ck_assert_int_eq(device, rank);
  body(rank, comm);
  exit(0);
}

/* Ranks are forked from a process that has no threads. */
static void run(rank_body *body, int killed)
{
  int id_pipe[2];
  pid_t pids[N];
  ck_assert_int_eq(pipe(id_pipe), 0);
  for (int r = 0; r < N; r++) {
    pids[r] = fork();
    ck_assert_int_ge(pids[r], 0);
    if (pids[r] == 0) start(r, id_pipe, body);
  }
  for (int r = 0; r < N; r++) {
    int status;
    ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
    if (r == killed)
      ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
      ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d ended with status %x", r, status);
  }
}

static void all_collectives(int rank, ncclComm_t comm)
{
  void *streams[2] = {NULL, fake_stream_create(rank)};
  struct operation operations[KINDS][2];
  for (int k = 0; k < KINDS; k++)
    for (int s = 0; s < 2; s++) {
      operations[k][s] = (struct operation){
          .kind = (enum kind)k, .n = N, .rank = rank, .root = k % N, .count = s ? 20000 : 77, .seed = (uint32_t)k};
      operation_open(&operations[k][s]);
      ok(operation_call(&operations[k][s], comm, streams[s]));
    }
  for (int s = 0; s < 2; s++) ck_assert(fake_stream_wait(streams[s], LONG_MS));
  for (int k = 0; k < KINDS; k++)
    for (int s = 0; s < 2; s++) {
      operation_check(&operations[k][s]);
      operation_close(&operations[k][s]);
    }
  ok(ncclCommDestroy(comm));
  fake_stream_destroy(streams[1]);
}

/* _i: 1: all that follows goes by the host's memory. */
static void set_way(int host)
{
  setenv("NCCL_P2P_DISABLE", host ? "1" : "0", 1);
  tt_param_reset();
}

START_TEST(collectives)
{
  set_way(_i);
  run(all_collectives, -1);
}
END_TEST

/* By memory that all devices share, which goes from process to process. */
static void with_a_team(int rank, ncclComm_t comm)
{
  all_collectives(rank, comm);
  ck_assert_int_ge(fake_multicast_works(), 6);
}

START_TEST(teams)
{
  setenv("NCCL_ALGO", "Ring;AllReduce:NVLS;AllGather:NVLS;ReduceScatter:NVLS", 1);
  tt_param_reset();
  run(with_a_team, -1);
}
END_TEST

/* The last rank dies in the middle of operations. The others' streams end, and they know who it was. */
static void one_is_killed(int rank, ncclComm_t comm)
{
  struct operation operation = {.kind = ALL_REDUCE, .n = N, .rank = rank, .count = 30000, .seed = 5};
  ncclResult_t result = ncclSuccess;
  operation_open(&operation);
  for (int k = 0; k < 5; k++) ok(operation_call(&operation, comm, NULL));
  ck_assert(fake_stream_wait(NULL, LONG_MS));
  operation_check(&operation);
  if (rank == N - 1) {
    ok(operation_call(&operation, comm, NULL));
    kill(getpid(), SIGKILL);
  }
  uint64_t before = now_ms();
  for (int k = 0; k < 3; k++) ok(operation_call(&operation, comm, NULL));
  ck_assert(fake_stream_wait(NULL, LONG_MS));
  uint64_t took = now_ms() - before;
  for (int waited = 0; waited < LONG_MS && result == ncclSuccess; waited++) {
    ok(ncclCommGetAsyncError(comm, &result));
    usleep(1000);
  }
  ck_assert_int_eq(result, ncclRemoteError);
  ck_assert_msg(strstr(ncclGetLastError(comm), "rank 2") != NULL, "%s", ncclGetLastError(comm));
  printf("rank %d: the stream ended %llu ms after the last rank's death: %s\n", rank, (unsigned long long)took,
         ncclGetLastError(comm));
  fflush(stdout);
  ok(ncclCommAbort(comm));
  operation_close(&operation);
}

START_TEST(killed)
{
  set_way(_i);
  run(one_is_killed, N - 1);
}
END_TEST

bool __real_tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t size);
bool __wrap_tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t size);
static _Atomic bool looked_after; /* in rank 1, whose work waits for rank 0 */
static int orders[2][2];          /* the pipes that ranks 0 and 2 hear by */

/* The work has been seen waiting; before it is asked whether anybody is gone, rank 0 sends what it waits for, and ends.
 */
bool __wrap_tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t size)
{
  uint64_t until = now_ms() + LONG_MS;
  if (atomic_exchange(&looked_after, false)) {
    ck_assert_int_eq(write(orders[0][1], "", 1), 1);
    while (!__real_tt_bootstrap_dead(bootstrap, rank, why, size) && now_ms() < until) usleep(1000);
  }
  return __real_tt_bootstrap_dead(bootstrap, rank, why, size);
}

static void sends_and_exits(int rank, ncclComm_t comm)
{
  char data[8] = "first", order;
  ncclResult_t result = ncclSuccess;
  if (rank == 0) {
    ok(ncclSend(data, sizeof data, ncclInt8, 1, comm, NULL));
    ck_assert(fake_stream_wait(NULL, LONG_MS));
    ck_assert_int_eq(read(orders[0][0], &order, 1), 1);
    strcpy(data, "second");
    ok(ncclSend(data, sizeof data, ncclInt8, 1, comm, NULL));
    ck_assert(fake_stream_wait(NULL, LONG_MS));
  } else if (rank == 1) {
    ok(ncclRecv(data, sizeof data, ncclInt8, 0, comm, NULL));
    ck_assert(fake_stream_wait(NULL, LONG_MS));
    atomic_store(&looked_after, true);
    ok(ncclRecv(data, sizeof data, ncclInt8, 0, comm, NULL));
    ck_assert(fake_stream_wait(NULL, LONG_MS));
    ck_assert_str_eq(data, "second");
    usleep(500000);
    ok(ncclCommGetAsyncError(comm, &result));
    ck_assert_msg(result == ncclSuccess, "%s", ncclGetLastError(comm));
    ck_assert(!atomic_load(&looked_after));
    ck_assert_int_eq(write(orders[1][1], "", 1), 1);
  } else {
    ck_assert_int_eq(read(orders[1][0], &order, 1), 1);
  }
  _exit(0);
}

START_TEST(sent_and_exited)
{
  for (int i = 0; i < 2; i++) ck_assert_int_eq(pipe(orders[i]), 0);
  run(sends_and_exits, -1);
}
END_TEST

static ncclComm_t left_over;

static void destroy_at_exit(void)
{
  ok(ncclCommDestroy(left_over)); /* of works that wait for a rank that will not come */
}

/* Processes that exit with works running end, and so does one that destroys its communicator when nothing looks after
 * it any more. */
static void exits(int rank, ncclComm_t comm)
{
  struct operation operation = {.kind = ALL_REDUCE, .n = N, .rank = rank, .count = 3000, .seed = 5};
  left_over = comm;
  if (rank == 2) atexit(destroy_at_exit); /* before the library's own handler is registered, and so run after it */
  operation_open(&operation);
  ok(operation_call(&operation, comm, NULL));
  ck_assert(fake_stream_wait(NULL, LONG_MS));
  if (rank == 1) {
    usleep(2000000);
    _exit(0);
  }
  ok(operation_call(&operation, comm, NULL));
  exit(0);
}

START_TEST(exit_early)
{
  run(exits, -1);
}
END_TEST

void add_processes(Suite *suite)
{
  TCase *tests = tcase_create("processes");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, collectives, 0, 2);
  tcase_add_test(tests, teams);
  tcase_add_loop_test(tests, killed, 0, 2);
  tcase_add_test(tests, sent_and_exited);
  tcase_add_test(tests, exit_early);
  suite_add_tcase(suite, tests);
}
