/* Streams that are none, and ends: of a communicator in the midst of a kernel, of streams and graphs too early. */
#include <stdio.h>
#include <unistd.h>
#include "world.h"

/* Rank 0's operation waits for the others, which never come. */
void case_abort(struct world *w)
{
  for (int r = 0; r < w->n; r++) fill(w, r, 0, 1, 0);
  reduce_all(w, w->comms, 0, 1, 0);
  wait_all(w);
  use(w, 0);
  reduce(w, w->comms[0], 0, 0, 1, 0);
  usleep(200000);
  if (cudaStreamQuery(w->streams[0][0]) != cudaErrorNotReady) fail("an operation that no other rank joined has ended");
  for (int r = 0; r < w->n; r++) ok(ncclCommAbort(w->comms[r]), "ncclCommAbort");
  if (!stream_ends(w->streams[0][0])) fail("the stream does not end after ncclCommAbort");
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id), "ncclGetUniqueId");
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    ok(ncclCommInitRank(&w->comms[r], w->n, id, r), "ncclCommInitRank");
  }
  ok(ncclGroupEnd(), "making communicators again");
  reduce_all(w, w->comms, 0, 1, 0);
  wait_all(w);
  expect(w, 1, w->n, "the sum of new communicators");
  world_close(w);
}

/* All is as before after a refusal. */
static void expect_usable(struct world *w)
{
  for (int r = 0; r < w->n; r++) fill(w, r, 0, 4, 0);
  reduce_all(w, w->comms, 0, 1, 0);
  wait_all(w);
  expect(w, 1, 4 * w->n, "a sum after the refusal");
  world_close(w);
}

void case_foreign_stream(struct world *w)
{
  char words[64];
  if (w->device[0] == w->device[1]) {
    note("not tried, there is one GPU");
    world_close(w);
    return;
  }
  snprintf(words, sizeof(words), "it is of GPU %d", w->device[1]);
  refused(ncclAllReduce(w->buffers[0][0], w->buffers[1][0], COUNT, ncclInt32, ncclSum, w->comms[0], w->streams[0][1]),
          ncclInvalidArgument, words);
  expect_usable(w);
}

/* CUDA lets a stream be destroyed while it has something to do, which it then still does. */
void case_stream_destroyed_early(struct world *w)
{
  for (int time = 0; time < 20; time++) {
    for (int r = 0; r < w->n; r++) {
      use(w, r);
      good(cudaStreamDestroy(w->streams[0][r]), "cudaStreamDestroy");
      good(cudaStreamCreateWithFlags(&w->streams[0][r], cudaStreamNonBlocking), "making a stream");
      fill(w, r, 0, 1 + time % 3, 0);
    }
    reduce_all(w, w->comms, 0, 1, 0);
    for (int r = 0; r < w->n; r++) {
      use(w, r);
      good(cudaStreamDestroy(w->streams[0][r]), "cudaStreamDestroy");
      good(cudaStreamCreateWithFlags(&w->streams[0][r], cudaStreamNonBlocking), "making a stream");
    }
    reduce_all(w, w->comms, 1, 2, 0);
    wait_all(w);
    expect(w, 2, (1 + time % 3) * w->n * w->n, "the sum of a sum");
  }
  world_close(w);
}

/* Replays of a graph whose communicator is gone end, and do not hang or fault. */
void case_communicator_first(struct world *w)
{
  cudaGraphExec_t graphs[MOST];
  for (int r = 0; r < w->n; r++) fill(w, r, 0, 1, 0);
  capture(w, 0);
  reduce_all(w, w->comms, 0, 1, 0);
  reduce_all(w, w->comms, 1, 2, 0);
  for (int r = 0; r < w->n; r++) graphs[r] = end_capture(w, r, 0, NULL);
  launch(w, graphs, 0);
  wait_all(w);
  expect(w, 2, w->n * w->n, "a graph's sum");
  for (int r = 0; r < w->n; r++) ok(ncclCommDestroy(w->comms[r]), "ncclCommDestroy");
  launch(w, graphs, 0);
  wait_all(w);
  drop_graphs(w, graphs);
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id), "ncclGetUniqueId");
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    ok(ncclCommInitRank(&w->comms[r], w->n, id, r), "ncclCommInitRank");
  }
  ok(ncclGroupEnd(), "making communicators again");
  expect_usable(w);
}
