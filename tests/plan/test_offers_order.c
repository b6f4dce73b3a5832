/* Captured messages in any order, of ranks that do not come to them, and of processes: never at a standstill. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/param.h"
#include "collectives.h"
#include "message_ranks.h"
#include "tests/common/effort.h"
#include "tests/fakes/device/fake.h"

/* ---- At random ---- */

/* Messages in one order for all; each rank puts those that are its own into groups as it likes. That is how programs
 * may be that count on no buffers: of the messages that are left, the first can go on. */
enum { ORDERED = 12, TIMES = EFFORT(3, 2) };

static struct ordered {
  int from, to;
  size_t count;
} order[ORDERED];
static uint64_t cuts[MOST];

static void draw_order(uint64_t *random)
{
  int used[MOST] = {0};
  for (int m = 0; m < ORDERED; m++) {
    int from, to;
    do {
      from = (int)(messages_random(random) % (uint64_t)nranks);
      to = (int)(messages_random(random) % (uint64_t)nranks);
    } while (from == to);
    bool full = used[from] == SLOTS || used[to] == SLOTS;
    size_t count = messages_random(random) % 4 ? MESSAGE_COUNT : 1000;
    order[m] = (struct ordered){full ? -1 : from, full ? -1 : to, count + (size_t)m};
    used[from] += !full;
    used[to] += !full;
  }
  for (int r = 0; r < nranks; r++) cuts[r] = messages_random(random);
}

static void in_order(struct rank *rank)
{
  bool open = false;
  fake_capture_begin(rank->stream);
  for (int m = 0; m < ORDERED; m++) {
    if (order[m].from != rank->number && order[m].to != rank->number) continue;
    if (!open) ok(ncclGroupStart());
    open = true;
    bool sends = order[m].from == rank->number;
    rank_call(rank, sends ? order[m].to : -1, sends ? -1 : order[m].from, order[m].count);
    if ((cuts[rank->number] >> 2 * m & 3) == 0) continue;
    ok(ncclGroupEnd());
    open = false;
  }
  if (open) ok(ncclGroupEnd());
  rank_end_capture(rank);
}

START_TEST(at_random)
{
  uint64_t random = 5 + (uint64_t)_i;
  int used = 0;
  ranks_open(2 + _i % 3);
  for (int i = 0; i < TIMES; i++) {
    draw_order(&random);
    used += ranks_capture(in_order);
    ranks_expect_good();
    ranks_each(rank_destroy_graph);
  }
  ck_assert_int_gt(used, 0);
  ranks_close();
}
END_TEST

/* Partial permutations one after another, each in one group: all pairs and rings are in place. */
static int to[SLOTS][MOST], from[SLOTS][MOST];

static void in_rounds(struct rank *rank)
{
  fake_capture_begin(rank->stream);
  for (int i = 0; i < SLOTS; i++)
    if (to[i][rank->number] >= 0 || from[i][rank->number] >= 0)
      rank_call_group(rank, to[i][rank->number], from[i][rank->number], MESSAGE_COUNT + (size_t)i);
  rank_end_capture(rank);
}

/* Whether what the rank does in a round goes in place: a single message, or a ring. */
static bool is_closed(int round, int rank)
{
  int at = rank;
  if (from[round][rank] < 0) return to[round][rank] >= 0 && to[round][to[round][rank]] < 0;
  if (to[round][rank] < 0) return from[round][from[round][rank]] < 0;
  do at = to[round][at];
  while (at >= 0 && at != rank);
  return at == rank;
}

START_TEST(rounds)
{
  uint64_t random = 77 + (uint64_t)_i;
  ranks_open_patient(4);
  for (int i = 0; i < TIMES; i++) {
    int expected = 0;
    for (int s = 0; s < SLOTS; s++) messages_draw(4, &random, to[s], from[s]);
    for (int s = 0; s < SLOTS; s++)
      for (int r = 0; r < 4; r++) expected += is_closed(s, r);
    ck_assert_int_eq(ranks_capture(in_rounds), expected);
    ranks_expect_good();
    ranks_each(rank_destroy_graph);
  }
  ranks_close();
}
END_TEST

/* ---- Ranks that do not come ---- */

static void *wait_in_vain(void *arg)
{
  struct rank *rank = arg;
  fake_set_device(rank->number);
  fake_capture_begin(rank->stream);
  ok(ncclGroupStart());
  ok(ncclRecv(rank->outputs, MESSAGE_COUNT, ncclUint32, 0, rank->comm, rank->stream));
  ck_assert_int_eq(ncclGroupEnd(), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(rank->comm), "aborted while it captured messages"));
  fake_graph_destroy(fake_capture_end(rank->stream));
  return NULL;
}

START_TEST(aborted)
{
  pthread_t thread;
  ranks_open(2);
  ck_assert_int_eq(pthread_create(&thread, NULL, wait_in_vain, &ranks[1]), 0);
  usleep(500000);
  ok(ncclCommAbort(ranks[1].comm));
  pthread_join(thread, NULL);
  ok(ncclCommAbort(ranks[0].comm));
  for (int r = 0; r < 2; r++) fake_stream_destroy(ranks[r].stream);
  for (int r = 0; r < 2; r++) ck_assert(fake_user_free(ranks[r].inputs) && fake_user_free(ranks[r].outputs));
  ck_assert_int_eq(held_memories(), 0);
}
END_TEST

static void abort_ranks(void)
{
  for (int r = 0; r < nranks; r++) ok(ncclCommAbort(ranks[r].comm));
  for (int r = 0; r < nranks; r++) {
    if (ranks[r].graph != NULL) fake_graph_destroy(ranks[r].graph);
    fake_stream_destroy(ranks[r].stream);
    ck_assert(fake_user_free(ranks[r].inputs) && fake_user_free(ranks[r].outputs));
  }
}

/* The other rank of a message has left: it is named, to who sends (0) or receives (1). */
START_TEST(left)
{
  ranks_open(2);
  fake_set_device(0);
  ok(ncclCommDestroy(ranks[0].comm));
  fake_set_device(1);
  fake_capture_begin(ranks[1].stream);
  ncclResult_t result = _i ? ncclRecv(ranks[1].outputs, MESSAGE_COUNT, ncclUint32, 0, ranks[1].comm, ranks[1].stream)
                           : ncclSend(ranks[1].inputs, MESSAGE_COUNT, ncclUint32, 0, ranks[1].comm, ranks[1].stream);
  ck_assert_msg(result == ncclRemoteError, "result %d: %s", result, ncclGetLastError(NULL));
  ck_assert_msg(strstr(ncclGetLastError(NULL), "rank 0") != NULL, "%s", ncclGetLastError(NULL));
  fake_graph_destroy(fake_capture_end(ranks[1].stream));
  ok(ncclCommAbort(ranks[1].comm));
  for (int r = 0; r < 2; r++) fake_stream_destroy(ranks[r].stream);
  for (int r = 0; r < 2; r++) ck_assert(fake_user_free(ranks[r].inputs) && fake_user_free(ranks[r].outputs));
}
END_TEST

/* Other sizes on the two sides are found out when the graph runs, as ever. */
static void other_size(struct rank *rank)
{
  fake_capture_begin(rank->stream);
  rank_call_group(rank, rank->number == 0 ? 1 : -1, rank->number == 0 ? -1 : 0, MESSAGE_COUNT + (size_t)rank->number);
  rank_end_capture(rank);
}

START_TEST(other_sizes)
{
  ncclResult_t failed = ncclSuccess;
  ranks_open(2);
  ck_assert_int_eq(ranks_capture(other_size), 0);
  for (int r = 0; r < 2; r++) fake_graph_replay(ranks[r].graph, ranks[r].stream);
  for (uint64_t end = now_ms() + LONG_MS; failed == ncclSuccess && now_ms() < end;)
    ok(ncclCommGetAsyncError(ranks[1].comm, &failed));
  ck_assert_int_eq(failed, ncclInvalidUsage);
  ck_assert_msg(strstr(ncclGetLastError(ranks[1].comm), "differ in count") != NULL, "%s",
                ncclGetLastError(ranks[1].comm));
  abort_ranks();
}
END_TEST

/* ---- Processes ---- */

static void join(struct rank *rank, int number, const int id_pipe[2])
{
  ncclUniqueId id;
  if (number == 0) {
    ok(ncclGetUniqueId(&id));
    for (int r = 1; r < nranks; r++) ck_assert_int_eq(write(id_pipe[1], &id, sizeof id), sizeof id);
  } else {
    ck_assert_int_eq(read(id_pipe[0], &id, sizeof id), sizeof id);
  }
  unsetenv("NCCL_ALGO");
  setenv("TUTTI_CAPTURE_WAIT", "30000", 1);
  tt_param_reset();
  fake_set_device(number);
  *rank = (struct rank){.number = number, .stream = fake_stream_create(number)};
  ok(ncclCommInitRank(&rank->comm, nranks, id, number));
  rank_allocate(rank);
}

/* Rings by memory of other processes; each graph has it to itself, and nothing of it is left. */
static void in_a_process(int number, const int id_pipe[2])
{
  struct rank rank;
  join(&rank, number, id_pipe);
  for (int time = 0; time < 3; time++) {
    int before = fake_mapped_works();
    rank_ring(&rank);
    ck_assert_int_eq(fake_mapped_works() - before, 3);
    for (uint32_t seed = 1; seed < 3; seed++) {
      rank_fill(&rank, seed);
      rank_call_group(&rank, (number + 1) % nranks, (number + nranks - 1) % nranks, 10);
      rank.ncalls--;
      ck_assert(fake_stream_wait(rank.stream, LONG_MS)); /* all but one are filled by now; that one is not waited for */
      ok(ncclAllReduce(rank.inputs + SLOTS * ROOM - 64, rank.inputs + SLOTS * ROOM - 64, 1, ncclUint32, ncclSum,
                       rank.comm, rank.stream));
      fake_graph_replay(rank.graph, rank.stream);
      rank_check(&rank, seed);
      ok(ncclAllReduce(rank.inputs + SLOTS * ROOM - 64, rank.inputs + SLOTS * ROOM - 64, 1, ncclUint32, ncclSum,
                       rank.comm, rank.stream)); /* nobody fills before all have checked */
      ck_assert(fake_stream_wait(rank.stream, LONG_MS));
    }
    int mapped = held_memories();
    rank_destroy_graph(&rank);
    expect_memories(mapped - (nranks > 2 ? 2 : 1));
  }
  rank_close(&rank);
  ck_assert_int_eq(held_memories(), 0);
  exit(0);
}

/* The last rank dies while the one before it waits for it to send. */
static void with_a_death(int number, const int id_pipe[2])
{
  struct rank rank;
  join(&rank, number, id_pipe);
  if (number == nranks - 1) {
    usleep(300000);
    raise(SIGKILL);
  }
  if (number == nranks - 2) {
    fake_capture_begin(rank.stream);
    ncclResult_t result = ncclRecv(rank.outputs, MESSAGE_COUNT, ncclUint32, nranks - 1, rank.comm, rank.stream);
    ck_assert_msg(result == ncclRemoteError, "result %d: %s", result, ncclGetLastError(NULL));
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "rank 2"));
  }
  ok(ncclCommAbort(rank.comm));
  exit(0);
}

/* Ranks are forked from a process that has no threads. _i: one dies. */
START_TEST(processes)
{
  int id_pipe[2];
  pid_t pids[MOST];
  nranks = 3;
  ck_assert_int_eq(pipe(id_pipe), 0);
  for (int r = 0; r < nranks; r++) {
    pids[r] = fork();
    ck_assert_int_ge(pids[r], 0);
    if (pids[r] == 0) (_i ? with_a_death : in_a_process)(r, id_pipe);
  }
  for (int r = 0; r < nranks; r++) {
    int status;
    ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
    if (_i == 1 && r == nranks - 1)
      ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
      ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d ended with status %x", r, status);
  }
}
END_TEST

void add_offers_order(Suite *suite)
{
  TCase *tests = tcase_create("captured messages in any order");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, at_random, 0, EFFORT(5, 3));
  tcase_add_loop_test(tests, rounds, 0, EFFORT(3, 1));
  tcase_add_test(tests, aborted);
  tcase_add_loop_test(tests, left, 0, 2);
  tcase_add_test(tests, other_sizes);
  tcase_add_loop_test(tests, processes, 0, 2);
  suite_add_tcase(suite, tests);
}
