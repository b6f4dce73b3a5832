/* Graphs beside eager calls, on several streams, their nodes and their memory. */
#include <time.h>
#include "world.h"

static void capture_reduce(const struct world *w, cudaGraphExec_t *graphs, int from, int to, int times, int *nodes)
{
  capture(w, 0);
  for (int time = 0; time < times; time++) reduce_all(w, w->comms, from, to, 0);
  for (int r = 0; r < w->n; r++) graphs[r] = end_capture(w, r, 0, nodes);
}

/* A byte of a buffer, of each rank, as it is then on the stream, goes to a place of buffer 3. */
static void keep_byte(const struct world *w, int buffer, size_t at, int place, int stream)
{
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaMemcpyAsync(w->buffers[3][r] + place, w->buffers[buffer][r] + at, 1, cudaMemcpyDeviceToDevice,
                         w->streams[stream][r]),
         "copying");
  }
}

/* The graph makes 1 of 0; a call on another stream makes 2 of 1, and keeps the first bytes. Only the communicator
 * orders the two streams. */
void case_graph_and_eager(struct world *w)
{
  enum { TIMES = 60 };
  cudaGraphExec_t graphs[MOST];
  unsigned char host[TIMES];
  capture_reduce(w, graphs, 0, 1, 1, NULL);
  for (int time = 0; time < TIMES; time++) {
    for (int r = 0; r < w->n; r++) {
      if (time % 20 == 0) delay(w, r, time / 20 % 2, 20);
      fill(w, r, 0, time % 3, 0);
    }
    launch(w, graphs, 0);
    reduce_all(w, w->comms, 1, 2, 1);
    keep_byte(w, 2, COUNT * 2, time, 1);
  }
  wait_all(w);
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaMemcpy(host, w->buffers[3][r], TIMES, cudaMemcpyDeviceToHost), "copying");
    for (int time = 0; time < TIMES; time++)
      if (host[time] != time % 3 * w->n * w->n)
        fail("rank %d, replay %d: the call after it has %d, not %d", r, time, host[time], time % 3 * w->n * w->n);
  }
  drop_graphs(w, graphs);
  world_close(w);
}

static const size_t row_bytes[] = {COUNT * 4, 300000, 70000, 4096, 64, 8};
enum { ROW = sizeof(row_bytes) / sizeof(row_bytes[0]) };

/* Each but the first has what the one before it made, from 0 to 1 and back. What is too old is less. */
static void reduce_row(const struct world *w)
{
  for (int i = 0; i < ROW; i++) {
    ok(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < w->n; r++)
      ok(ncclAllReduce(w->buffers[i % 2][r], w->buffers[1 - i % 2][r], row_bytes[i], ncclUint8, ncclMin, w->comms[r],
                       w->streams[0][r]),
         "ncclAllReduce");
    ok(ncclGroupEnd(), "a reduction");
  }
}

/* Operations in a row may begin while the one before ends: each still has all of what that made, and each replay what
 * was filled in before it. */
void case_graph_row(struct world *w)
{
  enum { TIMES = 20 };
  cudaGraphExec_t graphs[MOST];
  unsigned char host[TIMES];
  capture(w, 0);
  reduce_row(w);
  for (int r = 0; r < w->n; r++) graphs[r] = end_capture(w, r, 0, NULL);
  for (int time = 0; time < TIMES; time++) {
    for (int r = 0; r < w->n; r++) {
      if (time % 5 == 0) delay(w, r, 0, 20);
      fill(w, r, 0, 1 + time, 0);
    }
    launch(w, graphs, 0);
    keep_byte(w, 0, 7, time, 0);
  }
  wait_all(w);
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaMemcpy(host, w->buffers[3][r], TIMES, cudaMemcpyDeviceToHost), "copying");
    for (int time = 0; time < TIMES; time++)
      if (host[time] != 1 + time) fail("rank %d, replay %d: %d, not %d", r, time, host[time], 1 + time);
  }
  drop_graphs(w, graphs);
  world_close(w);
}

/* Two graphs by turns, each on either stream: 1 of 0, 2 of 1. */
void case_graph_on_two_streams(struct world *w)
{
  cudaGraphExec_t first[MOST], second[MOST];
  capture_reduce(w, first, 0, 1, 1, NULL);
  capture_reduce(w, second, 1, 2, 1, NULL);
  for (int time = 0; time < 30; time++) {
    for (int r = 0; r < w->n; r++) {
      if (time % 10 == 0) delay(w, r, 0, 20);
      fill(w, r, 0, time % 3, 0);
    }
    launch(w, first, 0);
    launch(w, first, 1);
    launch(w, second, 1 + time % 2);
    wait_all(w);
    expect(w, 2, time % 3 * w->n * w->n, "the second graph's sum");
  }
  drop_graphs(w, first);
  drop_graphs(w, second);
  world_close(w);
}

static void gather_all(const struct world *w, unsigned char *const *to, size_t block, int stream)
{
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++)
    ok(ncclAllGather(w->buffers[0][r], to[r], block, ncclUint8, w->comms[r], w->streams[stream][r]), "ncclAllGather");
  ok(ncclGroupEnd(), "all-gather");
}

static void expect_gathered(const struct world *w, unsigned char *const *to, size_t block, const char *what)
{
  static unsigned char host[MOST];
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    for (int from = 0; from < w->n; from++) {
      good(cudaMemcpy(host, to[r] + ((size_t)from + 1) * block - 1, 1, cudaMemcpyDeviceToHost), "copying");
      if (host[0] != 1 + from) fail("%s: rank %d, block %d ends with %d, not %d", what, r, from, host[0], 1 + from);
    }
  }
}

/* Two captures that go on, of large blocks, which copy engines may move on streams beside the captured ones; and calls
 * meanwhile that are not captured. */
void case_captures_beside_calls(struct world *w)
{
  enum { BLOCK = 2 << 20, PLACES = 4 };
  unsigned char *to[PLACES][MOST];
  cudaGraphExec_t graphs[2][MOST];
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaFree(w->buffers[0][r]), "cudaFree");
    good(cudaMalloc((void **)&w->buffers[0][r], BLOCK), "cudaMalloc");
    for (int p = 0; p < PLACES; p++) good(cudaMalloc((void **)&to[p][r], (size_t)w->n * BLOCK), "cudaMalloc");
    good(cudaMemset(w->buffers[0][r], 1 + r, BLOCK), "cudaMemset");
    good(cudaDeviceSynchronize(), "filling buffers");
  }
  capture(w, 0);
  gather_all(w, to[0], BLOCK, 0);
  gather_all(w, to[2], BLOCK, 2);
  capture(w, 1);
  gather_all(w, to[1], BLOCK, 1);
  gather_all(w, to[3], BLOCK, 2);
  gather_all(w, to[1], BLOCK, 1);
  for (int r = 0; r < w->n; r++)
    for (int s = 0; s < 2; s++) graphs[s][r] = end_capture(w, r, s, NULL);
  wait_all(w);
  for (int p = 2; p < PLACES; p++) expect_gathered(w, to[p], BLOCK, "beside a capture");
  for (int s = 0; s < 2; s++) launch(w, graphs[s], s);
  wait_all(w);
  for (int p = 0; p < 2; p++) expect_gathered(w, to[p], BLOCK, "by a graph");
  for (int s = 0; s < 2; s++) drop_graphs(w, graphs[s]);
  for (int r = 0; r < w->n; r++)
    for (int p = 0; p < PLACES; p++) good(cudaFree(to[p][r]), "cudaFree");
  world_close(w);
}

static double now_us(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Of 20 operations of 8 bytes: a kernel each, and two for the order, or none. The time of an operation is for the
 * reader. */
void case_graph_nodes(struct world *w)
{
  enum { OPERATIONS = 20, TIMES = 200 };
  cudaGraphExec_t graphs[MOST];
  int nodes[MOST];
  double best = 1e9;
  capture(w, 0);
  for (int i = 0; i < OPERATIONS; i++) {
    ok(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < w->n; r++)
      ok(ncclAllReduce(w->buffers[0][r], w->buffers[1][r], 2, ncclInt32, ncclSum, w->comms[r], w->streams[0][r]),
         "ncclAllReduce");
    ok(ncclGroupEnd(), "ncclGroupEnd");
  }
  for (int r = 0; r < w->n; r++) {
    graphs[r] = end_capture(w, r, 0, &nodes[r]);
    if (nodes[r] != OPERATIONS + 2 && nodes[r] != OPERATIONS) fail("%d nodes", nodes[r]);
  }
  for (int round = 0; round < 5; round++) {
    double start = now_us();
    for (int time = 0; time < TIMES; time++) launch(w, graphs, 0);
    wait_all(w);
    double took = (now_us() - start) / (OPERATIONS * TIMES);
    if (took < best) best = took;
  }
  note("%d operations are %d nodes, %.2f us an operation", OPERATIONS, nodes[0], best);
  drop_graphs(w, graphs);
  world_close(w);
}

/* Groups that are too large for a kernel's parameters, captured again and again. */
void case_graph_memory(struct world *w)
{
  size_t before = 0, after = 0, total;
  for (int time = 0; time < 60; time++) {
    cudaGraphExec_t graphs[MOST];
    capture(w, 0);
    ok(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < w->n; r++)
      for (int m = 0; m < 300; m++) {
        int *send = (int *)w->buffers[0][r] + 100 * m, *recv = (int *)w->buffers[1][r] + 100 * m;
        ok(ncclSend(send, 100, ncclInt32, (r + 1) % w->n, w->comms[r], w->streams[0][r]), "ncclSend");
        ok(ncclRecv(recv, 100, ncclInt32, (r + w->n - 1) % w->n, w->comms[r], w->streams[0][r]), "ncclRecv");
      }
    ok(ncclGroupEnd(), "ncclGroupEnd");
    for (int r = 0; r < w->n; r++) graphs[r] = end_capture(w, r, 0, NULL);
    launch(w, graphs, 0);
    wait_all(w);
    drop_graphs(w, graphs);
    use(w, 0);
    if (time == 20) good(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
  }
  good(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
  if (after + (4 << 20) < before) fail("40 graphs have taken %zu KiB for good", (before - after) >> 10);
  world_close(w);
}
