/* Groups with several streams, communicators with several, streams with several communicators. */
#include <pthread.h>
#include "world.h"

/* Each of a rank's streams fills a buffer, some of them late; a group reduces all of them, each on its stream; each
 * stream then copies another one's result. */
static void put_joined(const struct world *w, int base)
{
  for (int r = 0; r < w->n; r++)
    for (int s = 0; s < STREAMS; s++) {
      delay(w, r, s, 10 * ((r + s) % STREAMS));
      fill(w, r, s, base + 3 * s + r, s);
    }
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++)
    for (int s = 0; s < STREAMS; s++) reduce(w, w->comms[r], r, s, s, s);
  ok(ncclGroupEnd(), "the group");
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    for (int s = 0; s < STREAMS; s++)
      good(cudaMemcpyAsync(w->buffers[STREAMS + s][r], w->buffers[(s + 1) % STREAMS][r], COUNT * 4,
                           cudaMemcpyDeviceToDevice, w->streams[s][r]),
           "copying");
  }
}

static void expect_joined(const struct world *w, int base)
{
  for (int s = 0; s < STREAMS; s++)
    expect(w, STREAMS + s, sum_of(w, base + 3 * ((s + 1) % STREAMS)), "a copy after the group");
}

void case_joined(struct world *w)
{
  for (int time = 0; time < 5; time++) {
    put_joined(w, 1 + time);
    wait_all(w);
    expect_joined(w, 1 + time);
  }
  world_close(w);
}

static void fork_streams(const struct world *w, int r, cudaEvent_t event)
{
  use(w, r);
  good(cudaEventRecord(event, w->streams[0][r]), "cudaEventRecord");
  for (int s = 1; s < STREAMS; s++) good(cudaStreamWaitEvent(w->streams[s][r], event, 0), "cudaStreamWaitEvent");
}

static void join_streams(const struct world *w, int r, cudaEvent_t event)
{
  use(w, r);
  for (int s = 1; s < STREAMS; s++) {
    good(cudaEventRecord(event, w->streams[s][r]), "cudaEventRecord");
    good(cudaStreamWaitEvent(w->streams[0][r], event, 0), "cudaStreamWaitEvent");
  }
}

void case_joined_graph(struct world *w)
{
  cudaGraphExec_t graphs[MOST];
  cudaEvent_t events[MOST];
  capture(w, 0);
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaEventCreateWithFlags(&events[r], cudaEventDisableTiming), "making an event");
    fork_streams(w, r, events[r]);
  }
  put_joined(w, 2);
  for (int r = 0; r < w->n; r++) {
    join_streams(w, r, events[r]);
    graphs[r] = end_capture(w, r, 0, NULL);
  }
  for (int time = 0; time < 3; time++) {
    for (int r = 0; r < w->n; r++)
      for (int s = 0; s < STREAMS; s++) fill(w, r, STREAMS + s, 0, 0);
    launch(w, graphs, 0);
    wait_all(w);
    expect_joined(w, 2);
  }
  drop_graphs(w, graphs);
  world_close(w);
}

/* 0 is filled late; then sums go to and fro between two streams, which nobody else orders. */
void case_two_streams(struct world *w)
{
  for (int time = 0; time < 50; time++) {
    for (int r = 0; r < w->n; r++) {
      if (time % 10 == 0) delay(w, r, time % 2, 10);
      fill(w, r, 0, time % 2, time % 2);
    }
    reduce_all(w, w->comms, 0, 1, time % 2);
    reduce_all(w, w->comms, 1, 2, (time + 1) % 2);
    reduce_all(w, w->comms, 2, 0, time % 2);
    reduce_all(w, w->comms, 1, 3, (time + 1) % 2);
    for (int r = 0; r < w->n; r++) {
      use(w, r);
      good(cudaStreamSynchronize(w->streams[(time + 1) % 2][r]), "cudaStreamSynchronize");
    }
    expect(w, 3, w->n * w->n * (time % 2), "the sum of a sum on another stream");
  }
  wait_all(w);
  world_close(w);
}

void case_two_communicators(struct world *w)
{
  ncclComm_t others[MOST];
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id), "ncclGetUniqueId");
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    ok(ncclCommInitRank(&others[r], w->n, id, r), "ncclCommInitRank");
    fill(w, r, 0, 3, 0);
    fill(w, r, 2, 5, 1);
  }
  ok(ncclGroupEnd(), "making communicators");
  for (int time = 0; time < 300; time++) {
    reduce_all(w, w->comms, 0, 1, 0);
    reduce_all(w, others, 2, 3, 1);
    if (time % 3 == 0) reduce_all(w, w->comms, 0, 1, 0);
  }
  wait_all(w);
  expect(w, 1, 3 * w->n, "the first communicator's sum");
  expect(w, 3, 5 * w->n, "the second communicator's sum");
  for (int r = 0; r < w->n; r++) ok(ncclCommDestroy(others[r]), "ncclCommDestroy");
  world_close(w);
}

void case_mixed_capture(struct world *w)
{
  cudaGraph_t graph;
  use(w, 0);
  good(cudaStreamBeginCapture(w->streams[0][0], cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  ok(ncclGroupStart(), "ncclGroupStart");
  reduce(w, w->comms[0], 0, 0, 1, 0);
  reduce(w, w->comms[0], 0, 2, 3, 1);
  refused(ncclGroupEnd(), ncclInvalidUsage, "not captured");
  good(cudaStreamEndCapture(w->streams[0][0], &graph), "cudaStreamEndCapture");
  good(cudaGraphDestroy(graph), "cudaGraphDestroy");
  for (int r = 0; r < w->n; r++) fill(w, r, 0, 1, 0);
  reduce_all(w, w->comms, 0, 1, 0);
  wait_all(w);
  expect(w, 1, w->n, "a sum after the refusal");
  world_close(w);
}

/* ---- cudaStreamPerThread: one handle, and a stream of each thread on each GPU, which ranks must not share ---- */

static void reduce_on_own(const struct world *w, int from, int to)
{
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++)
    ok(ncclAllReduce(w->buffers[from][r], w->buffers[to][r], COUNT, ncclInt32, ncclSum, w->comms[r],
                     cudaStreamPerThread),
       "ncclAllReduce");
  ok(ncclGroupEnd(), "all-reduce on streams of the thread");
}

static void wait_own(const struct world *w)
{
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    if (!stream_ends(cudaStreamPerThread)) fail("the thread's stream of rank %d does not end", r);
  }
}

static void *reduce_next(void *argument)
{
  const struct world *w = argument;
  reduce_on_own(w, 1, 2);
  wait_own(w);
  return NULL;
}

/* The second thread's operation takes what the first one's late one makes; only the communicator orders them. */
void case_threads_streams(struct world *w)
{
  pthread_t thread;
  if (left_out_where_shared(w)) return;
  for (int r = 0; r < w->n; r++) fill(w, r, 0, 1, 0);
  wait_all(w);
  use(w, 0);
  good(cudaLaunchHostFunc(cudaStreamPerThread, sleep_ms, (void *)200), "cudaLaunchHostFunc");
  reduce_on_own(w, 0, 1);
  if (pthread_create(&thread, NULL, reduce_next, w) != 0) fail("no thread can be made");
  pthread_join(thread, NULL);
  wait_own(w);
  expect(w, 2, w->n * w->n, "the sum of another thread's sum");
  world_close(w);
}

/* Scatters of the last rank's bytes, which fill the others' buffers part by part. */
static void scatter_on_own(const struct world *w)
{
  size_t part = COUNT / (size_t)w->n;
  for (int k = 0; k < w->n; k++) {
    ok(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < w->n; r++)
      ok(ncclScatter(w->buffers[0][r], w->buffers[1][r] + (size_t)k * part * 4, part, ncclInt32, w->n - 1, w->comms[r],
                     cudaStreamPerThread),
         "ncclScatter");
    ok(ncclGroupEnd(), "scatter on streams of the thread");
  }
}

/* Where each rank's part of the group is a library thread's, it cannot tell what this thread captures: all copy, also
 * those of whose memory the others use nothing. */
void case_threads_scatter(struct world *w)
{
  cudaGraph_t graphs[MOST];
  cudaGraphExec_t executables[MOST];
  size_t whole = COUNT / (size_t)w->n * (size_t)w->n * 4;
  if (left_out_where_shared(w)) return;
  for (int r = 0; r < w->n; r++) {
    fill(w, r, 0, r + 1, 0);
    good(cudaMemset(w->buffers[1][r] + whole, w->n, COUNT * 4 - whole), "cudaMemset");
  }
  wait_all(w);
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  }
  scatter_on_own(w);
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaStreamEndCapture(cudaStreamPerThread, &graphs[r]), "cudaStreamEndCapture");
    good(cudaGraphInstantiate(&executables[r], graphs[r], 0), "cudaGraphInstantiate");
    good(cudaGraphDestroy(graphs[r]), "cudaGraphDestroy");
  }
  launch(w, executables, 0);
  wait_all(w);
  expect(w, 1, w->n, "what was scattered");
  drop_graphs(w, executables);
  world_close(w);
}

struct forked {
  const struct world *world;
  cudaEvent_t events[MOST];
  pthread_barrier_t turn;
};

static void *capture_next(void *argument)
{
  struct forked *forked = argument;
  const struct world *w = forked->world;
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaStreamWaitEvent(cudaStreamPerThread, forked->events[r], 0), "cudaStreamWaitEvent");
  }
  reduce_on_own(w, 1, 2);
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaEventRecord(forked->events[r], cudaStreamPerThread), "cudaEventRecord");
  }
  pthread_barrier_wait(&forked->turn);
  pthread_barrier_wait(&forked->turn); /* the capture has the stream until its end */
  return NULL;
}

/* Both threads' streams are captured into one graph. */
static void capture_threads(struct forked *forked, cudaGraph_t *graphs)
{
  const struct world *w = forked->world;
  pthread_t thread;
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaEventCreateWithFlags(&forked->events[r], cudaEventDisableTiming), "making an event");
    good(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    good(cudaEventRecord(forked->events[r], cudaStreamPerThread), "cudaEventRecord");
    good(cudaLaunchHostFunc(cudaStreamPerThread, sleep_ms, (void *)200), "cudaLaunchHostFunc");
  }
  reduce_on_own(w, 0, 1);
  if (pthread_create(&thread, NULL, capture_next, forked) != 0) fail("no thread can be made");
  pthread_barrier_wait(&forked->turn);
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaStreamWaitEvent(cudaStreamPerThread, forked->events[r], 0), "cudaStreamWaitEvent");
    good(cudaStreamEndCapture(cudaStreamPerThread, &graphs[r]), "cudaStreamEndCapture");
  }
  pthread_barrier_wait(&forked->turn);
  pthread_join(thread, NULL);
}

void case_threads_streams_graph(struct world *w)
{
  struct forked forked = {.world = w};
  cudaGraph_t graphs[MOST];
  cudaGraphExec_t executables[MOST];
  if (left_out_where_shared(w)) return;
  for (int r = 0; r < w->n; r++) fill(w, r, 0, 1, 0);
  wait_all(w);
  pthread_barrier_init(&forked.turn, NULL, 2);
  capture_threads(&forked, graphs);
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaGraphInstantiate(&executables[r], graphs[r], 0), "cudaGraphInstantiate");
    good(cudaGraphDestroy(graphs[r]), "cudaGraphDestroy");
  }
  launch(w, executables, 0);
  wait_all(w);
  expect(w, 2, w->n * w->n, "the sum of another thread's sum");
  drop_graphs(w, executables);
  world_close(w);
}
