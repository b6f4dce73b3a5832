/* Captured sends of which one goes to its own rank: that is copied beside the others. */
#include "world.h"

enum { EXCHANGED = 5 << 20 };

/* Each block to its rank; one stays where it is, and goes beside the others. */
static void exchange_all(const struct world *w, unsigned char *const *from, unsigned char *const *to)
{
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++)
    for (int peer = 0; peer < w->n; peer++) {
      ok(ncclSend(from[r] + (size_t)peer * EXCHANGED, EXCHANGED, ncclUint8, peer, w->comms[r], w->streams[0][r]),
         "ncclSend");
      ok(ncclRecv(to[r] + (size_t)peer * EXCHANGED, EXCHANGED, ncclUint8, peer, w->comms[r], w->streams[0][r]),
         "ncclRecv");
    }
  ok(ncclGroupEnd(), "an all-to-all of sends");
}

/* Twice in a row, there and back: all that stays and all that goes is there before the next, and before what follows
 * the graph. */
void case_captured_exchange(struct world *w)
{
  unsigned char *buffers[2][MOST], last[2];
  cudaGraphExec_t graphs[MOST];
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    for (int b = 0; b < 2; b++) good(cudaMalloc((void **)&buffers[b][r], (size_t)w->n * EXCHANGED), "cudaMalloc");
  }
  capture(w, 0);
  exchange_all(w, buffers[0], buffers[1]);
  exchange_all(w, buffers[1], buffers[0]);
  exchange_all(w, buffers[0], buffers[1]);
  for (int r = 0; r < w->n; r++) graphs[r] = end_capture(w, r, 0, NULL);
  for (int time = 0; time < 3; time++) {
    for (int r = 0; r < w->n; r++) {
      use(w, r);
      for (int peer = 0; peer < w->n; peer++)
        good(cudaMemsetAsync(buffers[0][r] + (size_t)peer * EXCHANGED, time * 64 + r * 8 + peer, EXCHANGED,
                             w->streams[0][r]),
             "filling");
      good(cudaMemsetAsync(buffers[1][r], 255, (size_t)w->n * EXCHANGED, w->streams[0][r]), "filling");
    }
    launch(w, graphs, 0);
    wait_all(w);
    for (int r = 0; r < w->n; r++) {
      use(w, r);
      for (int peer = 0; peer < w->n; peer++) {
        const unsigned char *block = buffers[1][r] + (size_t)peer * EXCHANGED;
        good(cudaMemcpy(&last[0], block, 1, cudaMemcpyDeviceToHost), "copying");
        good(cudaMemcpy(&last[1], block + EXCHANGED - 1, 1, cudaMemcpyDeviceToHost), "copying");
        for (int i = 0; i < 2; i++)
          if (last[i] != time * 64 + peer * 8 + r) fail("rank %d, from %d: %d in replay %d", r, peer, last[i], time);
      }
    }
  }
  drop_graphs(w, graphs);
  for (int r = 0; r < w->n; r++)
    for (int b = 0; b < 2; b++) good(cudaFree(buffers[b][r]), "cudaFree");
  world_close(w);
}

/* Each rank's block to all, where it lies: the one that stays need not move. */
static void share_all(const struct world *w, unsigned char *const *at)
{
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++)
    for (int peer = 0; peer < w->n; peer++) {
      ok(ncclSend(at[r] + (size_t)r * EXCHANGED, EXCHANGED, ncclUint8, peer, w->comms[r], w->streams[0][r]),
         "ncclSend");
      ok(ncclRecv(at[r] + (size_t)peer * EXCHANGED, EXCHANGED, ncclUint8, peer, w->comms[r], w->streams[0][r]),
         "ncclRecv");
    }
  ok(ncclGroupEnd(), "an all-gather of sends in place");
}

void case_captured_in_place(struct world *w)
{
  unsigned char *buffers[MOST], last;
  cudaGraphExec_t graphs[MOST];
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaMalloc((void **)&buffers[r], (size_t)w->n * EXCHANGED), "cudaMalloc");
    good(cudaMemset(buffers[r] + (size_t)r * EXCHANGED, 1 + r, EXCHANGED), "filling");
    good(cudaDeviceSynchronize(), "filling");
  }
  capture(w, 0);
  share_all(w, buffers);
  share_all(w, buffers);
  for (int r = 0; r < w->n; r++) graphs[r] = end_capture(w, r, 0, NULL);
  launch(w, graphs, 0);
  wait_all(w);
  for (int r = 0; r < w->n; r++)
    for (int peer = 0; peer < w->n; peer++) {
      use(w, r);
      good(cudaMemcpy(&last, buffers[r] + (size_t)(peer + 1) * EXCHANGED - 1, 1, cudaMemcpyDeviceToHost), "copying");
      if (last != 1 + peer) fail("rank %d, from %d: %d", r, peer, last);
    }
  drop_graphs(w, graphs);
  for (int r = 0; r < w->n; r++) good(cudaFree(buffers[r]), "cudaFree");
  world_close(w);
}

/* What a rank keeps takes longer than what it sends. Its memory: what is kept, where that goes, what is sent, what
 * comes, and what becomes of a look at the kept. */
enum { KEPT = 64 << 20, LOOK = 4096, ALL = 2 * KEPT + 2 * EXCHANGED + LOOK };

static void keep_and_send(const struct world *w, unsigned char *const *at, int stream)
{
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++) {
    unsigned char *kept = at[r] + KEPT, *sent = kept + KEPT, *came = sent + EXCHANGED;
    cudaStream_t on = w->streams[stream][r];
    ok(ncclSend(at[r], KEPT, ncclUint8, r, w->comms[r], on), "ncclSend");
    ok(ncclRecv(kept, KEPT, ncclUint8, r, w->comms[r], on), "ncclRecv");
    ok(ncclSend(sent, EXCHANGED, ncclUint8, (r + 1) % w->n, w->comms[r], on), "ncclSend");
    ok(ncclRecv(came, EXCHANGED, ncclUint8, (r + w->n - 1) % w->n, w->comms[r], on), "ncclRecv");
  }
  ok(ncclGroupEnd(), "a send to oneself and one to another");
}

static void look_at_kept(const struct world *w, unsigned char *const *at, int stream)
{
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++)
    ok(ncclAllReduce(at[r] + KEPT + KEPT / 2, at[r] + ALL - LOOK, LOOK, ncclUint8, ncclMin, w->comms[r],
                     w->streams[stream][r]),
       "ncclAllReduce");
  ok(ncclGroupEnd(), "an all-reduce of what was kept");
}

/* Both in one graph, on two streams that only the communicator orders. */
static void capture_both(const struct world *w, unsigned char *const *at)
{
  cudaEvent_t events[MOST];
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaEventCreateWithFlags(&events[r], cudaEventDisableTiming), "making an event");
    good(cudaEventRecord(events[r], w->streams[0][r]), "cudaEventRecord");
    good(cudaStreamWaitEvent(w->streams[1][r], events[r], 0), "cudaStreamWaitEvent");
  }
  keep_and_send(w, at, 0);
  look_at_kept(w, at, 1);
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaEventRecord(events[r], w->streams[1][r]), "cudaEventRecord");
    good(cudaStreamWaitEvent(w->streams[0][r], events[r], 0), "cudaStreamWaitEvent");
    good(cudaEventDestroy(events[r]), "cudaEventDestroy");
  }
}

/* A communicator's operations are in order, whatever their streams: what one kept is there for the next. First a replay
 * and a call, then both in a graph. */
void case_kept_in_order(struct world *w)
{
  unsigned char *at[MOST], last;
  cudaGraphExec_t graphs[MOST];
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaMalloc((void **)&at[r], ALL), "cudaMalloc");
  }
  for (int both = 0; both < 2; both++) {
    for (int r = 0; r < w->n; r++) {
      use(w, r);
      good(cudaMemset(at[r], 7, KEPT), "filling");
      good(cudaMemset(at[r] + KEPT, 1, KEPT), "filling");
      good(cudaDeviceSynchronize(), "filling");
    }
    capture(w, 0);
    if (both)
      capture_both(w, at);
    else
      keep_and_send(w, at, 0);
    for (int r = 0; r < w->n; r++) graphs[r] = end_capture(w, r, 0, NULL);
    launch(w, graphs, 0);
    if (!both) look_at_kept(w, at, 1);
    wait_all(w);
    for (int r = 0; r < w->n; r++) {
      use(w, r);
      good(cudaMemcpy(&last, at[r] + ALL - LOOK, 1, cudaMemcpyDeviceToHost), "copying");
      if (last != 7) fail("rank %d has %d, %s", r, last, both ? "both in a graph" : "a call after a replay");
    }
    drop_graphs(w, graphs);
  }
  for (int r = 0; r < w->n; r++) good(cudaFree(at[r]), "cudaFree");
  world_close(w);
}
