/* Captured messages of ranks that know of each other by notes only: in place, or copied on both sides, and never at a
 * standstill. Ranks with a thread each, and processes. */
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
#include "messages.h"
#include "plan/comm.h"
#include "tests/fakes/device/fake.h"

/* Messages of a rank in one graph, at most. */
enum { MOST = 4, SLOTS = 8, LONG_MS = 100000, ROOM = MESSAGE_BYTES + 4096 };

struct rank {
  int number;
  ncclComm_t comm;
  void *stream;
  char *inputs, *outputs; /* SLOTS each */
  struct fake_graph *graph;
  struct messages messages[SLOTS]; /* what it has called */
  int ncalls;
};

static int nranks;
static struct rank ranks[MOST];

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
  struct job jobs[MOST];
  for (int r = 0; r < nranks; r++) {
    jobs[r] = (struct job){.body = body, .rank = &ranks[r]};
    ck_assert_int_eq(pthread_create(&jobs[r].thread, NULL, run_job, &jobs[r]), 0);
  }
  for (int r = 0; r < nranks; r++) pthread_join(jobs[r].thread, NULL);
}

static void allocate(struct rank *rank)
{
  rank->inputs = fake_user_alloc(rank->number, SLOTS * ROOM, true, NULL);
  rank->outputs = fake_user_alloc(rank->number, SLOTS * ROOM, true, NULL);
  ck_assert(rank->inputs != NULL && rank->outputs != NULL);
}

static void open_ranks(int n)
{
  ncclComm_t comms[MOST];
  nranks = n;
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_MIN_NCHANNELS");
  tt_param_reset();
  ok(ncclCommInitAll(comms, n, NULL));
  memset(ranks, 0, sizeof ranks);
  for (int r = 0; r < n; r++) {
    ranks[r] = (struct rank){.number = r, .comm = comms[r], .stream = fake_stream_create(r)};
    allocate(&ranks[r]);
  }
}

/* Of ranks that all come, however busy the machine is. */
static void open_patient(int n)
{
  setenv("TUTTI_CAPTURE_WAIT", "30000", 1);
  open_ranks(n);
  unsetenv("TUTTI_CAPTURE_WAIT");
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

/* One more send and receive, which the caller puts in a group; -1: none. */
static void call(struct rank *rank, int to, int from, size_t count)
{
  ck_assert_int_lt(rank->ncalls, SLOTS);
  size_t at = (size_t)rank->ncalls * ROOM + 64 * (size_t)rank->number;
  struct messages *m = &rank->messages[rank->ncalls++];
  *m = (struct messages){.rank = rank->number, .to = to, .from = from, .count = count};
  m->in = (uint32_t *)(void *)(rank->inputs + at);
  m->out = (uint32_t *)(void *)(rank->outputs + at);
  ok(messages_call(m, rank->comm, rank->stream));
}

static void call_group(struct rank *rank, int to, int from, size_t count)
{
  ok(ncclGroupStart());
  call(rank, to, from, count);
  ok(ncclGroupEnd());
}

/* Each call has data of its own: time, and which of the sender's it is, by its count. */
static void fill(struct rank *rank, uint32_t time)
{
  for (int i = 0; i < rank->ncalls; i++) messages_fill(&rank->messages[i], time + (uint32_t)rank->messages[i].count);
}

static void check(struct rank *rank, uint32_t time)
{
  ck_assert_msg(fake_stream_wait(rank->stream, LONG_MS), "rank %d stands still", rank->number);
  for (int i = 0; i < rank->ncalls; i++) messages_check(&rank->messages[i], time + (uint32_t)rank->messages[i].count);
}

/* Repeats what all have captured. */
static void expect_good(void)
{
  for (uint32_t time = 0; time < 3; time++) {
    for (int r = 0; r < nranks; r++) fill(&ranks[r], 10 * time);
    for (int r = 0; r < nranks; r++) fake_graph_replay(ranks[r].graph, ranks[r].stream);
    for (int r = 0; r < nranks; r++) check(&ranks[r], 10 * time);
  }
}

static void destroy_graph(struct rank *rank)
{
  fake_graph_destroy(rank->graph);
  rank->graph = NULL;
  rank->ncalls = 0;
}

static void end_capture(struct rank *rank)
{
  rank->graph = fake_capture_end(rank->stream);
}

/* Captures on all ranks, and tells how many works are in place. */
static int capture(rank_body *body)
{
  int before = fake_mapped_works();
  each(body);
  return fake_mapped_works() - before;
}

static void expect_memories(int wanted)
{
  for (uint64_t end = now_ms() + LONG_MS; memories() != wanted && now_ms() < end;) usleep(1000);
  ck_assert_int_eq(memories(), wanted);
}

/* ---- In place ---- */

static void ring(struct rank *rank)
{
  int next = (rank->number + 1) % nranks, before = (rank->number + nranks - 1) % nranks;
  usleep((unsigned)rank->number * 20000);
  fake_capture_begin(rank->stream);
  for (int i = 0; i < 3; i++)
    call_group(rank, i == 1 ? before : next, i == 1 ? next : before, MESSAGE_COUNT + (size_t)i);
  end_capture(rank);
}

/* Memory is mapped once a graph, and no longer. Eager messages are copied. _i: ranks - 2. */
START_TEST(rings)
{
  open_patient(_i + 2);
  ck_assert_int_eq(capture(ring), 3 * nranks);
  expect_good();
  int with_graphs = memories();
  each(destroy_graph);
  expect_memories(with_graphs - nranks * (nranks > 2 ? 2 : 1)); /* both neighbours' outputs */
  ck_assert_int_eq(capture(ring), 3 * nranks);
  expect_good();
  close_ranks();
}
END_TEST

/* From 0 to 1 by turns with messages back, each in a group of its own, and one that is small between. */
static void ping_pong(struct rank *rank)
{
  int peer = 1 - rank->number;
  fake_capture_begin(rank->stream);
  for (int i = 0; i < 5; i++) {
    bool sends = (i + rank->number) % 2 == 0;
    call_group(rank, sends ? peer : -1, sends ? -1 : peer, i == 2 ? 100 : MESSAGE_COUNT + (size_t)i);
  }
  end_capture(rank);
}

START_TEST(one_way)
{
  open_patient(2);
  ck_assert_int_eq(capture(ping_pong), 8);
  expect_good();
  close_ranks();
}
END_TEST

/* Two pairs and no ring; the ranks of a pair take no notice of the others. */
static void pairs_only(struct rank *rank)
{
  int peer = rank->number ^ 1;
  fake_capture_begin(rank->stream);
  if (rank->number >= 2) usleep(300000);
  call_group(rank, peer, peer, MESSAGE_COUNT);
  end_capture(rank);
}

START_TEST(two_pairs)
{
  open_patient(4);
  ck_assert_int_eq(capture(pairs_only), 4);
  expect_good();
  close_ranks();
}
END_TEST

/* ---- Copied on both sides ---- */

/* Ranks that each send first, and receive in a later group, as works while buffers take a message. */
static void send_first(struct rank *rank)
{
  int peer = 1 - rank->number;
  fake_capture_begin(rank->stream);
  for (int i = 0; i < 2; i++) {
    call_group(rank, peer, -1, MESSAGE_COUNT + (size_t)i);
    call_group(rank, -1, peer, MESSAGE_COUNT + (size_t)i);
  }
  end_capture(rank);
}

/* Rank 0 sends to 1, which sends to 2 in the same group. */
static void chain(struct rank *rank)
{
  static const int to[] = {1, 2, -1}, from[] = {-1, 0, 1};
  fake_capture_begin(rank->stream);
  call_group(rank, to[rank->number], from[rank->number], MESSAGE_COUNT);
  end_capture(rank);
}

/* All to all of sends: more than one work can do. Nobody waits for offers that do not come. */
static void all_to_all(struct rank *rank)
{
  fake_capture_begin(rank->stream);
  ok(ncclGroupStart());
  for (int d = 1; d < nranks; d++)
    call(rank, (rank->number + d) % nranks, (rank->number + nranks - d) % nranks, MESSAGE_COUNT + (size_t)d);
  ok(ncclGroupEnd());
  end_capture(rank);
}

/* A ring in which rank 1 has two messages more in its group, and the ranks that it has them with one each. */
static void ring_with_more(struct rank *rank)
{
  fake_capture_begin(rank->stream);
  ok(ncclGroupStart());
  call(rank, (rank->number + 1) % nranks, (rank->number + nranks - 1) % nranks, MESSAGE_COUNT);
  if (rank->number == 1) call(rank, 2, -1, 50);
  if (rank->number == 2) call(rank, -1, 1, 50);
  ok(ncclGroupEnd());
  end_capture(rank);
}

static const struct {
  int n;
  rank_body *body;
} copied[] = {{2, send_first}, {3, chain}, {3, all_to_all}, {4, all_to_all}, {4, ring_with_more}};

/* Buffers take what is sent first. */
START_TEST(copied_by_both)
{
  setenv("NCCL_BUFFSIZE", "16777216", 1);
  open_ranks(copied[_i].n);
  unsetenv("NCCL_BUFFSIZE");
  uint64_t start = now_ms();
  ck_assert_int_eq(capture(copied[_i].body), 0);
  ck_assert_uint_lt(now_ms() - start, 8000);
  int had = memories();
  expect_good();
  each(destroy_graph);
  expect_memories(had);
  close_ranks();
}
END_TEST

static struct tt_device failing;
static const struct tt_device *working;

static ncclResult_t import_fails(struct tt_device_context *context, const struct tt_device_export *in,
                                 struct tt_device_memory *memory)
{
  (void)context, (void)in, (void)memory;
  return ncclUnhandledCudaError;
}

/* A buffer of rank 2's that nobody can map (0), a rank that cannot map (1), what the user does not want (2). Then it is
 * all as it should be. */
START_TEST(cannot_be_mapped)
{
  if (_i == 2) setenv("NCCL_GRAPH_REGISTER", "0", 1);
  open_patient(3);
  unsetenv("NCCL_GRAPH_REGISTER");
  for (int time = 0; time < 2; time++) {
    bool good = time == 1 && _i < 2;
    if (_i == 0) {
      ck_assert(fake_user_free(ranks[2].outputs));
      ranks[2].outputs = fake_user_alloc(2, SLOTS * ROOM, good, NULL);
    }
    each(ring); /* connections, while the device works */
    each(destroy_graph);
    working = ranks[0].comm->env->device;
    failing = *working;
    failing.import_memory = import_fails;
    if (!good && _i == 1) ranks[0].comm->env->device = &failing;
    ck_assert_int_eq(capture(ring), good ? 9 : 0);
    ranks[0].comm->env->device = working;
    expect_good();
    each(destroy_graph);
  }
  close_ranks();
}
END_TEST

/* One side does not capture. Rank 0 sends; who captures, and who is first (_i). */
static int way;

static void one_captures(struct rank *rank)
{
  bool captures = rank->number == way % 2;
  if ((rank->number == 0) == (way / 2 == 0)) usleep(300000);
  if (captures) fake_capture_begin(rank->stream);
  call_group(rank, rank->number == 0 ? 1 : -1, rank->number == 0 ? -1 : 0, MESSAGE_COUNT);
  if (captures) end_capture(rank);
}

START_TEST(not_captured_there)
{
  way = _i;
  open_ranks(2);
  for (int r = 0; r < 2; r++) fake_stream_hold(ranks[r].stream, true);
  ck_assert_int_eq(capture(one_captures), 0);
  for (int r = 0; r < 2; r++) fill(&ranks[r], 3);
  fake_graph_replay(ranks[_i % 2].graph, ranks[_i % 2].stream);
  for (int r = 0; r < 2; r++) fake_stream_hold(ranks[r].stream, false);
  for (int r = 0; r < 2; r++) check(&ranks[r], 3);
  close_ranks();
}
END_TEST

/* One thread captures what rank 1 receives, and then what rank 0 sends; or the other way round (_i). Again that takes
 * less. */
START_TEST(one_after_the_other)
{
  open_ranks(2);
  int before = fake_mapped_works();
  for (int r = 0; r < 2; r++) {
    fake_set_device(r);
    fake_capture_begin(ranks[r].stream);
  }
  for (int i = 0; i < 2; i++) {
    for (int turn = 0; turn < 2; turn++) {
      int r = turn == _i ? 1 : 0;
      uint64_t start = now_ms();
      call_group(&ranks[r], r == 0 ? 1 : -1, r == 0 ? -1 : 0, MESSAGE_COUNT + (size_t)i);
      ck_assert_uint_lt(now_ms() - start, (uint64_t)(10000 >> i));
    }
  }
  for (int r = 0; r < 2; r++) end_capture(&ranks[r]);
  ck_assert_int_eq(fake_mapped_works(), before);
  expect_good();
  close_ranks();
}
END_TEST

/* Two ranks of one thread and one group, which does not want to know it from that. */
START_TEST(one_group)
{
  setenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE", "0", 1);
  open_patient(3);
  unsetenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE");
  int before = fake_mapped_works();
  for (int r = 0; r < 3; r++) {
    fake_set_device(r);
    fake_capture_begin(ranks[r].stream);
  }
  for (int i = 0; i < 4; i++) {
    ok(ncclGroupStart());
    for (int r = 0; r < 3; r++) call(&ranks[r], (r + 1) % 3, (r + 2) % 3, MESSAGE_COUNT + (size_t)i);
    ok(ncclGroupEnd());
  }
  for (int r = 0; r < 3; r++) end_capture(&ranks[r]);
  ck_assert_int_eq(fake_mapped_works() - before, 12);
  expect_good();
  close_ranks();
}
END_TEST

/* ---- At random ---- */

/* Messages in one order for all; each rank puts those that are its own into groups as it likes. That is how programs
 * may be that count on no buffers: of the messages that are left, the first can go on. */
enum { ORDERED = 12 };

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
    call(rank, sends ? order[m].to : -1, sends ? -1 : order[m].from, order[m].count);
    if ((cuts[rank->number] >> 2 * m & 3) == 0) continue;
    ok(ncclGroupEnd());
    open = false;
  }
  if (open) ok(ncclGroupEnd());
  end_capture(rank);
}

START_TEST(at_random)
{
  uint64_t random = 5 + (uint64_t)_i;
  int used = 0;
  open_ranks(2 + _i % 3);
  for (int i = 0; i < 3; i++) {
    draw_order(&random);
    used += capture(in_order);
    expect_good();
    each(destroy_graph);
  }
  ck_assert_int_gt(used, 0);
  close_ranks();
}
END_TEST

/* Partial permutations one after another, each in one group: all pairs and rings are in place. */
static int to[SLOTS][MOST], from[SLOTS][MOST];

static void in_rounds(struct rank *rank)
{
  fake_capture_begin(rank->stream);
  for (int i = 0; i < SLOTS; i++)
    if (to[i][rank->number] >= 0 || from[i][rank->number] >= 0)
      call_group(rank, to[i][rank->number], from[i][rank->number], MESSAGE_COUNT + (size_t)i);
  end_capture(rank);
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
  open_patient(4);
  for (int i = 0; i < 3; i++) {
    int expected = 0;
    for (int s = 0; s < SLOTS; s++) messages_draw(4, &random, to[s], from[s]);
    for (int s = 0; s < SLOTS; s++)
      for (int r = 0; r < 4; r++) expected += is_closed(s, r);
    ck_assert_int_eq(capture(in_rounds), expected);
    expect_good();
    each(destroy_graph);
  }
  close_ranks();
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
  open_ranks(2);
  ck_assert_int_eq(pthread_create(&thread, NULL, wait_in_vain, &ranks[1]), 0);
  usleep(500000);
  ok(ncclCommAbort(ranks[1].comm));
  pthread_join(thread, NULL);
  ok(ncclCommAbort(ranks[0].comm));
  for (int r = 0; r < 2; r++) fake_stream_destroy(ranks[r].stream);
  for (int r = 0; r < 2; r++) ck_assert(fake_user_free(ranks[r].inputs) && fake_user_free(ranks[r].outputs));
  ck_assert_int_eq(memories(), 0);
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
  open_ranks(2);
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
  call_group(rank, rank->number == 0 ? 1 : -1, rank->number == 0 ? -1 : 0, MESSAGE_COUNT + (size_t)rank->number);
  end_capture(rank);
}

START_TEST(other_sizes)
{
  ncclResult_t failed = ncclSuccess;
  open_ranks(2);
  ck_assert_int_eq(capture(other_size), 0);
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
  allocate(rank);
}

/* Rings by memory of other processes; each graph has it to itself, and nothing of it is left. */
static void in_a_process(int number, const int id_pipe[2])
{
  struct rank rank;
  join(&rank, number, id_pipe);
  for (int time = 0; time < 3; time++) {
    int before = fake_mapped_works();
    ring(&rank);
    ck_assert_int_eq(fake_mapped_works() - before, 3);
    for (uint32_t seed = 1; seed < 3; seed++) {
      fill(&rank, seed);
      call_group(&rank, (number + 1) % nranks, (number + nranks - 1) % nranks, 10);
      rank.ncalls--;
      ck_assert(fake_stream_wait(rank.stream, LONG_MS)); /* all but one are filled by now; that one is not waited for */
      ok(ncclAllReduce(rank.inputs + SLOTS * ROOM - 64, rank.inputs + SLOTS * ROOM - 64, 1, ncclUint32, ncclSum,
                       rank.comm, rank.stream));
      fake_graph_replay(rank.graph, rank.stream);
      check(&rank, seed);
      ok(ncclAllReduce(rank.inputs + SLOTS * ROOM - 64, rank.inputs + SLOTS * ROOM - 64, 1, ncclUint32, ncclSum,
                       rank.comm, rank.stream)); /* nobody fills before all have checked */
      ck_assert(fake_stream_wait(rank.stream, LONG_MS));
    }
    int mapped = memories();
    destroy_graph(&rank);
    expect_memories(mapped - (nranks > 2 ? 2 : 1));
  }
  close_rank(&rank);
  ck_assert_int_eq(memories(), 0);
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

void add_offers(Suite *suite)
{
  TCase *tests = tcase_create("captured messages");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, rings, 0, MOST - 1);
  tcase_add_test(tests, one_way);
  tcase_add_test(tests, two_pairs);
  tcase_add_loop_test(tests, copied_by_both, 0, sizeof copied / sizeof *copied);
  tcase_add_loop_test(tests, cannot_be_mapped, 0, 3);
  tcase_add_loop_test(tests, not_captured_there, 0, 4);
  tcase_add_loop_test(tests, one_after_the_other, 0, 2);
  tcase_add_test(tests, one_group);
  tcase_add_loop_test(tests, at_random, 0, 5);
  tcase_add_loop_test(tests, rounds, 0, 3);
  tcase_add_test(tests, aborted);
  tcase_add_loop_test(tests, left, 0, 2);
  tcase_add_test(tests, other_sizes);
  tcase_add_loop_test(tests, processes, 0, 2);
  suite_add_tcase(suite, tests);
}
