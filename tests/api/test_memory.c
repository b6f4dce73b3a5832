/* What communicators allocate, and what they do when they cannot. This program's linker leads every call of the
 * allocator through here, which counts those of the thread that asks for it, and has one of them fail. */
#include <check.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "nccl.h"
#include "tests/common/held.h"

static _Thread_local bool counts;
static _Thread_local int allocations;
static _Thread_local int failing; /* the number of the allocation that fails, from 1; 0: none */

#define COUNTED(result, name, parameters, arguments)                                                                   \
  result __real_##name parameters;                                                                                     \
  result __wrap_##name parameters;                                                                                     \
  result __wrap_##name parameters                                                                                      \
  {                                                                                                                    \
    if (counts && ++allocations == failing) return NULL;                                                               \
    return __real_##name arguments;                                                                                    \
  }
COUNTED(void *, malloc, (size_t bytes), (bytes))
COUNTED(void *, calloc, (size_t count, size_t bytes), (count, bytes))
COUNTED(void *, realloc, (void *old, size_t bytes), (old, bytes))
COUNTED(void *, aligned_alloc, (size_t to, size_t bytes), (to, bytes))
COUNTED(char *, strdup, (const char *text), (text))

static void ok(ncclResult_t result) /* the checks of `check` allocate */
{
  if (result != ncclSuccess) ck_abort_msg("result %d: %s", result, tt_log_thread_error());
}

enum { N = 3, WARM = 4, ROUNDS = 50, LARGE = 300000 };

struct world {
  ncclComm_t comms[N];
  float *data[N], *result[N];
};

static void all_reduce(struct world *world, size_t count)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclAllReduce(world->data[r], world->result[r], count, ncclFloat, ncclSum, world->comms[r], NULL));
  ok(ncclGroupEnd());
}

/* Each rank sends to the next, and to itself. */
static void exchange(struct world *world, size_t count)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    ok(ncclSend(world->data[r], count, ncclFloat, (r + 1) % N, world->comms[r], NULL));
    ok(ncclRecv(world->result[r], count, ncclFloat, (r + N - 1) % N, world->comms[r], NULL));
    ok(ncclSend(world->data[r], 1, ncclFloat, r, world->comms[r], NULL));
    ok(ncclRecv(world->result[r] + count, 1, ncclFloat, r, world->comms[r], NULL));
  }
  ok(ncclGroupEnd());
}

static void all_of_it(struct world *world)
{
  all_reduce(world, 10);
  all_reduce(world, LARGE);
  exchange(world, 10);
  exchange(world, LARGE);
}

START_TEST(repeated_calls)
{
  struct world world;
  ok(ncclCommInitAll(world.comms, N, NULL));
  for (int r = 0; r < N; r++) {
    world.data[r] = calloc(LARGE + 1, sizeof(float));
    world.result[r] = calloc(LARGE + 1, sizeof(float));
    world.data[r][9] = 1.0f;
  }
  counts = true;
  for (int i = 0; i < WARM; i++) all_of_it(&world);
  ck_assert_int_gt(allocations, 0);
  allocations = 0;
  for (int i = 0; i < ROUNDS; i++) all_of_it(&world);
  int after = allocations;
  counts = false;
  ck_assert_int_eq(after, 0);
  all_reduce(&world, 10);
  for (int r = 0; r < N; r++) {
    ck_assert_float_eq(world.result[r][9], N);
    ok(ncclCommDestroy(world.comms[r]));
    free(world.data[r]);
    free(world.result[r]);
  }
}
END_TEST

/* ---- Creation that fails ---- */

/* A thread ends a little after it was asked to. */
static void expect_at_most(int files, int threads)
{
  struct held now;
  held_settles((struct held){threads, files, INT_MAX}, 5000, &now);
  ck_assert_int_le(now.descriptors, files);
  ck_assert_int_le(now.threads, threads);
}

/* Creates a communicator in which allocation number `n` of this thread fails. Whether there were so many. */
static bool create_failing(int n, ncclUniqueId id, int nranks, int rank)
{
  ncclComm_t comm = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = "short of memory";
  allocations = 0;
  failing = n;
  counts = true;
  ncclResult_t result = ncclCommInitRankConfig(&comm, nranks, id, rank, &config);
  counts = false;
  failing = 0;
  bool failed = allocations >= n;
  if (result == ncclSuccess)
    ok(ncclCommDestroy(comm));
  else
    ck_assert_ptr_null(comm);
  if (!failed) ok(result);
  return failed;
}

static ncclUniqueId new_id(void)
{
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id));
  return id;
}

/* A rank that is alone meets nobody: what answers for its unique id, or ids, ends. */
START_TEST(id_of_one_rank)
{
  ncclComm_t comm = NULL;
  ncclUniqueId id = new_id();
  ok(ncclCommInitRank(&comm, 1, id, 0));
  ok(ncclCommDestroy(comm));
  int files = held_descriptors(), threads = held_threads();
  for (int i = 0; i < 2; i++) {
    id = new_id();
    ok(i == 0 ? ncclCommInitRank(&comm, 1, id, 0) : ncclCommInitRankScalable(&comm, 1, 0, 1, &id, NULL));
    expect_at_most(files, threads);
    ok(ncclCommDestroy(comm));
  }
}
END_TEST

/* An id of one rank, too, is used up, also by one of several, and whatever became of the communicator. */
START_TEST(id_of_one_rank_is_used_up)
{
  ncclComm_t first = NULL, second = NULL;
  ncclUniqueId id = new_id();
  ok(ncclCommInitRank(&first, 1, id, 0));
  for (int i = 0; i < 3; i++) {
    ncclResult_t again =
        i == 0 ? ncclCommInitRankScalable(&second, 1, 0, 1, &id, NULL) : ncclCommInitRank(&second, i, id, 0);
    ck_assert_int_eq(again, ncclInvalidUsage);
    ck_assert_ptr_null(second);
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "used before"));
  }
  ok(ncclCommDestroy(first));
  ck_assert_int_eq(ncclCommInitRank(&second, 1, id, 0), ncclInvalidUsage);
  /* At the same time. */
  id = new_id();
  ok(ncclGroupStart());
  ok(ncclCommInitRank(&first, 1, id, 0));
  ok(ncclCommInitRank(&second, 1, id, 0));
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidUsage);
  ncclCommAbort(first); /* whatever the group left of them */
  ncclCommAbort(second);
  /* What is none is not looked at. */
  for (int i = 0; i < 2; i++) {
    id = (ncclUniqueId){{0}};
    ok(ncclCommInitRank(&first, 1, id, 0));
    ok(ncclCommDestroy(first));
  }
}
END_TEST

/* That of NCCL_COMM_ID is one for all. */
START_TEST(id_of_one_rank_that_is_fixed)
{
  ncclComm_t comm = NULL;
  setenv("NCCL_COMM_ID", "127.0.0.1:4000", 1);
  for (int i = 0; i < 2; i++) {
    ok(ncclCommInitRank(&comm, 1, new_id(), 0));
    ok(ncclCommDestroy(comm));
  }
}
END_TEST

START_TEST(creation_fails_alone)
{
  create_failing(1000, new_id(), 1, 0); /* what the process allocates once */
  int files = held_descriptors(), threads = held_threads(), n = 1;
  while (create_failing(n, (ncclUniqueId){0}, 1, 0)) n++;
  ck_assert_int_gt(n, 4);
  expect_at_most(files, threads);
}
END_TEST

/* Memory runs out in the middle of a call within an open group. The communicators that it had begun are gone when it
 * returns, and so may be the caller's array. Whether there were so many allocations. */
static bool group_failing(int n)
{
  enum { LEFT = 0x5a };
  ncclComm_t comms[N];
  unsigned char left[sizeof comms];
  ok(ncclGroupStart());
  counts = true;
  allocations = 0;
  failing = n;
  ncclResult_t result = ncclCommInitAll(comms, N, NULL);
  counts = false;
  failing = 0;
  bool failed = allocations >= n;
  if (result == ncclSuccess) {
    ok(ncclGroupEnd());
    for (int r = 0; r < N; r++) ok(ncclCommDestroy(comms[r]));
    return failed;
  }
  for (int r = 0; r < N; r++) ck_assert_ptr_null(comms[r]);
  memset(comms, LEFT, sizeof comms);
  memset(left, LEFT, sizeof left);
  ck_assert_int_eq(ncclGroupEnd(), result);
  ck_assert_mem_eq(comms, left, sizeof comms);
  return true;
}

START_TEST(group_of_all_fails)
{
  int n = 1;
  while (group_failing(n)) n++;
  ck_assert_int_gt(n, N);
}
END_TEST

/* The other rank, which has memory. */
struct partner {
  ncclUniqueId id;
  _Atomic bool started, first_is_over;
  int unused; /* ids that nobody asked for anything: each has a socket, and one thread serves them all */
};

/* It comes once the first rank waits for it: one that failed before would be waited for. It fails too, in time, or
 * finds out later. */
static void *create_partner(void *arg)
{
  struct partner *partner = arg;
  ncclComm_t comm = NULL;
  for (int i = 0; i < 20 && !partner->first_is_over; i++) usleep(1000);
  if (partner->first_is_over) return NULL;
  partner->started = true;
  if (ncclCommInitRank(&comm, 2, partner->id, 1) == ncclSuccess) ok(ncclCommDestroy(comm));
  return NULL;
}

/* The same for a communicator of two ranks. */
static bool create_two_failing(int n, struct partner *partner)
{
  pthread_t thread;
  partner->id = new_id();
  partner->started = partner->first_is_over = false;
  ck_assert_int_eq(pthread_create(&thread, NULL, create_partner, partner), 0);
  bool failed = create_failing(n, partner->id, 2, 0);
  partner->first_is_over = true;
  pthread_join(thread, NULL);
  partner->unused += !partner->started;
  return failed;
}

START_TEST(creation_fails_among_two)
{
  struct partner partner = {.unused = 0};
  setenv("NCCL_BOOTSTRAP_TIMEOUT", "20", 1);
  setenv("NCCL_SOCKET_RETRY_SLEEP_MSEC", "10", 1); /* of calls to ranks that are gone */
  setenv("NCCL_SOCKET_RETRY_CNT", "5", 1);
  create_two_failing(1 << 30, &partner);
  int files = held_descriptors(), threads = held_threads(), n = 1;
  while (create_two_failing(n, &partner)) n++;
  ck_assert_int_gt(n, 30);
  expect_at_most(files + partner.unused, threads + 1);
  printf("creation of two ranks: %d allocations, each failed once\n", n - 1);
}
END_TEST

int main(void)
{
  setenv("NCCL_DEBUG_FILE", "/dev/null", 0); /* hundreds of failures */
  Suite *suite = suite_create("memory");
  TCase *tests = tcase_create("memory");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, repeated_calls);
  tcase_add_test(tests, id_of_one_rank);
  tcase_add_test(tests, id_of_one_rank_is_used_up);
  tcase_add_test(tests, id_of_one_rank_that_is_fixed);
  tcase_add_test(tests, creation_fails_alone);
  tcase_add_test(tests, creation_fails_among_two);
  tcase_add_test(tests, group_of_all_fails);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
