/* Captured collectives whose buffers lie in no window: mapped by all ranks for the life of their graph, or copied by
 * all. Ranks with a thread each in one process, which know nothing of each other but by messages, and processes. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "collectives.h"
#include "tests/common/faulty_device.h"
#include "tests/fakes/device/fake.h"

enum { N = 3, LONG_MS = 60000, BYTES = 1 << 19, COUNT = 2000, MOST = 13 };

/* One rank, and what it has captured. */
struct rank {
  int number;
  ncclComm_t comm;
  void *stream, *inputs, *outputs;
  struct fake_graph *graph;
  struct operation operations[MOST];
  int noperations;
};

static struct rank ranks[N];

typedef void rank_body(struct rank *rank);

struct job {
  pthread_t thread;
  rank_body *body;
  struct rank *rank;
};

static void *run_job(void *arg)
{
  struct job *job = arg;
  fake_set_device(job->rank->number);
  job->body(job->rank);
  return NULL;
}

/* All at the same time, on threads. */
static void each(rank_body *body)
{
  struct job jobs[N];
  for (int r = 0; r < N; r++) {
    jobs[r] = (struct job){.body = body, .rank = &ranks[r]};
    ck_assert_int_eq(pthread_create(&jobs[r].thread, NULL, run_job, &jobs[r]), 0);
  }
  for (int r = 0; r < N; r++) pthread_join(jobs[r].thread, NULL);
}

static void allocate(struct rank *rank)
{
  rank->inputs = fake_user_alloc(rank->number, BYTES, true, NULL);
  rank->outputs = fake_user_alloc(rank->number, BYTES, true, NULL);
  ck_assert(rank->inputs != NULL && rank->outputs != NULL);
}

static void open_ranks(void)
{
  ncclComm_t comms[N];
  setenv("NCCL_ALGO", "Mapped", 1);
  tt_param_reset();
  ok(ncclCommInitAll(comms, N, NULL));
  memset(ranks, 0, sizeof ranks);
  for (int r = 0; r < N; r++) {
    ranks[r] = (struct rank){.number = r, .comm = comms[r], .stream = fake_stream_create(r)};
    allocate(&ranks[r]);
  }
}

static void close_rank(struct rank *rank)
{
  if (rank->graph != NULL) fake_graph_destroy(rank->graph);
  ok(ncclCommDestroy(rank->comm));
  fake_stream_destroy(rank->stream);
  ck_assert(fake_user_free(rank->inputs) && fake_user_free(rank->outputs));
}

static int memories(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  return counts.memories;
}

static void close_ranks(void)
{
  each(close_rank);
  ck_assert_int_eq(memories(), 0);
}

/* Calls one more; each has its place in the buffers, another one on each rank. */
static void call(struct rank *rank, enum kind kind)
{
  struct operation *o = &rank->operations[rank->noperations];
  size_t at = (size_t)rank->noperations++ * 30000 + (size_t)rank->number * 64;
  *o = (struct operation){.kind = kind, .n = N, .rank = rank->number, .root = kind % N, .count = COUNT};
  o->in = (uint32_t *)(void *)((char *)rank->inputs + at);
  o->out = (uint32_t *)(void *)((char *)rank->outputs + at);
  ck_assert_uint_le(at + 4 * operation_room(o), BYTES);
  ok(operation_call(o, rank->comm, rank->stream));
}

static void end_capture(struct rank *rank)
{
  rank->graph = fake_capture_end(rank->stream);
}

static void replay(struct rank *rank)
{
  fake_graph_replay(rank->graph, rank->stream);
}

static void fill(struct rank *rank, uint32_t seed)
{
  for (int i = 0; i < rank->noperations; i++) operation_fill(&rank->operations[i], seed + (uint32_t)i);
}

static void check(struct rank *rank)
{
  ck_assert(fake_stream_wait(rank->stream, LONG_MS));
  for (int i = 0; i < rank->noperations; i++) operation_check(&rank->operations[i]);
}

/* Repeats what all have captured. */
static void expect_good(void)
{
  for (uint32_t time = 0; time < 3; time++) {
    for (int r = 0; r < N; r++) fill(&ranks[r], 10 * time);
    for (int r = 0; r < N; r++) replay(&ranks[r]);
    for (int r = 0; r < N; r++) check(&ranks[r]);
  }
}

/* Until what graphs had is unmapped, which no call has to see to. */
static void expect_memories(int wanted)
{
  for (uint64_t end = now_ms() + LONG_MS; memories() != wanted && now_ms() < end;) usleep(1000);
  ck_assert_int_eq(memories(), wanted);
}

static const enum kind four[] = {ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL};
static const enum kind rooted[] = {BROADCAST, REDUCE, SCATTER, GATHER};

static void eagerly(struct rank *rank)
{
  for (int k = 0; k < 4; k++) call(rank, four[k]);
  ck_assert(fake_stream_wait(rank->stream, LONG_MS));
  rank->noperations = 0;
}

/* In one group, or in as many as there are operations. */
static void capture_four(struct rank *rank)
{
  bool grouped = rank->number == 1;
  fake_capture_begin(rank->stream);
  if (grouped) ok(ncclGroupStart());
  for (int k = 0; k < 4; k++) call(rank, four[k]);
  for (int k = 0; k < 4; k++) call(rank, rooted[k]);
  if (grouped) ok(ncclGroupEnd());
  for (int k = 0; k < 4; k++) call(rank, four[k]);
  end_capture(rank);
}

static void destroy_graph(struct rank *rank)
{
  fake_graph_destroy(rank->graph);
  rank->graph = NULL;
  rank->noperations = 0;
}

/* Each allocation is mapped once a graph, and unmapped when that is gone. Buffers of eager operations are copied. */
START_TEST(in_place)
{
  open_ranks();
  int before = fake_mapped_works();
  each(eagerly);
  ck_assert_int_eq(fake_mapped_works(), before);
  for (int time = 0; time < 2; time++) {
    each(capture_four);
    ck_assert_int_eq(fake_mapped_works() - before, 12 * N * (time + 1));
    expect_good();
    int with_graphs = memories();
    each(destroy_graph);
    expect_memories(with_graphs - 2 * N * (N - 1));
  }
  close_ranks();
}
END_TEST

/* One thread has all ranks in one group, and does not want to know their buffers from that: as a thread with some of
 * the ranks. Two graphs have the same allocations, and the communicators end before one of them. */
START_TEST(one_thread)
{
  setenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE", "0", 1);
  open_ranks();
  unsetenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE");
  each(eagerly);
  struct fake_graph *first[N];
  int before = fake_mapped_works();
  for (int time = 0; time < 2; time++) {
    for (int r = 0; r < N; r++) {
      first[r] = ranks[r].graph;
      fake_set_device(r);
      fake_capture_begin(ranks[r].stream);
    }
    ok(ncclGroupStart());
    for (int k = 0; k < 4; k++)
      for (int r = 0; r < N; r++) call(&ranks[r], four[k]);
    ok(ncclGroupEnd());
    for (int r = 0; r < N; r++) {
      fake_set_device(r);
      end_capture(&ranks[r]);
    }
    if (time == 0)
      for (int r = 0; r < N; r++) ranks[r].noperations = 0;
  }
  ck_assert_int_eq(fake_mapped_works() - before, 8 * N);
  for (int r = 0; r < N; r++) fake_graph_destroy(first[r]);
  expect_good();
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(ranks[r].comm));
  for (int r = 0; r < N; r++) fake_graph_destroy(ranks[r].graph);
  for (int r = 0; r < N; r++) ck_assert(fake_user_free(ranks[r].inputs) && fake_user_free(ranks[r].outputs));
}
END_TEST

static void capture_one(struct rank *rank)
{
  fake_capture_begin(rank->stream);
  call(rank, ALL_REDUCE);
  end_capture(rank);
}

/* One rank's memory can be mapped by nobody (0), one rank cannot map (1), or the user does not want it (2): all copy,
 * and nothing is held. Other memory at the same address is mapped anew. */
START_TEST(copied_by_all)
{
  if (_i == 2) setenv("NCCL_GRAPH_REGISTER", "0", 1);
  faulty_device_next(0, 0);
  open_ranks();
  unsetenv("NCCL_GRAPH_REGISTER");
  each(eagerly);
  void *at = ranks[2].outputs;
  for (int time = 0; time < 3; time++) {
    bool good = time == 1 && _i < 2;
    ck_assert(fake_user_free(at));
    ck_assert_ptr_eq(fake_user_alloc(2, BYTES, good || _i != 0, at), at);
    if (!good && _i == 1) faulty_device.imports = 0;
    int before = fake_mapped_works(), had = memories();
    each(capture_one);
    faulty_device.imports = FAULTY_NEVER;
    ck_assert_int_eq(fake_mapped_works() - before, good ? N : 0);
    ck_assert_int_eq(memories() - had, good ? 2 * N * (N - 1) : 0);
    expect_good();
    each(destroy_graph);
    expect_memories(had);
  }
  close_ranks();
}
END_TEST

/* Ranks that do not capture what rank 0 does, which are there before it (0) or come later (1). */
static int late;
static void capture_alone(struct rank *rank)
{
  if ((rank->number == 0) == late) usleep(100000);
  if (rank->number == 0)
    capture_one(rank);
  else
    call(rank, ALL_REDUCE);
}

START_TEST(not_captured_elsewhere)
{
  late = _i;
  open_ranks();
  each(eagerly);
  int before = fake_mapped_works();
  for (int r = 0; r < N; r++) fake_stream_hold(ranks[r].stream, true);
  each(capture_alone);
  ck_assert_int_eq(fake_mapped_works(), before);
  for (int r = 0; r < N; r++) fill(&ranks[r], 5);
  replay(&ranks[0]);
  for (int r = 0; r < N; r++) fake_stream_hold(ranks[r].stream, false);
  for (int r = 0; r < N; r++) check(&ranks[r]);
  close_ranks();
}
END_TEST

/* One of several operations is another one on one rank, which is found out as ever, and no buffer is touched. */
static void capture_wrong(struct rank *rank)
{
  fake_capture_begin(rank->stream);
  call(rank, rank->number == 1 ? ALL_GATHER : ALL_REDUCE);
  end_capture(rank);
}

START_TEST(another_operation)
{
  open_ranks();
  each(eagerly);
  int before = fake_mapped_works();
  each(capture_wrong);
  ck_assert_int_eq(fake_mapped_works(), before);
  each(destroy_graph);
  close_ranks();
}
END_TEST

/* A group that is captured on one of its streams only is refused without asking ranks that have not called. */
START_TEST(captured_in_part)
{
  open_ranks();
  each(eagerly);
  void *other = fake_stream_create(0), *own = ranks[0].stream;
  fake_set_device(0);
  fake_capture_begin(own);
  ok(ncclGroupStart());
  call(&ranks[0], ALL_REDUCE);
  ranks[0].stream = other;
  call(&ranks[0], ALL_REDUCE);
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "not captured"));
  ranks[0].stream = own;
  ranks[0].noperations = 0;
  fake_graph_destroy(fake_capture_end(own));
  fake_stream_destroy(other);
  each(capture_one);
  expect_good();
  each(destroy_graph);
  close_ranks();
}
END_TEST

/* ---- Ranks that do not come ---- */

static char logged[4000];
static pthread_mutex_t logged_lock = PTHREAD_MUTEX_INITIALIZER;

static void to_test(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                    const char *text)
{
  (void)level, (void)subsystems, (void)file, (void)line, (void)func;
  pthread_mutex_lock(&logged_lock);
  size_t length = strlen(logged);
  snprintf(logged + length, sizeof logged - length, "%s\n", text);
  pthread_mutex_unlock(&logged_lock);
}

static bool is_logged(const char *text)
{
  pthread_mutex_lock(&logged_lock);
  bool is = strstr(logged, text) != NULL;
  pthread_mutex_unlock(&logged_lock);
  return is;
}

static void *wait_in_vain(void *arg)
{
  struct rank *rank = arg;
  struct operation o = {.kind = ALL_REDUCE, .n = N, .rank = rank->number, .count = COUNT};
  o.in = rank->inputs;
  o.out = rank->outputs;
  fake_set_device(rank->number);
  fake_capture_begin(rank->stream);
  ncclResult_t result = operation_call(&o, rank->comm, rank->stream);
  ck_assert_int_eq(result, ncclInternalError);
  ck_assert_msg(is_logged("aborted while it captured AllReduce"), "%s", logged);
  fake_graph_destroy(fake_capture_end(rank->stream));
  return NULL;
}

/* They are named, with what they have to do; and an abort ends the wait. */
START_TEST(never_there)
{
  pthread_t thread;
  setenv("TUTTI_INIT_WARN", "1", 1); /* before there are threads that read it */
  open_ranks();
  each(eagerly);
  tt_log_redirect(to_test);
  ck_assert_int_eq(pthread_create(&thread, NULL, wait_in_vain, &ranks[1]), 0);
  for (uint64_t end = now_ms() + LONG_MS; !is_logged("for rank 0, 2 to come") && now_ms() < end;) usleep(1000);
  ck_assert_msg(is_logged("rank 1 captures AllReduce (collective 4)") && is_logged("for rank 0, 2 to come"), "%s",
                logged);
  ok(ncclCommAbort(ranks[1].comm));
  pthread_join(thread, NULL);
  tt_log_redirect(NULL);
  for (int r = 0; r < N; r += 2) ok(ncclCommAbort(ranks[r].comm));
  for (int r = 0; r < N; r++) fake_stream_destroy(ranks[r].stream);
  for (int r = 0; r < N; r++) ck_assert(fake_user_free(ranks[r].inputs) && fake_user_free(ranks[r].outputs));
  ck_assert_int_eq(memories(), 0);
}
END_TEST

/* ---- Processes ---- */

static void join(struct rank *rank, int number, const int id_pipe[2])
{
  ncclUniqueId id;
  if (number == 0) {
    ok(ncclGetUniqueId(&id));
    for (int r = 1; r < N; r++) ck_assert_int_eq(write(id_pipe[1], &id, sizeof id), sizeof id);
  } else {
    ck_assert_int_eq(read(id_pipe[0], &id, sizeof id), sizeof id);
  }
  setenv("NCCL_ALGO", "Mapped", 1);
  tt_param_reset();
  fake_set_device(number);
  *rank = (struct rank){.number = number, .stream = fake_stream_create(number)};
  ok(ncclCommInitRank(&rank->comm, N, id, number));
  allocate(rank);
}

/* Memory of other processes, by descriptors. Each graph has it to itself, and nothing of it is left. */
static void in_a_process(int number, const int id_pipe[2])
{
  struct rank rank;
  join(&rank, number, id_pipe);
  eagerly(&rank);
  int had = memories(), descriptors = 0;
  for (int time = 0; time < 3; time++) {
    int before = fake_mapped_works();
    capture_four(&rank);
    ck_assert_int_eq(fake_mapped_works() - before, 12);
    ck_assert_int_eq(memories() - had, 2 * (N - 1) + (time == 0 ? memories() - had - 2 * (N - 1) : 0));
    for (uint32_t seed = 1; seed < 3; seed++) {
      fill(&rank, seed);
      call(&rank, ALL_REDUCE); /* all are ready before any of them reads */
      ck_assert(fake_stream_wait(rank.stream, LONG_MS));
      rank.noperations--;
      replay(&rank);
      check(&rank);
    }
    int mapped = memories();
    destroy_graph(&rank);
    expect_memories(had = mapped - 2 * (N - 1)); /* the first time the broadcast has connections of its own */
    call(&rank, ALL_REDUCE);
    ck_assert(fake_stream_wait(rank.stream, LONG_MS));
    rank.noperations = 0;
    if (time == 0) descriptors = held_descriptors();
  }
  for (int i = 0; i < 5000 && held_descriptors() > descriptors; i++) usleep(1000); /* a thread still closes some */
  ck_assert_int_le(held_descriptors(), descriptors);
  close_rank(&rank);
  ck_assert_int_eq(memories(), 0);
  exit(0);
}

/* The last rank dies while the others wait for it. */
static void with_a_death(int number, const int id_pipe[2])
{
  struct rank rank;
  join(&rank, number, id_pipe);
  eagerly(&rank);
  if (number == N - 1) raise(SIGKILL);
  fake_capture_begin(rank.stream);
  ncclResult_t result = ncclAllReduce(rank.inputs, rank.outputs, COUNT, ncclUint32, ncclSum, rank.comm, rank.stream);
  ck_assert_msg(result == ncclRemoteError, "result %d: %s", result, ncclGetLastError(NULL));
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "rank 2"));
  ok(ncclCommAbort(rank.comm));
  exit(0);
}

/* Ranks are forked from a process that has no threads. _i: one dies. */
START_TEST(processes)
{
  int id_pipe[2];
  pid_t pids[N];
  ck_assert_int_eq(pipe(id_pipe), 0);
  for (int r = 0; r < N; r++) {
    pids[r] = fork();
    ck_assert_int_ge(pids[r], 0);
    if (pids[r] == 0) (_i ? with_a_death : in_a_process)(r, id_pipe);
  }
  for (int r = 0; r < N; r++) {
    int status;
    ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
    if (_i == 1 && r == N - 1)
      ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
      ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d ended with status %x", r, status);
  }
}
END_TEST

void add_captured(Suite *suite)
{
  TCase *tests = tcase_create("captured");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, in_place);
  tcase_add_test(tests, one_thread);
  tcase_add_loop_test(tests, copied_by_all, 0, 3);
  tcase_add_loop_test(tests, not_captured_elsewhere, 0, 2);
  tcase_add_test(tests, another_operation);
  tcase_add_test(tests, captured_in_part);
  tcase_add_test(tests, never_there);
  tcase_add_loop_test(tests, processes, 0, 2);
  suite_add_tcase(suite, tests);
}
