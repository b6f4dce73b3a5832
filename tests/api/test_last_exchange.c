/* A rank that dies in the last exchange of ncclCommInitRank, so that another one's fails, while a third one is in its
 * first operation already: that one learns who has died, and does not blame the one that gave up. */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "nccl.h"
#include "api/timings.h"
#include "base/log.h"
#include "base/param.h"
#include "bootstrap/internal.h"
#include "health/health.h"

/* Who is made needs a message of the one that dies, and then one of the one that gives up, which waits for the second
 * message of the one that dies. */
enum { DIES, MADE, GIVES_UP, N };

static ncclUniqueId id;
static int orders[2]; /* the pipe that DIES hears by */
static _Thread_local bool dies;
static int sent;

void __real_tt_timings_enter(struct tt_timings *timings, struct ncclComm *comm, enum tt_stage stage);
void __wrap_tt_timings_enter(struct tt_timings *timings, struct ncclComm *comm, enum tt_stage stage);
void __wrap_tt_timings_enter(struct tt_timings *timings, struct ncclComm *comm, enum tt_stage stage)
{
  dies = comm->rank == DIES && stage == TT_STAGE_LAST_BARRIER;
  __real_tt_timings_enter(timings, comm, stage);
}

ncclResult_t __real_tt_mail_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes,
                                 enum tt_mail_kind kind);
ncclResult_t __wrap_tt_mail_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes,
                                 enum tt_mail_kind kind);
/* DIES waits before its second message until MADE needs nothing of it any more. */
ncclResult_t __wrap_tt_mail_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes,
                                 enum tt_mail_kind kind)
{
  char order;
  if (dies && ++sent == 2 && peer == GIVES_UP && read(orders[0], &order, 1) == 1) kill(getpid(), SIGKILL);
  return __real_tt_mail_send(b, peer, tag, data, bytes, kind);
}

void __real_tt_health_begin(struct tt_health *health, const struct tt_signature *signature);
void __wrap_tt_health_begin(struct tt_health *health, const struct tt_signature *signature);
/* MADE is in an operation: the others have connected with it, although their users are still in the exchange. */
void __wrap_tt_health_begin(struct tt_health *health, const struct tt_signature *signature)
{
  __real_tt_health_begin(health, signature);
  ck_assert_int_eq(write(orders[1], "", 1), 1);
}

static void die(void)
{
  ncclComm_t comm;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (read(orders[0], &id, sizeof id) == sizeof id) ncclCommInitRank(&comm, N, id, DIES);
  _exit(1);
}

static void expect_its_death(ncclResult_t result)
{
  ck_assert_msg(result == ncclRemoteError && strstr(tt_log_thread_error(), "rank 0 is gone") != NULL, "%d: %s", result,
                tt_log_thread_error());
}

static void *give_up(void *unused)
{
  ncclComm_t comm;
  (void)unused;
  expect_its_death(ncclCommInitRank(&comm, N, id, GIVES_UP));
  return NULL;
}

START_TEST(the_dead_one_is_named)
{
  ncclComm_t comm;
  pthread_t thread;
  float data = 1;
  int status;
  ck_assert_int_eq(pipe(orders), 0);
  pid_t pid = fork();
  if (pid == 0) die();
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(write(orders[1], &id, sizeof id), sizeof id);
  ck_assert_int_eq(pthread_create(&thread, NULL, give_up, NULL), 0);
  ck_assert_int_eq(ncclCommInitRank(&comm, N, id, MADE), ncclSuccess);
  expect_its_death(ncclAllReduce(&data, &data, 1, ncclFloat32, ncclSum, comm, NULL));
  pthread_join(thread, NULL);
  ncclCommAbort(comm);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
END_TEST

int main(void)
{
  setenv("TUTTI_DEVICE", "host", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  tt_param_reset();
  Suite *suite = suite_create("last exchange");
  TCase *tests = tcase_create("last exchange");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, the_dead_one_is_named);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
