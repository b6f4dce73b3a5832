/* A rank that leaves, or ends without a word, while another one waits for its message: whether it has sent that before
 * counts, and not which of the two the other one noticed first. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "nccl.h"
#include "base/param.h"
#include "base/timer.h"
#include "bootstrap/bootstrap.h"

#define PATIENCE_MS 60000

static ncclUniqueId id;
static int orders[2];     /* the pipe that a process hears by */
static bool sends_before; /* rank 0 sends before it leaves */
static _Atomic bool asked, leaves;
static bool is_process; /* rank 0, which ends */
static _Thread_local bool receives;

bool __real_tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank);
bool __wrap_tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank);

/* Rank 1 has seen that nothing has come; before it asks whether rank 0 has left, that rank sends, and leaves. */
bool __wrap_tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank)
{
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  if (receives && !is_process && !atomic_exchange(&asked, true)) {
    atomic_store(&leaves, true);
    while (!__real_tt_bootstrap_left(bootstrap, rank) && !tt_deadline_passed(deadline)) usleep(500);
  }
  return __real_tt_bootstrap_left(bootstrap, rank);
}

bool __real_tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t size);
bool __wrap_tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t size);

/* The same before it asks whether rank 0 is gone. */
bool __wrap_tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t size)
{
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  if (receives && is_process && !atomic_exchange(&asked, true)) {
    ck_assert_int_eq(write(orders[1], "", 1), 1);
    while (!__real_tt_bootstrap_dead(bootstrap, rank, why, size) && !tt_deadline_passed(deadline)) usleep(500);
  }
  return __real_tt_bootstrap_dead(bootstrap, rank, why, size);
}

static void *leave(void *unused)
{
  ncclComm_t comm;
  char data[8] = "first";
  (void)unused;
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  ck_assert_int_eq(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
  ck_assert_int_eq(ncclSend(data, sizeof data, ncclInt8, 1, comm, NULL), ncclSuccess);
  while (!atomic_load(&leaves) && !tt_deadline_passed(deadline)) usleep(500);
  strcpy(data, "second");
  if (sends_before) ck_assert_int_eq(ncclSend(data, sizeof data, ncclInt8, 1, comm, NULL), ncclSuccess);
  ck_assert_int_eq(ncclCommDestroy(comm), ncclSuccess);
  return NULL;
}

static ncclResult_t receive_from_leaving(char data[8])
{
  pthread_t thread;
  ncclComm_t comm;
  atomic_store(&asked, false);
  atomic_store(&leaves, false);
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(pthread_create(&thread, NULL, leave, NULL), 0);
  ck_assert_int_eq(ncclCommInitRank(&comm, 2, id, 1), ncclSuccess);
  ck_assert_int_eq(ncclRecv(data, 8, ncclInt8, 0, comm, NULL), ncclSuccess);
  receives = true;
  ncclResult_t result = ncclRecv(data, 8, ncclInt8, 0, comm, NULL);
  receives = false;
  ck_assert(atomic_load(&asked));
  ncclCommDestroy(comm);
  pthread_join(thread, NULL);
  return result;
}

static void send_and_exit(void)
{
  ncclComm_t comm;
  char data[8] = "first", order;
  bool good = read(orders[0], &id, sizeof id) == sizeof id && ncclCommInitRank(&comm, 2, id, 0) == ncclSuccess &&
              ncclSend(data, sizeof data, ncclInt8, 1, comm, NULL) == ncclSuccess && read(orders[0], &order, 1) == 1;
  strcpy(data, "second");
  if (good && sends_before) good = ncclSend(data, sizeof data, ncclInt8, 1, comm, NULL) == ncclSuccess;
  _exit(good ? 0 : 1);
}

static ncclResult_t receive_from_ending(char data[8])
{
  ncclComm_t comm;
  int status;
  is_process = true;
  ck_assert_int_eq(pipe(orders), 0);
  pid_t pid = fork();
  if (pid == 0) send_and_exit();
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(write(orders[1], &id, sizeof id), sizeof id);
  ck_assert_int_eq(ncclCommInitRank(&comm, 2, id, 1), ncclSuccess);
  ck_assert_int_eq(ncclRecv(data, 8, ncclInt8, 0, comm, NULL), ncclSuccess);
  receives = true;
  ncclResult_t result = ncclRecv(data, 8, ncclInt8, 0, comm, NULL);
  receives = false;
  ck_assert(atomic_load(&asked));
  ncclCommAbort(comm);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  return result;
}

START_TEST(sent_before)
{
  char data[8] = "";
  sends_before = true;
  ck_assert_msg(receive_from_leaving(data) == ncclSuccess, "%s", ncclGetLastError(NULL));
  ck_assert_str_eq(data, "second");
}
END_TEST

START_TEST(not_sent)
{
  char data[8] = "";
  sends_before = false;
  ck_assert_int_eq(receive_from_leaving(data), ncclRemoteError);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "rank 0, which has left the communicator"));
}
END_TEST

START_TEST(sent_before_the_end)
{
  char data[8] = "";
  sends_before = true;
  ck_assert_msg(receive_from_ending(data) == ncclSuccess, "%s", ncclGetLastError(NULL));
  ck_assert_str_eq(data, "second");
}
END_TEST

START_TEST(not_sent_before_the_end)
{
  char data[8] = "";
  sends_before = false;
  ck_assert_int_eq(receive_from_ending(data), ncclRemoteError);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "rank 0 is gone"));
}
END_TEST

int main(void)
{
  setenv("TUTTI_DEVICE", "host", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  tt_param_reset();
  Suite *suite = suite_create("left");
  TCase *tests = tcase_create("left");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, sent_before);
  tcase_add_test(tests, not_sent);
  tcase_add_test(tests, sent_before_the_end);
  tcase_add_test(tests, not_sent_before_the_end);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
