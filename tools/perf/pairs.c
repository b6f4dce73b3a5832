/* See pairs.h: the measurement, on a communicator of each pair's own. Ranks that are not of the pair wait meanwhile. */
#include "pairs.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "pattern.h"
#include "worker.h"

enum { BLOCK = 65536 };

/* One rank's part in a pair. */
struct pair {
  struct perf_worker *worker;
  ncclComm_t comm;
  int me; /* 0 or 1; -1: not of it */
  cudaStream_t stream;
  char *send, *recv;
};

/* What goes on between the two. */
enum action { FORTH, BACK, BOTH, PING, BROADCAST };

struct part {
  double seconds[BROADCAST + 1]; /* of one iteration */
  uint64_t wrong;
};

static const struct perf_setting settings[PERF_SETTINGS] = {
    {"p2p", "send/recv, with direct copies", {{"NCCL_P2P_DISABLE", "0"}, {NULL, NULL}}, false},
    {"nop2p", "send/recv, without direct copies", {{"NCCL_P2P_DISABLE", "1"}, {NULL, NULL}}, false},
    {"ll", "protocol LL", {{"NCCL_PROTO", "LL"}, {"NCCL_ALGO", "RING"}}, true},
    {"ll128", "protocol LL128", {{"NCCL_PROTO", "LL128"}, {"NCCL_ALGO", "RING"}}, true},
    {"simple", "protocol Simple", {{"NCCL_PROTO", "SIMPLE"}, {"NCCL_ALGO", "RING"}}, true},
};

const struct perf_setting *perf_setting_at(int i)
{
  return i >= 0 && i < PERF_SETTINGS ? &settings[i] : NULL;
}

double *perf_pairs_at(struct perf_pairs *pairs, int setting, enum perf_pair_measure measure, int row, int column)
{
  size_t ranks = (size_t)pairs->ranks, matrix = (size_t)setting * PERF_PAIR_MEASURES + (size_t)measure;
  return &pairs->values[(matrix * ranks + (size_t)row) * ranks + (size_t)column];
}

static double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void try(const struct pair *p, const char *what, ncclResult_t result)
{
  perf_worker_try(p->worker, perf_worker_rank(p->worker, 0), what, result);
}

static void send_one(const struct pair *p, size_t bytes)
{
  try(p, "ncclSend", ncclSend(p->send, bytes, ncclUint8, !p->me, p->comm, p->stream));
}

static void receive_one(const struct pair *p, size_t bytes)
{
  try(p, "ncclRecv", ncclRecv(p->recv, bytes, ncclUint8, !p->me, p->comm, p->stream));
}

/* One iteration. */
static void act(const struct pair *p, enum action action, size_t bytes)
{
  int first = action == BACK ? 1 : 0;
  if (action == BROADCAST) {
    for (int root = 0; root < 2; root++) {
      ncclResult_t result = ncclBroadcast(p->send, p->recv, bytes, ncclUint8, root, p->comm, p->stream);
      struct perf_pairs *pairs = p->worker->team->options->pairs;
      /* Not every device has every protocol; the library says so by refusing the call, to both ranks. */
      if (result == ncclInvalidUsage) pairs->results[pairs->setting].missing = true;
      try(p, "ncclBroadcast", result);
    }
    return;
  }
  if (action == BOTH) try(p, "ncclGroupStart", ncclGroupStart());
  if (action == BOTH || action == PING || p->me == first) {
    /* Of there and back, number 1 does the second half first. */
    if (action == PING && p->me == 1) receive_one(p, bytes);
    send_one(p, bytes);
    if (action == BOTH || (action == PING && p->me == 0)) receive_one(p, bytes);
  } else {
    receive_one(p, bytes);
  }
  if (action == BOTH) try(p, "ncclGroupEnd", ncclGroupEnd());
}

/* Errors of the pair's own communicator are not among those that the worker's wait looks for. */
static void wait_done(const struct pair *p)
{
  ncclResult_t state = ncclSuccess;
  perf_worker_wait(p->worker);
  try(p, "ncclCommGetAsyncError", ncclCommGetAsyncError(p->comm, &state));
  try(p, "an operation of a pair", state);
}

static void *captured(const struct pair *p, enum action action, size_t bytes)
{
  const struct perf_backend *backend = p->worker->team->backend;
  perf_worker_must(p->worker, 0, "capturing a graph", backend->capture_begin(p->stream));
  for (int i = 0; i < p->worker->team->options->iterations; i++) act(p, action, bytes);
  void *graph = backend->capture_end(p->stream);
  perf_worker_must(p->worker, 0, "making a graph", graph != NULL);
  return graph;
}

/* Seconds of one iteration. All ranks call; those that are not of the pair only keep the barrier. */
static double time_action(const struct pair *p, enum action action, size_t bytes)
{
  struct perf_team *team = p->worker->team;
  const struct perf_options *o = team->options;
  void *graph = NULL;
  perf_watch_arm(team->watch, o->timeout);
  if (p->me >= 0) {
    for (int i = 0; i <= o->warmup; i++) act(p, action, bytes);
    wait_done(p);
    graph = o->graph ? captured(p, action, bytes) : NULL;
  }
  perf_team_barrier(team, p->worker->thread);
  if (p->me < 0) return 0;
  double start = now();
  for (int i = 0; graph && i < o->graph; i++)
    perf_worker_must(p->worker, 0, "launching a graph", team->backend->graph_launch(graph, p->stream));
  for (int i = 0; !graph && i < o->iterations; i++) act(p, action, bytes);
  wait_done(p);
  double seconds = (now() - start) / o->iterations / (graph ? o->graph : 1);
  if (graph) team->backend->graph_drop(graph);
  return seconds;
}

/* Fills a buffer with `origin`'s pattern, or, with `compare`, counts the bytes that are not so. */
static uint64_t go_through(const struct pair *p, const struct perf_pattern *pattern, char *buffer, int origin,
                           size_t bytes, bool compare)
{
  static _Thread_local char block[BLOCK];
  const struct perf_backend *backend = p->worker->team->backend;
  uint64_t wrong = 0;
  for (size_t done = 0; done < bytes; done += BLOCK) {
    size_t n = bytes - done < BLOCK ? bytes - done : BLOCK, where = 0;
    if (!compare) perf_pattern_fill(pattern, origin, done, n, block);
    perf_worker_must(p->worker, 0, "reaching its buffers",
                     compare ? backend->copy_out(block, buffer + done, n) : backend->copy_in(buffer + done, block, n));
    if (compare) wrong += perf_pattern_compare(pattern, origin, false, done, n, block, &where);
  }
  return wrong;
}

/* Wrong bytes of one iteration with new data. Both ranks of the pair call. */
static uint64_t check_action(const struct pair *p, enum action action, size_t bytes)
{
  struct perf_pattern pattern = {.type = perf_type_find("uint8"), .nranks = 2, .epoch = 100 + (uint64_t)action};
  bool receives = action != (p->me == 0 ? FORTH : BACK);
  go_through(p, &pattern, p->send, p->me, bytes, false);
  go_through(p, &pattern, p->recv, PERF_POISON, bytes, false);
  act(p, action, bytes);
  wait_done(p);
  /* The last of the two broadcasts is number 1's. */
  int origin = action == BROADCAST ? 1 : !p->me;
  return receives ? go_through(p, &pattern, p->recv, origin, bytes, true) : 0;
}

static void measure_one(const struct pair *p, enum action action, size_t bytes, struct part *part)
{
  if (p->me >= 0 && p->worker->team->options->check) part->wrong += check_action(p, action, bytes);
  part->seconds[action] = time_action(p, action, bytes);
}

/* Of a pair that both have measured, the slower one's time counts. */
static void keep(struct perf_pairs *pairs, int a, int b, const struct part *all, size_t bytes)
{
  double seconds[BROADCAST + 1];
  int setting = pairs->setting;
  for (int i = 0; i <= BROADCAST; i++)
    seconds[i] = all[a].seconds[i] > all[b].seconds[i] ? all[a].seconds[i] : all[b].seconds[i];
  pairs->results[setting].wrong += all[a].wrong + all[b].wrong;
  enum action latency = settings[setting].broadcast ? BROADCAST : PING;
  *perf_pairs_at(pairs, setting, PERF_PAIR_LATENCY, a, b) = seconds[latency] / 2 * 1e6;
  *perf_pairs_at(pairs, setting, PERF_PAIR_LATENCY, b, a) = seconds[latency] / 2 * 1e6;
  if (settings[setting].broadcast) return;
  *perf_pairs_at(pairs, setting, PERF_PAIR_ONE_WAY, a, b) = (double)bytes * 1e-9 / seconds[FORTH];
  *perf_pairs_at(pairs, setting, PERF_PAIR_ONE_WAY, b, a) = (double)bytes * 1e-9 / seconds[BACK];
  *perf_pairs_at(pairs, setting, PERF_PAIR_BOTH, a, b) = (double)bytes * 1e-9 / seconds[BOTH];
  *perf_pairs_at(pairs, setting, PERF_PAIR_BOTH, b, a) = (double)bytes * 1e-9 / seconds[BOTH];
}

/* Operations are the pair's communicator's, so that is what is told of the buffers. */
static void register_both(const struct pair *p, bool drop)
{
  struct perf_buffer *buffers[] = {&p->worker->send[0], &p->worker->recv[0]};
  for (int i = 0; p->comm && i < 2; i++)
    try(p, drop ? "giving up its buffers' registration" : "registering its buffers",
        drop ? perf_buffer_deregister(buffers[i], p->comm) : perf_buffer_register(buffers[i], p->comm));
}

static void measure_pair(struct perf_worker *worker, int a, int b, struct part *all)
{
  struct perf_team *team = worker->team;
  struct perf_pairs *pairs = team->options->pairs;
  int rank = perf_worker_rank(worker, 0);
  struct pair p = {.worker = worker,
                   .me = rank == a   ? 0
                         : rank == b ? 1
                                     : -1,
                   .stream = worker->streams[0],
                   .send = worker->send[0].data,
                   .recv = worker->recv[0].data};
  struct part mine = {0};
  size_t bytes = (size_t)team->options->max_bytes;
  perf_watch_arm(team->watch, team->options->timeout);
  try(&p, "ncclCommSplit", ncclCommSplit(worker->comms[0], p.me < 0 ? NCCL_SPLIT_NOCOLOR : 0, p.me, &p.comm, NULL));
  register_both(&p, false);
  if (settings[pairs->setting].broadcast) {
    measure_one(&p, BROADCAST, PERF_PAIR_LATENCY_BYTES, &mine);
  } else {
    for (enum action action = FORTH; action <= BOTH; action++) measure_one(&p, action, bytes, &mine);
    measure_one(&p, PING, PERF_PAIR_LATENCY_BYTES, &mine);
  }
  perf_team_exchange(team, worker->thread, &mine, all, sizeof(mine));
  if (team->control->process == 0 && worker->thread == 0) keep(pairs, a, b, all, bytes);
  register_both(&p, true);
  if (p.comm) try(&p, "ncclCommDestroy", ncclCommDestroy(p.comm));
}

void perf_pairs_measure(struct perf_worker *worker)
{
  struct perf_team *team = worker->team;
  struct perf_pairs *pairs = team->options->pairs;
  struct part *all = calloc((size_t)team->ranks, sizeof(*all));
  bool keeper = team->control->process == 0 && worker->thread == 0;
  char pci[16];
  if (!all) perf_watch_fail(team->watch, "out of memory");
  perf_worker_choose(worker, 0);
  if (keeper)
    perf_worker_must(
        worker, 0, "describing its device",
        team->backend->describe(perf_worker_device(worker, 0), pairs->device, sizeof(pairs->device), pci, sizeof(pci)));
  for (int a = 0; a < team->ranks; a++)
    for (int b = a + 1; b < team->ranks; b++) measure_pair(worker, a, b, all);
  free(all);
  if (!keeper) return;
  pairs->results[pairs->setting].complete = true;
  worker->status = pairs->results[pairs->setting].wrong ? 1 : 0;
}
