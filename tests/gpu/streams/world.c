/* See world.h. */
#include "world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WAIT_SECONDS 30

extern const char *case_name; /* main.c */
static char noted[300];

void fail(const char *format, ...)
{
  va_list args;
  printf("FAIL streams, %s: ", case_name);
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  printf("\n");
  fflush(stdout);
  _exit(1); /* what a failed case leaves behind must not end in exit handlers */
}

void note(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(noted, sizeof(noted), format, args);
  va_end(args);
}

const char *noted_text(void)
{
  return noted;
}

void good(cudaError_t error, const char *what)
{
  if (error != cudaSuccess) fail("%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

void ok(ncclResult_t result, const char *what)
{
  if (result != ncclSuccess) fail("%s: %s: %s", what, ncclGetErrorString(result), ncclGetLastError(NULL));
}

void refused(ncclResult_t result, ncclResult_t wanted, const char *words)
{
  const char *text = ncclGetLastError(NULL);
  if (result != wanted) fail("result %d (%s), not %d", (int)result, text, (int)wanted);
  if (strstr(text, words) == NULL) fail("\"%s\" does not say \"%s\"", text, words);
}

void use(const struct world *world, int rank)
{
  good(cudaSetDevice(world->device[rank]), "cudaSetDevice");
}

struct world *world_open(int n)
{
  struct world *world = calloc(1, sizeof(*world));
  int gpus = 0;
  ncclUniqueId id;
  good(cudaGetDeviceCount(&gpus), "counting GPUs");
  world->n = n;
  ok(ncclGetUniqueId(&id), "ncclGetUniqueId");
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < n; r++) {
    world->device[r] = r % gpus;
    use(world, r);
    for (int s = 0; s < STREAMS; s++)
      good(cudaStreamCreateWithFlags(&world->streams[s][r], cudaStreamNonBlocking), "making a stream");
    for (int b = 0; b < BUFFERS; b++) {
      good(cudaMalloc((void **)&world->buffers[b][r], COUNT * 4), "cudaMalloc");
      good(cudaMemset(world->buffers[b][r], 0, COUNT * 4), "cudaMemset");
    }
    good(cudaDeviceSynchronize(), "filling buffers"); /* which the streams do not wait for */
    ok(ncclCommInitRank(&world->comms[r], n, id, r), "ncclCommInitRank");
  }
  ok(ncclGroupEnd(), "making communicators");
  return world;
}

void world_close(struct world *world)
{
  for (int r = 0; r < world->n; r++) ok(ncclCommDestroy(world->comms[r]), "ncclCommDestroy");
  for (int r = 0; r < world->n; r++) {
    use(world, r);
    for (int s = 0; s < STREAMS; s++) good(cudaStreamDestroy(world->streams[s][r]), "cudaStreamDestroy");
    for (int b = 0; b < BUFFERS; b++) good(cudaFree(world->buffers[b][r]), "cudaFree");
  }
  free(world);
}

void reduce(const struct world *world, ncclComm_t comm, int rank, int from, int to, int stream)
{
  ok(ncclAllReduce(world->buffers[from][rank], world->buffers[to][rank], COUNT, ncclInt32, ncclSum, comm,
                   world->streams[stream][rank]),
     "ncclAllReduce");
}

bool left_out_where_shared(struct world *world)
{
  bool shared = false;
  for (int r = 1; r < world->n; r++)
    for (int other = 0; other < r; other++) shared |= world->device[r] == world->device[other];
  if (!shared) return false;
  note("not tried, ranks share a GPU");
  world_close(world);
  return true;
}

void reduce_all(const struct world *world, ncclComm_t const *comms, int from, int to, int stream)
{
  ok(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < world->n; r++) reduce(world, comms[r], r, from, to, stream);
  ok(ncclGroupEnd(), "all-reduce");
}

void fill(const struct world *world, int rank, int buffer, int byte, int stream)
{
  use(world, rank);
  good(cudaMemsetAsync(world->buffers[buffer][rank], byte, COUNT * 4, world->streams[stream][rank]), "filling");
}

void CUDART_CB sleep_ms(void *ms)
{
  usleep((unsigned)(size_t)ms * 1000);
}

void delay(const struct world *world, int rank, int stream, int ms)
{
  use(world, rank);
  good(cudaLaunchHostFunc(world->streams[stream][rank], sleep_ms, (void *)(size_t)ms), "cudaLaunchHostFunc");
}

bool stream_ends(cudaStream_t stream)
{
  struct timespec start, now;
  cudaError_t error;
  clock_gettime(CLOCK_MONOTONIC, &start);
  while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec - start.tv_sec > WAIT_SECONDS) return false;
    usleep(50);
  }
  good(error, "a stream");
  return true;
}

void wait_all(const struct world *world)
{
  for (int r = 0; r < world->n; r++)
    for (int s = 0; s < STREAMS; s++)
      if (world->streams[s][r] != NULL && !stream_ends(world->streams[s][r]))
        fail("stream %d of rank %d does not end", s, r);
}

void expect(const struct world *world, int buffer, int byte, const char *what)
{
  static unsigned char host[COUNT * 4];
  for (int r = 0; r < world->n; r++) {
    use(world, r);
    good(cudaMemcpy(host, world->buffers[buffer][r], sizeof(host), cudaMemcpyDeviceToHost), "copying");
    for (size_t i = 0; i < sizeof(host); i++)
      if (host[i] != byte) fail("%s: rank %d, byte %zu is %d, not %d", what, r, i, host[i], byte);
  }
}

int sum_of(const struct world *world, int base)
{
  return world->n * base + world->n * (world->n - 1) / 2;
}

/* Relaxed: one thread ends several captures here, and makes a graph of one while the next one still goes on, which the
 * other modes forbid. */
void capture(const struct world *world, int stream)
{
  for (int r = 0; r < world->n; r++) {
    use(world, r);
    good(cudaStreamBeginCapture(world->streams[stream][r], cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  }
}

cudaGraphExec_t end_capture(const struct world *world, int rank, int stream, int *nodes)
{
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  size_t count = 0;
  use(world, rank);
  good(cudaStreamEndCapture(world->streams[stream][rank], &graph), "cudaStreamEndCapture");
  good(cudaGraphGetNodes(graph, NULL, &count), "cudaGraphGetNodes");
  if (nodes != NULL) *nodes = (int)count;
  good(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  good(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return executable;
}

void launch(const struct world *world, cudaGraphExec_t const *graphs, int stream)
{
  for (int r = 0; r < world->n; r++) {
    use(world, r);
    good(cudaGraphLaunch(graphs[r], world->streams[stream][r]), "cudaGraphLaunch");
  }
}

void drop_graphs(const struct world *world, cudaGraphExec_t const *graphs)
{
  for (int r = 0; r < world->n; r++) {
    use(world, r);
    good(cudaGraphExecDestroy(graphs[r]), "cudaGraphExecDestroy");
  }
}
