/* See message_ranks.h. */
#include "message_ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/param.h"
#include "collectives.h"
#include "tests/fakes/device/fake.h"

int nranks;
struct rank ranks[MOST];

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
void ranks_each(rank_body *body)
{
  struct job jobs[MOST];
  for (int r = 0; r < nranks; r++) {
    jobs[r] = (struct job){.body = body, .rank = &ranks[r]};
    ck_assert_int_eq(pthread_create(&jobs[r].thread, NULL, run_job, &jobs[r]), 0);
  }
  for (int r = 0; r < nranks; r++) pthread_join(jobs[r].thread, NULL);
}

void rank_allocate(struct rank *rank)
{
  rank->inputs = fake_user_alloc(rank->number, SLOTS * ROOM, true, NULL);
  rank->outputs = fake_user_alloc(rank->number, SLOTS * ROOM, true, NULL);
  ck_assert(rank->inputs != NULL && rank->outputs != NULL);
}

void ranks_open(int n)
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
    rank_allocate(&ranks[r]);
  }
}

/* Of ranks that all come, however busy the machine is. */
void ranks_open_patient(int n)
{
  setenv("TUTTI_CAPTURE_WAIT", "30000", 1);
  ranks_open(n);
  unsetenv("TUTTI_CAPTURE_WAIT");
}

void rank_close(struct rank *rank)
{
  if (rank->graph != NULL) fake_graph_destroy(rank->graph);
  ok(ncclCommDestroy(rank->comm));
  fake_stream_destroy(rank->stream);
  ck_assert(fake_user_free(rank->inputs) && fake_user_free(rank->outputs));
}

int held_memories(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  return counts.memories;
}

void ranks_close(void)
{
  ranks_each(rank_close);
  ck_assert_int_eq(held_memories(), 0);
}

/* One more send and receive, which the caller puts in a group; -1: none. */
void rank_call(struct rank *rank, int to, int from, size_t count)
{
  ck_assert_int_lt(rank->ncalls, SLOTS);
  size_t at = (size_t)rank->ncalls * ROOM + 64 * (size_t)rank->number;
  struct messages *m = &rank->messages[rank->ncalls++];
  *m = (struct messages){.rank = rank->number, .to = to, .from = from, .count = count};
  m->in = (uint32_t *)(void *)(rank->inputs + at);
  m->out = (uint32_t *)(void *)(rank->outputs + at);
  ok(messages_call(m, rank->comm, rank->stream));
}

void rank_call_group(struct rank *rank, int to, int from, size_t count)
{
  ok(ncclGroupStart());
  rank_call(rank, to, from, count);
  ok(ncclGroupEnd());
}

/* Each call has data of its own: time, and which of the sender's it is, by its count. */
void rank_fill(struct rank *rank, uint32_t time)
{
  for (int i = 0; i < rank->ncalls; i++) messages_fill(&rank->messages[i], time + (uint32_t)rank->messages[i].count);
}

void rank_check(struct rank *rank, uint32_t time)
{
  ck_assert_msg(fake_stream_wait(rank->stream, LONG_MS), "rank %d stands still", rank->number);
  for (int i = 0; i < rank->ncalls; i++) messages_check(&rank->messages[i], time + (uint32_t)rank->messages[i].count);
}

/* Repeats what all have captured. */
void ranks_expect_good(void)
{
  for (uint32_t time = 0; time < 3; time++) {
    for (int r = 0; r < nranks; r++) rank_fill(&ranks[r], 10 * time);
    for (int r = 0; r < nranks; r++) fake_graph_replay(ranks[r].graph, ranks[r].stream);
    for (int r = 0; r < nranks; r++) rank_check(&ranks[r], 10 * time);
  }
}

void rank_destroy_graph(struct rank *rank)
{
  fake_graph_destroy(rank->graph);
  rank->graph = NULL;
  rank->ncalls = 0;
}

void rank_end_capture(struct rank *rank)
{
  rank->graph = fake_capture_end(rank->stream);
}

/* Captures on all ranks, and tells how many works are in place. */
int ranks_capture(rank_body *body)
{
  int before = fake_mapped_works();
  ranks_each(body);
  return fake_mapped_works() - before;
}

void expect_memories(int wanted)
{
  for (uint64_t end = now_ms() + LONG_MS; held_memories() != wanted && now_ms() < end;) usleep(1000);
  ck_assert_int_eq(held_memories(), wanted);
}

void rank_ring(struct rank *rank)
{
  int next = (rank->number + 1) % nranks, before = (rank->number + nranks - 1) % nranks;
  usleep((unsigned)rank->number * 20000);
  fake_capture_begin(rank->stream);
  for (int i = 0; i < 3; i++)
    rank_call_group(rank, i == 1 ? before : next, i == 1 ? next : before, MESSAGE_COUNT + (size_t)i);
  rank_end_capture(rank);
}
