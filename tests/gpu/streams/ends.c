/* Streams that are none, and ends: of a communicator in the midst of a kernel, of streams and graphs too early. */
#include <stdio.h>
#include <unistd.h>
#include "world.h"

static void open_again(struct world *w)
{
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id), "ncclGetUniqueId");
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    ok(ncclCommInitRank(&w->comms[r], w->n, id, r), "ncclCommInitRank");
  }
  ok(ncclGroupEnd(), "making communicators again");
}

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
  open_again(w);
  reduce_all(w, w->comms, 0, 1, 0);
  wait_all(w);
  expect(w, 1, w->n, "the sum of new communicators");
  world_close(w);
}

/* All is as before after a refusal or a failure. */
static void expect_usable(struct world *w)
{
  for (int r = 0; r < w->n; r++) fill(w, r, 0, 4, 0);
  reduce_all(w, w->comms, 0, 1, 0);
  wait_all(w);
  expect(w, 1, 4 * w->n, "a sum after the refusal");
  world_close(w);
}

/* Takes the GPU's memory, but for less than a communicator would ask for. */
static int take_memory(void **taken, int most)
{
  int count = 0;
  for (size_t bytes = (size_t)1 << 40; bytes >= 4096; bytes /= 2)
    while (count < most && cudaMalloc(&taken[count], bytes) == cudaSuccess) count++;
  cudaGetLastError();
  return count;
}

/* A group's small messages are launched, its many large ones cannot be: the GPU has no memory for what describes them.
 * The kernel may begin when the communicator is being aborted, whose
 * memory has to be there. */
void case_no_memory(struct world *w)
{
  enum { PIECES = 1000, MESSAGES = 1400, SMALL = 64, LARGE = COUNT * 2 };
  void *pieces[PIECES];
  for (int bytes = SMALL; bytes > 0; bytes = bytes == SMALL ? LARGE : 0) { /* both have their connections */
    ok(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < 2; r++) {
      ok(ncclSend(w->buffers[0][r], bytes, ncclInt8, 1 - r, w->comms[r], w->streams[0][r]), "ncclSend");
      ok(ncclRecv(w->buffers[1][r], bytes, ncclInt8, 1 - r, w->comms[r], w->streams[0][r]), "ncclRecv");
    }
    ok(ncclGroupEnd(), "sending and receiving");
  }
  wait_all(w);
  use(w, 0);
  int taken = take_memory(pieces, PIECES);
  delay(w, 0, 0, 300);
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int m = 0; m <= MESSAGES; m++) {
    ok(ncclSend(w->buffers[0][0], m == 0 ? SMALL : LARGE, ncclInt8, 1, w->comms[0], w->streams[0][0]), "ncclSend");
    ok(ncclRecv(w->buffers[1][0], m == 0 ? SMALL : LARGE, ncclInt8, 1, w->comms[0], w->streams[0][0]), "ncclRecv");
  }
  refused(ncclGroupEnd(), ncclUnhandledCudaError, "out of memory");
  for (int r = 0; r < w->n; r++) ok(ncclCommAbort(w->comms[r]), "ncclCommAbort");
  if (!stream_ends(w->streams[0][0])) fail("the stream does not end after ncclCommAbort");
  for (int p = 0; p < taken; p++) good(cudaFree(pieces[p]), "cudaFree");
  open_again(w);
  expect_usable(w);
}

void case_foreign_stream(struct world *w)
{
  char words[64];
  if (left_out_where_shared(w)) return;
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
  open_again(w);
  expect_usable(w);
}
