/* Children that use their parent's memory (splitShare, shrinkShare): that they do, that results are right while both
 * are used, and that each may end, or be aborted, without the others. */
#include "suites.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "nccl.h"

enum { N = 4, LARGE = 20000 };

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, tt_log_thread_error());
}

/* Descriptors of shared memory; those of connections come and go. */
static int descriptors(void)
{
  int count = 0;
  DIR *dir = opendir("/proc/self/fd");
  ck_assert_ptr_nonnull(dir);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    char name[300], target[100] = "";
    snprintf(name, sizeof name, "/proc/self/fd/%s", entry->d_name);
    count += readlink(name, target, sizeof target - 1) > 0 && strstr(target, "memfd:tutti") != NULL;
  }
  closedir(dir);
  return count;
}

/* Threads that hand out shared memory. */
static int services(void)
{
  int count = 0;
  DIR *dir = opendir("/proc/self/task");
  ck_assert_ptr_nonnull(dir);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    char name[300], thread[32] = "";
    snprintf(name, sizeof name, "/proc/self/task/%s/comm", entry->d_name);
    FILE *file = fopen(name, "r"); /* NULL: it has ended */
    if (file == NULL) continue;
    count += fgets(thread, sizeof thread, file) != NULL && strcmp(thread, "tutti-memory\n") == 0;
    fclose(file);
  }
  closedir(dir);
  return count;
}

/* Shared memories that this process has mapped as a whole: each has hundreds of megabytes of address space. */
static int memories(void)
{
  char line[512];
  int count = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  ck_assert_ptr_nonnull(maps);
  while (fgets(line, sizeof line, maps) != NULL) {
    unsigned long from, to;
    if (strstr(line, "memfd:tutti") != NULL && sscanf(line, "%lx-%lx", &from, &to) == 2) count += to - from > 256 << 20;
  }
  fclose(maps);
  return count;
}

static ncclConfig_t sharing(int split, int shrink)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = split;
  config.shrinkShare = shrink;
  return config;
}

static void create(ncclComm_t comms[N], ncclConfig_t config[N])
{
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(ncclCommInitRankConfig(&comms[r], N, id, r, &config[r]));
  ok(ncclGroupEnd());
}

static void create_alike(ncclComm_t comms[N], int split, int shrink)
{
  ncclConfig_t config[N];
  for (int r = 0; r < N; r++) config[r] = sharing(split, shrink);
  create(comms, config);
}

/* In opposite order, so that a child's ranks have other numbers than their parent's. */
static void split(ncclComm_t parents[N], ncclComm_t children[N])
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(ncclCommSplit(parents[r], 0, -r, &children[r], NULL));
  ok(ncclGroupEnd());
}

static void destroy(ncclComm_t comms[N])
{
  for (int r = 0; r < N; r++)
    if (comms[r] != NULL) ok(ncclCommDestroy(comms[r]));
}

static void expect_all(const float *values, size_t count, float value)
{
  size_t wrong = 0;
  for (size_t i = 0; i < count; i++) wrong += values[i] != value; /* one assertion each would take minutes */
  ck_assert_uint_eq(wrong, 0);
}

/* A sum, small and large, and a message of each rank to the one before it. Ranks without a communicator take no part.
 */
static void use(ncclComm_t comms[N], int seed)
{
  static float in[N][LARGE], out[N][LARGE];
  int64_t sent[N], got[N], sum = 0;
  for (int round = 0; round < 2; round++) {
    size_t count = round ? LARGE : 10;
    sum = 0;
    ok(ncclGroupStart());
    for (int r = 0; r < N; r++) {
      if (comms[r] == NULL) continue;
      for (size_t i = 0; i < count; i++) in[r][i] = (float)(r + 1 + seed);
      sum += r + 1 + seed;
      ok(ncclAllReduce(in[r], out[r], count, ncclFloat, ncclSum, comms[r], NULL));
    }
    ok(ncclGroupEnd());
    for (int r = 0; r < N; r++)
      if (comms[r] != NULL) expect_all(out[r], count, (float)sum);
  }
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    int rank, n;
    if (comms[r] == NULL) continue;
    ok(ncclCommUserRank(comms[r], &rank));
    ok(ncclCommCount(comms[r], &n));
    sent[r] = 100 * seed + rank;
    ok(ncclSend(&sent[r], 1, ncclInt64, (rank + n - 1) % n, comms[r], NULL));
    ok(ncclRecv(&got[r], 1, ncclInt64, (rank + 1) % n, comms[r], NULL));
  }
  ok(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    int rank, n;
    if (comms[r] == NULL) continue;
    ok(ncclCommUserRank(comms[r], &rank));
    ok(ncclCommCount(comms[r], &n));
    ck_assert_int_eq(got[r], 100 * seed + (rank + 1) % n);
  }
}

/* Descriptors and memories that a child adds. */
static void measure(int share, int *files, int *maps)
{
  ncclComm_t parents[N], children[N];
  create_alike(parents, share, 0);
  use(parents, 1);
  *files = descriptors();
  *maps = memories();
  split(parents, children);
  use(children, 2);
  *files = descriptors() - *files;
  *maps = memories() - *maps;
  destroy(parents);
  use(children, 3);
  destroy(children);
  ck_assert_int_eq(memories(), 0);
}

START_TEST(really_shared)
{
  int files[2], maps[2];
  for (int share = 0; share < 2; share++) measure(share, &files[share], &maps[share]);
  ck_assert_int_eq(maps[0], N);
  ck_assert_int_eq(maps[1], 0);
  ck_assert_int_eq(files[0], N);
  ck_assert_int_eq(files[1], 0);
}
END_TEST

/* A family of three, ended in each order; those that are left go on. */
START_TEST(any_order)
{
  static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  ncclComm_t family[3][N];
  for (int o = 0; o < 6; o++) {
    create_alike(family[0], 1, 0);
    split(family[0], family[1]);
    split(family[1], family[2]);
    ck_assert_int_eq(memories(), N);
    for (int left = 0; left < 3; left++) {
      for (int f = left; f < 3; f++) use(family[orders[o][f]], f);
      destroy(family[orders[o][left]]);
    }
    ck_assert_int_eq(memories(), 0);
  }
}
END_TEST

/* Ranks that do not agree on it share nothing. */
START_TEST(one_does_not)
{
  ncclComm_t parents[N], children[N];
  ncclConfig_t config[N];
  for (int r = 0; r < N; r++) config[r] = sharing(r != 2, 0);
  create(parents, config);
  split(parents, children);
  ck_assert_int_eq(memories(), 2 * N);
  use(parents, 1);
  use(children, 2);
  destroy(parents);
  use(children, 3);
  destroy(children);
}
END_TEST

START_TEST(shrunk)
{
  int excluded = 1;
  for (int aborts = 0; aborts < 2; aborts++) {
    ncclComm_t parents[N], children[N] = {NULL};
    create_alike(parents, 0, 1);
    use(parents, 1);
    ok(ncclGroupStart());
    for (int r = 0; r < N; r++)
      if (r != excluded) ok(ncclCommShrink(parents[r], &excluded, 1, &children[r], NULL, aborts));
    ok(ncclGroupEnd());
    ck_assert_int_eq(memories(), aborts ? 2 * N - 1 : N);
    ok(ncclCommAbort(parents[excluded]));
    parents[excluded] = NULL;
    use(children, 2);
    destroy(parents);
    use(children, 3);
    destroy(children);
  }
}
END_TEST

struct driver {
  pthread_t thread;
  ncclComm_t comm;
  int rank, rounds;
  float value;
};

static void *drive(void *arg)
{
  struct driver *driver = arg;
  float *in = calloc(LARGE, sizeof *in), *out = calloc(LARGE, sizeof *out);
  for (int round = 0; round < driver->rounds; round++) {
    for (size_t i = 0; i < LARGE; i++) in[i] = driver->value + (float)round;
    ok(ncclAllReduce(in, out, LARGE, ncclFloat, ncclSum, driver->comm, NULL));
    expect_all(out, LARGE, 2 * driver->value + 2 * (float)round);
  }
  free(in);
  free(out);
  return NULL;
}

/* A parent and a child at work at once, each on threads of its own. */
START_TEST(at_once)
{
  ncclComm_t parents[N], pairs[N];
  struct driver drivers[2][2];
  create_alike(parents, 1, 0);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(ncclCommSplit(parents[r], r / 2, 0, &pairs[r], NULL));
  ok(ncclGroupEnd());
  ck_assert_int_eq(memories(), N);
  for (int pair = 0; pair < 2; pair++)
    for (int r = 0; r < 2; r++) {
      drivers[pair][r] =
          (struct driver){.comm = pairs[2 * pair + r], .rank = r, .rounds = 10, .value = (float)(10 * pair)};
      ck_assert_int_eq(pthread_create(&drivers[pair][r].thread, NULL, drive, &drivers[pair][r]), 0);
    }
  for (int round = 0; round < 8; round++) use(parents, round);
  for (int pair = 0; pair < 2; pair++)
    for (int r = 0; r < 2; r++) pthread_join(drivers[pair][r].thread, NULL);
  destroy(pairs);
  use(parents, 7);
  destroy(parents);
}
END_TEST

static void *reduce_in_vain(void *comm)
{
  static float data[LARGE];
  ncclResult_t result = ncclAllReduce(data, data, LARGE, ncclFloat, ncclSum, comm, NULL);
  ck_assert_int_ne(result, ncclSuccess);
  return NULL;
}

/* Ranks of the parent that wait for one that never comes are aborted; the children, also new ones of theirs, go on. */
START_TEST(aborted)
{
  ncclComm_t parents[N], children[N], grandchildren[N];
  pthread_t threads[N - 1];
  create_alike(parents, 1, 0);
  use(parents, 1);
  split(parents, children);
  for (int r = 0; r < N - 1; r++) ck_assert_int_eq(pthread_create(&threads[r], NULL, reduce_in_vain, parents[r]), 0);
  for (int round = 0; round < 5; round++) use(children, round);
  for (int r = N - 1; r >= 0; r--) ok(ncclCommAbort(parents[r]));
  for (int r = 0; r < N - 1; r++) pthread_join(threads[r], NULL);
  for (int round = 0; round < 5; round++) use(children, round);
  split(children, grandchildren);
  ck_assert_int_eq(memories(), N);
  use(grandchildren, 4);
  use(children, 5);
  destroy(children);
  use(grandchildren, 6);
  destroy(grandchildren);
  ck_assert_int_eq(memories(), 0);
}
END_TEST

#ifdef NET_SOCKET
/* Messages of each rank to the one before it, of one communicator. */
struct family {
  pthread_t thread;
  ncclComm_t comms[N];
  int number;
};

static void *exchange(void *arg)
{
  struct family *family = arg;
  int64_t sent[N], got[N];
  for (int round = 0; round < 1000; round++) {
    ok(ncclGroupStart());
    for (int r = 0; r < N; r++) {
      sent[r] = 100000 * family->number + 10 * round + r;
      ok(ncclSend(&sent[r], 1, ncclInt64, (r + N - 1) % N, family->comms[r], NULL));
      ok(ncclRecv(&got[r], 1, ncclInt64, (r + 1) % N, family->comms[r], NULL));
    }
    ok(ncclGroupEnd());
    for (int r = 0; r < N; r++) ck_assert_int_eq(got[r], 100000 * family->number + 10 * round + (r + 1) % N);
  }
  return NULL;
}

/* A parent and its child, of the same ranks, at the same time, and the parent once its child is gone. */
static void use_both(void)
{
  struct family families[2] = {{.number = 0}, {.number = 1}};
  create_alike(families[0].comms, 1, 0);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) ok(ncclCommSplit(families[0].comms[r], 0, r, &families[1].comms[r], NULL));
  ok(ncclGroupEnd());
  ck_assert_int_eq(memories(), N);
  for (int f = 0; f < 2; f++) ck_assert_int_eq(pthread_create(&families[f].thread, NULL, exchange, &families[f]), 0);
  for (int f = 0; f < 2; f++) pthread_join(families[f].thread, NULL);
  destroy(families[1].comms);
  exchange(&families[0]);
  destroy(families[0].comms);
}

/* Communicators that share memory share no network connections. */
START_TEST(over_a_network)
{
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_NET_PLUGIN", NET_SOCKET, 1);
  tt_param_reset();
  use_both();
}
END_TEST
#endif

/* ---- Ranks in processes of their own ---- */

enum { RANKS = 3 };

/* What the child of a rank that shares, and of one that does not, adds. Exit status 0: all as it should be. */
static int run_rank(int rank, int give, int take)
{
  int files[2], threads[2];
  for (int share = 0; share < 2; share++) {
    ncclUniqueId id;
    ncclComm_t parent, child;
    ncclConfig_t config = sharing(share, 0);
    if (rank == 0) {
      if (ncclGetUniqueId(&id) != ncclSuccess) return 10;
      for (int r = 1; r < RANKS; r++)
        if (write(give, &id, sizeof id) != sizeof id) return 11;
    } else if (read(take, &id, sizeof id) != sizeof id) {
      return 12;
    }
    int64_t in = 1 << rank, out[2] = {0};
    if (ncclCommInitRankConfig(&parent, RANKS, id, rank, &config) != ncclSuccess) return 13;
    if (ncclAllReduce(&in, &out[0], 1, ncclInt64, ncclSum, parent, NULL) != ncclSuccess) return 14;
    files[share] = descriptors();
    threads[share] = services();
    if (ncclCommSplit(parent, 0, -rank, &child, NULL) != ncclSuccess) return 15;
    if (ncclAllReduce(&in, &out[1], 1, ncclInt64, ncclSum, child, NULL) != ncclSuccess) return 16;
    if (out[0] != (1 << RANKS) - 1 || out[1] != out[0]) return 17;
    files[share] = descriptors() - files[share];
    threads[share] = services() - threads[share];
    if (ncclCommDestroy(parent) != ncclSuccess) return 18;
    if (ncclAllReduce(&in, &out[1], 1, ncclInt64, ncclMax, child, NULL) != ncclSuccess) return 19;
    if (out[1] != 1 << (RANKS - 1) || ncclCommDestroy(child) != ncclSuccess) return 20;
  }
  if (threads[0] != 1 || threads[1] != 0) return 21;
  if (files[0] < 2 || files[1] != 0) return 22; /* its own, and at least one of another rank's */
  return 0;
}

START_TEST(processes)
{
  int ends[2];
  pid_t pids[RANKS];
  ck_assert_int_eq(pipe(ends), 0);
  for (int r = 0; r < RANKS; r++) {
    pids[r] = fork();
    ck_assert_int_ge(pids[r], 0);
    if (pids[r] == 0) _exit(run_rank(r, ends[1], ends[0]));
  }
  for (int r = 0; r < RANKS; r++) {
    int status = 0;
    ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d ended with status %x", r, status);
  }
}
END_TEST

Suite *sharing_suite(void)
{
  Suite *suite = suite_create("sharing");
  TCase *tests = tcase_create("sharing");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, really_shared);
  tcase_add_test(tests, any_order);
  tcase_add_test(tests, one_does_not);
  tcase_add_test(tests, shrunk);
  tcase_add_test(tests, at_once);
  tcase_add_test(tests, aborted);
#ifdef NET_SOCKET
  tcase_add_test(tests, over_a_network);
#endif
  tcase_add_test(tests, processes);
  suite_add_tcase(suite, tests);
  return suite;
}
