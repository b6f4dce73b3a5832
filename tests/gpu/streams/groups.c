/* Large groups, groups of several communicators, and non-blocking ones. */
#include <unistd.h>
#include "world.h"

enum { WORDS = 19 }; /* of a message */

/* Each rank sends `messages` to the next one and to itself, by turns, and receives as many. */
static void put_messages(const struct world *w, int messages, int stream)
{
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++)
    for (int m = 0; m < messages; m++) {
      int step = m % 4 == 3 ? 0 : 1, at = m * WORDS % (COUNT - WORDS);
      ok(ncclSend((int *)w->buffers[0][r] + at, WORDS, ncclInt32, (r + step) % w->n, w->comms[r],
                  w->streams[stream][r]),
         "ncclSend");
      ok(ncclRecv((int *)w->buffers[1][r] + at, WORDS, ncclInt32, (r + w->n - step) % w->n, w->comms[r],
                  w->streams[stream][r]),
         "ncclRecv");
    }
  ok(ncclGroupEnd(), "ncclGroupEnd");
}

static void prepare(const struct world *w, int base)
{
  static int host[COUNT];
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    for (int i = 0; i < COUNT; i++) host[i] = (base + r) * 1000000 + i;
    good(cudaMemcpy(w->buffers[0][r], host, sizeof(host), cudaMemcpyHostToDevice), "copying");
    good(cudaMemset(w->buffers[1][r], 0, sizeof(host)), "cudaMemset");
    good(cudaDeviceSynchronize(), "filling buffers"); /* which the streams do not wait for */
  }
}

static void expect_messages(const struct world *w, int messages, int base)
{
  static int host[COUNT];
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    good(cudaMemcpy(host, w->buffers[1][r], sizeof(host), cudaMemcpyDeviceToHost), "copying");
    for (int m = 0; m < messages; m++) {
      int from = (r + w->n - (m % 4 == 3 ? 0 : 1)) % w->n, at = m * WORDS % (COUNT - WORDS);
      for (int i = 0; i < WORDS; i++)
        if (host[at + i] != (base + from) * 1000000 + at + i)
          fail("rank %d, message %d, word %d: %d, not %d", r, m, i, host[at + i], (base + from) * 1000000 + at + i);
    }
  }
}

void case_captured_group(struct world *w)
{
  cudaGraphExec_t graphs[MOST];
  capture(w, 0);
  put_messages(w, 500, 0); /* sent and received */
  for (int r = 0; r < w->n; r++) graphs[r] = end_capture(w, r, 0, NULL);
  for (int time = 1; time < 4; time++) {
    prepare(w, time);
    launch(w, graphs, time % 2);
    wait_all(w);
    expect_messages(w, 500, time);
  }
  drop_graphs(w, graphs);
  world_close(w);
}

void case_large_group(struct world *w)
{
  for (int time = 1; time < 3; time++) {
    prepare(w, time);
    put_messages(w, 5000, 0);
    wait_all(w);
    expect_messages(w, 5000, time);
  }
  world_close(w);
}

/* Rank 0's group receives a large and a small message, of two protocols, which rank 1 sends one after the other; before
 * that all gather small blocks, rank 0 in the same group, if `gathers`. */
static void put_mixed(const struct world *w, bool gathers)
{
  enum { LARGE = COUNT * 4, SMALL = 64 };
  for (int r = 0; r < w->n; r++) {
    if (r == 0) ok(ncclGroupStart(), "ncclGroupStart");
    if (gathers)
      ok(ncclAllGather(w->buffers[1][r], w->buffers[4][r], SMALL, ncclUint8, w->comms[r], w->streams[0][r]),
         "ncclAllGather");
    if (r == 0) {
      ok(ncclRecv(w->buffers[2][0], LARGE, ncclUint8, 1, w->comms[0], w->streams[0][0]), "ncclRecv");
      ok(ncclRecv(w->buffers[3][0], SMALL, ncclUint8, 1, w->comms[0], w->streams[0][0]), "ncclRecv");
      ok(ncclGroupEnd(), "a group of two protocols");
    } else if (r == 1) {
      ok(ncclSend(w->buffers[0][1], LARGE, ncclUint8, 0, w->comms[1], w->streams[0][1]), "ncclSend");
      ok(ncclSend(w->buffers[1][1], SMALL, ncclUint8, 0, w->comms[1], w->streams[0][1]), "ncclSend");
    }
  }
}

static void expect_mixed(const struct world *w, int large, int small)
{
  static unsigned char host[COUNT * 4];
  use(w, 0);
  good(cudaMemcpy(host, w->buffers[2][0], sizeof(host), cudaMemcpyDeviceToHost), "copying");
  for (size_t i = 0; i < sizeof(host); i++)
    if (host[i] != large) fail("byte %zu of the large message is %d, not %d", i, host[i], large);
  good(cudaMemcpy(host, w->buffers[3][0], 64, cudaMemcpyDeviceToHost), "copying");
  for (int i = 0; i < 64; i++)
    if (host[i] != small) fail("byte %d of the small message is %d, not %d", i, host[i], small);
}

void case_mixed_protocols(struct world *w)
{
  for (int time = 0; time < 2; time++) {
    cudaGraphExec_t graphs[MOST];
    for (int r = 0; r < w->n; r++)
      for (int b = 0; b < 4; b++) fill(w, r, b, 10 * time + b + 1, 0);
    put_mixed(w, time == 1);
    wait_all(w);
    expect_mixed(w, 10 * time + 1, 10 * time + 2);
    capture(w, 0);
    put_mixed(w, time == 1);
    for (int r = 0; r < w->n; r++) {
      graphs[r] = end_capture(w, r, 0, NULL);
      for (int b = 0; b < 4; b++) fill(w, r, b, 10 * time + b + 5, 0);
    }
    launch(w, graphs, 0);
    wait_all(w);
    expect_mixed(w, 10 * time + 5, 10 * time + 6);
    drop_graphs(w, graphs);
  }
  world_close(w);
}

/* Half of the ranks call one communicator's operation first, the others the other one's; each rank has one stream. */
void case_communicators_crossed(struct world *w)
{
  ncclComm_t others[MOST];
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++) ok(ncclCommSplit(w->comms[r], 0, r, &others[r], NULL), "ncclCommSplit");
  ok(ncclGroupEnd(), "splitting");
  for (int r = 0; r < w->n; r++) fill(w, r, 0, 3, 0);
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int second = 0; second < 2; second++)
    for (int r = 0; r < w->n; r++) {
      bool other = r % 2 != second;
      reduce(w, other ? others[r] : w->comms[r], r, 0, other ? 1 : 2, 0);
    }
  ok(ncclGroupEnd(), "the group");
  wait_all(w);
  for (int b = 1; b <= 2; b++) expect(w, b, 3 * w->n, "a communicator's sum");
  for (int r = 0; r < w->n; r++) ok(ncclCommDestroy(others[r]), "ncclCommDestroy");
  world_close(w);
}

/* Three communicators a rank, in one group, all on one stream or each on its own. */
void case_communicators(struct world *w)
{
  enum { MORE = 2 };
  ncclComm_t more[MORE][MOST];
  for (int c = 0; c < MORE; c++) {
    ok(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < w->n; r++) ok(ncclCommSplit(w->comms[r], 0, r, &more[c][r], NULL), "ncclCommSplit");
    ok(ncclGroupEnd(), "splitting");
  }
  for (int time = 0; time < 40; time++) {
    for (int r = 0; r < w->n; r++) fill(w, r, 0, 1 + time % 4, 0);
    wait_all(w);
    ok(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < w->n; r++) {
      reduce(w, w->comms[r], r, 0, 1, 0);
      for (int c = 0; c < MORE; c++) reduce(w, more[c][r], r, 0, 2 + c, time % 2 ? 0 : 1 + c);
    }
    ok(ncclGroupEnd(), "the group");
    wait_all(w);
    for (int b = 1; b < 2 + MORE; b++) expect(w, b, w->n * (1 + time % 4), "a communicator's sum");
  }
  for (int c = 0; c < MORE; c++)
    for (int r = 0; r < w->n; r++) ok(ncclCommDestroy(more[c][r]), "ncclCommDestroy");
  world_close(w);
}

/* Until what was begun is done. */
static void settle(ncclComm_t const *comms, int n, const char *what)
{
  for (int r = 0; r < n; r++) {
    ncclResult_t state = ncclInProgress;
    for (int waited = 0; state == ncclInProgress; waited++) {
      ok(ncclCommGetAsyncError(comms[r], &state), "ncclCommGetAsyncError");
      if (waited == 300000) fail("%s: still in progress", what);
      usleep(100);
    }
    if (state != ncclSuccess) fail("%s: rank %d: %s", what, r, ncclGetLastError(comms[r]));
  }
}

static void begun(ncclResult_t result, const char *what)
{
  if (result != ncclInProgress) ok(result, what);
}

static void begin_reduce(const struct world *w, ncclComm_t const *comms, int from, int to)
{
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++)
    begun(ncclAllReduce(w->buffers[from][r], w->buffers[to][r], COUNT, ncclInt32, ncclSum, comms[r], w->streams[0][r]),
          "ncclAllReduce");
  begun(ncclGroupEnd(), "ncclGroupEnd");
  settle(comms, w->n, "an all-reduce");
}

static void make_non_blocking(const struct world *w, ncclComm_t *comms)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  config.blocking = 0;
  ok(ncclGetUniqueId(&id), "ncclGetUniqueId");
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < w->n; r++) {
    use(w, r);
    begun(ncclCommInitRankConfig(&comms[r], w->n, id, r, &config), "ncclCommInitRankConfig");
  }
  begun(ncclGroupEnd(), "ncclGroupEnd");
  settle(comms, w->n, "making communicators");
}

void case_non_blocking(struct world *w)
{
  ncclComm_t comms[MOST];
  cudaGraphExec_t graphs[MOST];
  make_non_blocking(w, comms);
  for (int r = 0; r < w->n; r++) fill(w, r, 0, 2, 0);
  begin_reduce(w, comms, 0, 1);
  capture(w, 0);
  begin_reduce(w, comms, 1, 2);
  for (int r = 0; r < w->n; r++) graphs[r] = end_capture(w, r, 0, NULL);
  wait_all(w);
  expect(w, 1, 2 * w->n, "a call's sum");
  expect(w, 2, 0, "what was only captured");
  launch(w, graphs, 0);
  wait_all(w);
  expect(w, 2, 2 * w->n * w->n, "a graph's sum");
  drop_graphs(w, graphs);
  for (int r = 0; r < w->n; r++) begun(ncclCommFinalize(comms[r]), "ncclCommFinalize");
  settle(comms, w->n, "ncclCommFinalize");
  for (int r = 0; r < w->n; r++) ok(ncclCommDestroy(comms[r]), "ncclCommDestroy");
  world_close(w);
}
