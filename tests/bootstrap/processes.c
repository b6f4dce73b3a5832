/* Ranks as processes: this program starts itself with the id as argument. */
#include "ranks.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/timer.h"
#include "bootstrap/root.h"

extern char **environ;

/* A guard against hangs. */
#define HANG_NS 20000000000ull

/* Exit statuses of a rank beyond success. */
enum { WRONG_DATA = 10, NOT_CREATED = 20, NAMED_THE_DEAD = 30, OTHER_ERROR = 40, GIVEN_UP = 50 };

static int gather(struct tt_bootstrap *b, int rank, int nranks, int turns)
{
  int *data = malloc((size_t)nranks * sizeof(int));
  int status = 0;
  for (int turn = 0; turn < turns && status == 0; turn++) {
    data[rank] = turn * 1000 + rank;
    if (tt_bootstrap_all_gather(b, data, sizeof(int)) != ncclSuccess) status = OTHER_ERROR;
    for (int r = 0; r < nranks && status == 0; r++)
      if (data[r] != turn * 1000 + r) status = WRONG_DATA;
  }
  free(data);
  return status;
}

/* Gathers until rank `victim` is dead, as the error must say. */
static int gather_until_dead(struct tt_bootstrap *b, int rank, int nranks, int victim)
{
  char text[32];
  snprintf(text, sizeof(text), "rank %d is gone", victim);
  if (gather(b, rank, nranks, 3) != 0) return OTHER_ERROR;
  if (rank == victim) {
    /* The others are on their way into the next gather, or in it. */
    usleep(100000);
    raise(SIGKILL);
  }
  if (gather(b, rank, nranks, 1) == 0) return WRONG_DATA;
  return strstr(tt_log_thread_error(), text) ? NAMED_THE_DEAD : OTHER_ERROR;
}

/* Rank 0 waits alone; it has no connection with the victim, and those who have one wait for nothing. All hear of it. */
static int wait_for_stopped(struct tt_bootstrap *b, int rank, int victim)
{
  char why[240] = "";
  int dead = -1;
  usleep(3000000); /* that all waited while they joined is forgotten */
  if (rank == victim) raise(SIGSTOP);
  for (uint64_t start = tt_timer_ns(); tt_timer_ns() - start < HANG_NS; usleep(50000))
    if ((rank == 0 || rank == victim) ? tt_bootstrap_dead(b, &dead, why, sizeof(why)) : tt_bootstrap_left(b, 0)) break;
  if (dead < 0) (void)tt_bootstrap_dead(b, &dead, why, sizeof(why));
  if (rank == victim) return strstr(why, "has given this rank up") ? GIVEN_UP : OTHER_ERROR;
  return dead == victim && strstr(why, "TUTTI_PEER_TIMEOUT") ? NAMED_THE_DEAD : OTHER_ERROR;
}

/* rank ID RANK NRANKS VICTIM kill|stop */
int process_main(int argc, char **argv)
{
  ncclUniqueId id;
  struct tt_bootstrap *b;
  if (argc != 7) return 99;
  for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++) {
    unsigned value;
    if (sscanf(argv[2] + 2 * i, "%2x", &value) != 1) return 98;
    id.internal[i] = (char)value;
  }
  int rank = atoi(argv[3]), nranks = atoi(argv[4]), victim = atoi(argv[5]);
  if (tt_bootstrap_create(&id, rank, nranks, NULL, &b) != ncclSuccess)
    return strstr(tt_log_thread_error(), "used before") ? NOT_CREATED : OTHER_ERROR;
  int status = victim < 0                     ? gather(b, rank, nranks, 5)
               : strcmp(argv[6], "stop") == 0 ? wait_for_stopped(b, rank, victim)
                                              : gather_until_dead(b, rank, nranks, victim);
  if (status != 0 && status != NAMED_THE_DEAD && status != GIVEN_UP)
    fprintf(stderr, "rank %d: %s\n", rank, tt_log_thread_error());
  tt_bootstrap_destroy(b);
  return status;
}

static pid_t start_as(const ncclUniqueId *id, int rank, int nranks, int victim, char *how)
{
  char hex[2 * NCCL_UNIQUE_ID_BYTES + 1], texts[3][16];
  pid_t pid;
  for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++) sprintf(hex + 2 * i, "%02x", (unsigned char)id->internal[i]);
  sprintf(texts[0], "%d", rank);
  sprintf(texts[1], "%d", nranks);
  sprintf(texts[2], "%d", victim);
  char *argv[] = {"test_bootstrap", "rank", hex, texts[0], texts[1], texts[2], how, NULL};
  ck_assert_int_eq(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
  return pid;
}

static pid_t start(const ncclUniqueId *id, int rank, int nranks, int victim)
{
  return start_as(id, rank, nranks, victim, "kill");
}

static int status_of(pid_t pid)
{
  int status;
  while (waitpid(pid, &status, 0) < 0) ck_assert_int_eq(errno, EINTR);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

START_TEST(processes)
{
  static const int sizes[] = {1, 2, 3, 8, 64};
  int n = sizes[_i];
  pid_t pids[64];
  ncclUniqueId id;
  environment(NULL);
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  for (int r = 0; r < n; r++) pids[r] = start(&id, r, n, -1);
  for (int r = 0; r < n; r++) ck_assert_int_eq(status_of(pids[r]), 0);
}
END_TEST

START_TEST(killed_rank_is_named_by_all)
{
  static const int sizes[] = {2, 5, 16};
  int n = sizes[_i], victim = n - 2;
  pid_t pids[16];
  ncclUniqueId id;
  environment(NULL);
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  for (int r = 0; r < n; r++) pids[r] = start(&id, r, n, victim);
  for (int r = 0; r < n; r++) ck_assert_int_eq(status_of(pids[r]), r == victim ? 1000 + SIGKILL : NAMED_THE_DEAD);
}
END_TEST

START_TEST(stopped_rank_is_found_by_who_is_far_from_it)
{
  enum { N = 6, VICTIM = 3 }; /* 3 is no power of two in either direction */
  const char *const settings[] = {"TUTTI_PEER_TIMEOUT=1", NULL};
  pid_t pids[N];
  ncclUniqueId id;
  environment(settings);
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  for (int r = 0; r < N; r++) pids[r] = start_as(&id, r, N, VICTIM, "stop");
  int first = status_of(pids[0]);
  kill(pids[VICTIM], SIGCONT);
  ck_assert_int_eq(first, NAMED_THE_DEAD);
  for (int r = 1; r < N; r++) ck_assert_int_eq(status_of(pids[r]), r == VICTIM ? GIVEN_UP : NAMED_THE_DEAD);
}
END_TEST

/* A rank that dies after its check-in, while others are awaited. */
START_TEST(killed_before_all_came)
{
  pid_t pids[2];
  ncclUniqueId id;
  struct rank ranks[1] = {{.rank = 2, .nranks = 4}};
  environment(NULL);
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  int before = held_descriptors();
  for (int r = 0; r < 2; r++) pids[r] = start(&id, r, 4, -1);
  while (held_descriptors() < before + 2) usleep(1000); /* the root, in this process, keeps who has come */
  usleep(500000);                                       /* for the rest of the check-in */
  kill(pids[1], SIGKILL);
  ranks_run(&id, 1, NULL, NULL, ranks);
  ck_assert_int_eq(ranks[0].result, ncclRemoteError);
  ck_assert_msg(strstr(ranks[0].error, "rank 1"), "%s", ranks[0].error);
  ck_assert_msg(strstr(ranks[0].error, "left while"), "%s", ranks[0].error);
  ck_assert_int_eq(status_of(pids[0]), OTHER_ERROR);
  ck_assert_int_eq(status_of(pids[1]), 1000 + SIGKILL);
}
END_TEST

static ncclResult_t body_second_use(struct rank *me)
{
  /* Rank 0 of 1 of this process's communicator; processes that never saw the id try it while that lives. */
  if (me->rank == 0) {
    pid_t first = start(me->id, 0, 2, -1), second = start(me->id, 1, 2, -1);
    int a = status_of(first), b = status_of(second);
    if (a != NOT_CREATED || b != NOT_CREATED) return ncclInternalError;
  }
  return tt_bootstrap_barrier(me->b);
}

START_TEST(second_use_by_other_processes)
{
  environment(NULL);
  ranks_succeed(2, body_second_use, NULL);
}
END_TEST

/* The same after the communicator's end, while the root still serves another id. */
START_TEST(second_use_after_the_end)
{
  ncclUniqueId id, other;
  struct rank ranks[2] = {0};
  struct tt_id parsed;
  environment(NULL);
  ck_assert_int_eq(tt_bootstrap_unique_id(&other), ncclSuccess);
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ranks_run(&id, 2, NULL, NULL, ranks);
  ck_assert_int_eq(ranks[0].result, ncclSuccess);
  pid_t pids[2] = {start(&id, 0, 2, -1), start(&id, 1, 2, -1)};
  for (int r = 0; r < 2; r++) ck_assert_int_eq(status_of(pids[r]), NOT_CREATED);
  ck_assert_int_eq(tt_wire_get_id(&other, &parsed), ncclSuccess);
  tt_root_drop(parsed.nonce);
}
END_TEST

Suite *suite_processes(void)
{
  Suite *suite = suite_create("processes");
  TCase *tests = tcase_create("processes");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, processes, 0, 5);
  tcase_add_loop_test(tests, killed_rank_is_named_by_all, 0, 3);
  tcase_add_test(tests, stopped_rank_is_found_by_who_is_far_from_it);
  tcase_add_test(tests, killed_before_all_came);
  tcase_add_test(tests, second_use_by_other_processes);
  tcase_add_test(tests, second_use_after_the_end);
  suite_add_tcase(suite, tests);
  return suite;
}
