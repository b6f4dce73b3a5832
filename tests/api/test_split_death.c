/* A rank that dies in a split. One of the others may give up while another one has made the new communicator's id for
 * it, and says so: what is left of the parent can be shrunk all the same. One that dies when it has that id is not
 * waited for. */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "nccl.h"
#include "base/log.h"
#include "base/param.h"
#include "bootstrap/internal.h"

/* Of the gather in a split, GIVES_UP waits for the second message of DIES, and FIRST does not. */
enum { DIES, FIRST, GIVES_UP, N };

static ncclUniqueId id;
static int orders[2]; /* the pipe that DIES hears by */
static bool dies;
static int sent;
static _Atomic bool splits;

ncclResult_t __real_tt_mail_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes,
                                 enum tt_mail_kind kind);
ncclResult_t __wrap_tt_mail_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes,
                                 enum tt_mail_kind kind);
/* DIES waits before its second message until FIRST has handed out the id. */
ncclResult_t __wrap_tt_mail_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes,
                                 enum tt_mail_kind kind)
{
  char order;
  if (dies && ++sent == 2 && read(orders[0], &order, 1) == 1) kill(getpid(), SIGKILL);
  return __real_tt_mail_send(b, peer, tag, data, bytes, kind);
}

ncclResult_t __real_tt_bootstrap_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes);
ncclResult_t __wrap_tt_bootstrap_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes);
ncclResult_t __wrap_tt_bootstrap_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes)
{
  ncclResult_t result = __real_tt_bootstrap_send(b, peer, tag, data, bytes);
  if (b->rank == FIRST && peer == GIVES_UP && atomic_exchange(&splits, false))
    ck_assert_int_eq(write(orders[1], "", 1), 1);
  return result;
}

static bool dies_with_id;

ncclResult_t __real_tt_bootstrap_call_recv(struct tt_bootstrap *b, const struct tt_bootstrap_call *call, int peer,
                                           uint32_t tag, void **data, size_t *bytes, tt_deadline deadline);
ncclResult_t __wrap_tt_bootstrap_call_recv(struct tt_bootstrap *b, const struct tt_bootstrap_call *call, int peer,
                                           uint32_t tag, void **data, size_t *bytes, tt_deadline deadline);
/* What a rank of a split receives is the id. */
ncclResult_t __wrap_tt_bootstrap_call_recv(struct tt_bootstrap *b, const struct tt_bootstrap_call *call, int peer,
                                           uint32_t tag, void **data, size_t *bytes, tt_deadline deadline)
{
  ncclResult_t result = __real_tt_bootstrap_call_recv(b, call, peer, tag, data, bytes, deadline);
  if (dies_with_id) kill(getpid(), SIGKILL);
  return result;
}

static void die(void)
{
  ncclComm_t comm, child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (read(orders[0], &id, sizeof id) == sizeof id && ncclCommInitRank(&comm, N, id, DIES) == ncclSuccess) {
    dies = true;
    ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &child, NULL);
  }
  _exit(1);
}

static void *split(void *comm)
{
  ncclComm_t child;
  ck_assert_int_ne(ncclCommSplit(comm, 1, 0, &child, NULL), ncclSuccess);
  return NULL;
}

START_TEST(shrink_after_it)
{
  ncclComm_t comms[N], children[N];
  pthread_t threads[N];
  int dead = DIES, status;
  int64_t data[N];
  ck_assert_int_eq(pipe(orders), 0);
  pid_t pid = fork();
  if (pid == 0) die();
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(write(orders[1], &id, sizeof id), sizeof id);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  for (int r = FIRST; r < N; r++) ck_assert_int_eq(ncclCommInitRank(&comms[r], N, id, r), ncclSuccess);
  ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  atomic_store(&splits, true);
  for (int r = FIRST; r < N; r++) ck_assert_int_eq(pthread_create(&threads[r], NULL, split, comms[r]), 0);
  for (int r = FIRST; r < N; r++) pthread_join(threads[r], NULL);
  ck_assert(!atomic_load(&splits));
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  for (int r = FIRST; r < N; r++)
    ck_assert_int_eq(ncclCommShrink(comms[r], &dead, 1, &children[r], NULL, NCCL_SHRINK_ABORT), ncclSuccess);
  ck_assert_msg(ncclGroupEnd() == ncclSuccess, "%s", tt_log_thread_error());
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  for (int r = FIRST; r < N; r++) {
    data[r] = r;
    ck_assert_int_eq(ncclAllReduce(&data[r], &data[r], 1, ncclInt64, ncclSum, children[r], NULL), ncclSuccess);
  }
  ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  for (int r = FIRST; r < N; r++) {
    ck_assert_int_eq(data[r], FIRST + GIVES_UP);
    ck_assert_int_eq(ncclCommDestroy(children[r]), ncclSuccess);
    ck_assert_int_eq(ncclCommAbort(comms[r]), ncclSuccess);
  }
}
END_TEST

/* The last of two ranks; the first has made the new communicator's root, to which nobody else comes. */
static void die_with_id(void)
{
  ncclComm_t comm, child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (read(orders[0], &id, sizeof id) == sizeof id && ncclCommInitRank(&comm, 2, id, 1) == ncclSuccess) {
    dies_with_id = true;
    ncclCommSplit(comm, 0, 0, &child, NULL);
  }
  _exit(1);
}

START_TEST(with_the_id)
{
  ncclComm_t comm, child;
  int status;
  ck_assert_int_eq(pipe(orders), 0);
  pid_t pid = fork();
  if (pid == 0) die_with_id();
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(write(orders[1], &id, sizeof id), sizeof id);
  ck_assert_int_eq(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
  ck_assert_int_eq(ncclCommSplit(comm, 0, 0, &child, NULL), ncclRemoteError);
  ck_assert_ptr_null(child);
  ck_assert_msg(strstr(tt_log_thread_error(), "rank 1 of the parent is gone") != NULL, "%s", tt_log_thread_error());
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  ck_assert_int_eq(ncclCommAbort(comm), ncclSuccess);
}
END_TEST

int main(void)
{
  setenv("TUTTI_DEVICE", "host", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_BOOTSTRAP_TIMEOUT", "3600", 1); /* far more than the tests may take */
  tt_param_reset();
  Suite *suite = suite_create("split death");
  TCase *tests = tcase_create("split death");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, shrink_after_it);
  tcase_add_test(tests, with_the_id);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
