/* Windows of communicators on real GPUs, in threads of one process and in processes: what each rank has mapped of each
 * other's memory, operations on it, and its end.
 *
 *   test_gpu_windows [LIBRARY]      by default ../lib/tutti/libtutti-device-cuda.so from the program
 *
 * A rank for each GPU; two on one where there is one. Exit status: 0 all passed, 1 some failed, 77 there is no GPU. */
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cuda_runtime_api.h>
#include "base/log.h"
#include "kernels/host/fp8.h"
#include "kernels/host/half.h"
#include "nccl.h"
#include "plan/comm.h"
#include "transport/user_internal.h"

enum { MOST = 16, NO_GPU = 77, SECONDS = 120 };
#define BYTES ((size_t)256 << 20)
#define SLICE ((size_t)1 << 16)
#define TOLERANCE ((size_t)64 << 20)

/* Of all ranks, whatever they are. */
struct scene {
  ncclUniqueId id;
  int ranks, gpus;
  bool threads;
  _Atomic int failures;
};

struct rank {
  struct scene *scene;
  int number;
  ncclComm_t comm;
  cudaStream_t stream;
  char *buffer;
  ncclWindow_t window;
  int seen; /* failures */
};

static void barrier(struct rank *rank)
{
  if (tt_bootstrap_barrier(rank->comm->bootstrap) != ncclSuccess) _exit(1);
}

/* All ranks say how it went; rank 0 prints it. */
static void verdict(struct rank *rank, const char *name, const char *problem)
{
  struct scene *scene = rank->scene;
  if (problem != NULL) {
    printf("FAIL windows, %d %s: %s: rank %d: %s; %s\n", scene->ranks, scene->threads ? "threads" : "processes", name,
           rank->number, problem, tt_log_thread_error());
    atomic_fetch_add(&scene->failures, 1);
  }
  barrier(rank);
  int failures = atomic_load(&scene->failures);
  if (rank->number == 0 && failures == rank->seen)
    printf("PASS windows, %d %s: %s\n", scene->ranks, scene->threads ? "threads" : "processes", name);
  rank->seen = failures;
  fflush(stdout);
  barrier(rank);
}

static bool place_of(struct rank *rank, const void *ptr, size_t bytes, void **at)
{
  struct tt_user_place place;
  return tt_user_buffers_find(rank->comm->env->users, ptr, bytes, &place, at) == ncclSuccess && place.window != NULL &&
         place.everywhere;
}

static const char *open_window(struct rank *rank)
{
  void *ptr, *at[MOST];
  if (ncclMemAlloc(&ptr, BYTES) != ncclSuccess) return "ncclMemAlloc";
  rank->buffer = ptr;
  if (ncclCommWindowRegister(rank->comm, ptr, BYTES, &rank->window, NCCL_WIN_COLL_SYMMETRIC) != ncclSuccess)
    return "ncclCommWindowRegister";
  return place_of(rank, ptr, BYTES, at) ? NULL : "it is not mapped";
}

/* Each writes its slice of each other's buffer. */
static const char *write_to_all(struct rank *rank)
{
  void *at[MOST];
  size_t offset = (size_t)rank->number * SLICE;
  unsigned char seen[64];
  if (!place_of(rank, rank->buffer + offset, SLICE, at)) return "it is not mapped";
  for (int r = 0; r < rank->scene->ranks; r++)
    if (cudaMemsetAsync(at[r], 16 * rank->number + r + 1, SLICE, rank->stream) != cudaSuccess) return "writing";
  if (cudaStreamSynchronize(rank->stream) != cudaSuccess) return "writing";
  barrier(rank);
  for (int r = 0; r < rank->scene->ranks; r++) {
    const char *from = rank->buffer + (size_t)(r + 1) * SLICE - sizeof(seen);
    if (cudaMemcpyAsync(seen, from, sizeof(seen), cudaMemcpyDeviceToHost, rank->stream) != cudaSuccess ||
        cudaStreamSynchronize(rank->stream) != cudaSuccess)
      return "reading";
    for (size_t i = 0; i < sizeof(seen); i++)
      if (seen[i] != (unsigned char)(16 * r + rank->number + 1)) return "what a peer wrote is not there";
  }
  return NULL;
}

static const char *all_reduce(struct rank *rank)
{
  enum { COUNT = 1 << 20 };
  float *host = malloc(COUNT * sizeof(float));
  const char *problem = NULL;
  for (int i = 0; i < COUNT; i++) host[i] = (float)(rank->number + i % 7);
  if (cudaMemcpyAsync(rank->buffer, host, COUNT * sizeof(float), cudaMemcpyHostToDevice, rank->stream) != cudaSuccess ||
      ncclAllReduce(rank->buffer, rank->buffer, COUNT, ncclFloat, ncclSum, rank->comm, rank->stream) != ncclSuccess ||
      cudaMemcpyAsync(host, rank->buffer, COUNT * sizeof(float), cudaMemcpyDeviceToHost, rank->stream) != cudaSuccess ||
      cudaStreamSynchronize(rank->stream) != cudaSuccess)
    problem = "an all-reduce";
  int ranks = rank->scene->ranks;
  for (int i = 0; i < COUNT && problem == NULL; i++)
    if (host[i] != (float)(ranks * (ranks - 1) / 2 + ranks * (i % 7))) problem = "a sum is wrong";
  free(host);
  return problem;
}

/* Repeats a graph whose operation is out of place in memory that lies in no window. */
static const char *repeat(struct rank *rank, cudaGraphExec_t graph, float *host, int count)
{
  int ranks = rank->scene->ranks;
  float *out = (float *)(void *)(rank->buffer + BYTES / 2);
  for (int time = 1; time <= 3; time++) {
    for (int i = 0; i < count; i++) host[i] = (float)(time * (rank->number + i % 7));
    if (cudaMemcpyAsync(rank->buffer, host, (size_t)count * sizeof(float), cudaMemcpyHostToDevice, rank->stream) !=
            cudaSuccess ||
        cudaGraphLaunch(graph, rank->stream) != cudaSuccess ||
        cudaMemcpyAsync(host, out, (size_t)count * sizeof(float), cudaMemcpyDeviceToHost, rank->stream) !=
            cudaSuccess ||
        cudaStreamSynchronize(rank->stream) != cudaSuccess)
      return "repeating the graph";
    for (int i = 0; i < count; i++)
      if (host[i] != (float)(time * (ranks * (ranks - 1) / 2 + ranks * (i % 7)))) return "a sum is wrong";
  }
  return NULL;
}

static bool holds_graphs(struct rank *rank)
{
  struct tt_user_buffers *users = rank->comm->env->users;
  pthread_mutex_lock(&users->lock);
  bool holds = users->graphs != NULL;
  pthread_mutex_unlock(&users->lock);
  return holds;
}

/* All ranks map each other's buffers until the graph ends. */
static const char *captured(struct rank *rank)
{
  enum { COUNT = 1 << 20 };
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  void *ptr;
  if (ncclMemAlloc(&ptr, BYTES) != ncclSuccess) return "ncclMemAlloc";
  rank->buffer = ptr;
  if (cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return "the capture";
  ncclResult_t result =
      ncclAllReduce(ptr, rank->buffer + BYTES / 2, COUNT, ncclFloat, ncclSum, rank->comm, rank->stream);
  if (cudaStreamEndCapture(rank->stream, &graph) != cudaSuccess || result != ncclSuccess ||
      cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
    return "capturing an all-reduce";
  bool held = holds_graphs(rank);
  float *host = malloc(COUNT * sizeof(float));
  const char *problem = repeat(rank, exec, host, COUNT);
  free(host);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  for (int i = 0; i < 5000 && holds_graphs(rank); i++) usleep(1000);
  bool left = holds_graphs(rank);
  barrier(rank);
  if (ncclMemFree(ptr) != ncclSuccess) return "ncclMemFree";
  if (problem != NULL) return problem;
  return !held ? "it is not in place" : left ? "the graph is gone, and its memory is still mapped" : NULL;
}

/* A value in a type, little-endian, whose bytes are counted. */
static uint64_t encode(ncclDataType_t type, int value)
{
  float single = (float)value;
  double wide = value;
  uint64_t bits = (uint64_t)(int64_t)value;
  uint32_t word;
  switch (type) {
  case ncclFloat16:
    return tt_float_to_half(single);
  case ncclBfloat16:
    return tt_float_to_bfloat(single);
  case ncclFloat8e4m3:
    return tt_float_to_e4m3(single);
  case ncclFloat8e5m2:
    return tt_float_to_e5m2(single);
  case ncclFloat32:
    memcpy(&word, &single, sizeof(word));
    return word;
  case ncclFloat64:
    memcpy(&bits, &wide, sizeof(bits));
    return bits;
  default:
    return bits;
  }
}

/* The factor and the data are written on the stream right before. */
static const char *multiply(struct rank *rank, ncclDataType_t type, ncclRedOp_t op, int factor)
{
  enum { COUNT = 1000 };
  size_t bytes = tt_datatype_bytes(type);
  uint64_t two = encode(type, 2), other = encode(type, factor), seen = 0;
  uint64_t expected = encode(type, 2 * factor * rank->scene->ranks);
  char *data = rank->buffer + 4096;
  cudaStream_t stream = rank->stream;
  for (size_t i = 0; i < COUNT; i += COUNT - 1)
    if (cudaMemcpyAsync(data + i * bytes, &two, bytes, cudaMemcpyHostToDevice, stream) != cudaSuccess) return "writing";
  if (cudaMemcpyAsync(rank->buffer, &other, bytes, cudaMemcpyHostToDevice, stream) != cudaSuccess ||
      ncclAllReduce(data, data, COUNT, type, op, rank->comm, stream) != ncclSuccess ||
      cudaMemcpyAsync(&seen, data + (COUNT - 1) * bytes, bytes, cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
      cudaStreamSynchronize(stream) != cudaSuccess)
    return "an all-reduce";
  return memcmp(&seen, &expected, bytes) == 0 ? NULL : "the result is wrong";
}

/* All types, whatever comes of one, since the other ranks go on. */
static const char *factors(struct rank *rank)
{
  static char text[MOST][96];
  char *first = text[rank->number];
  for (int type = 0; type < ncclNumTypes; type++) {
    ncclRedOp_t op;
    if (ncclRedOpCreatePreMulSum(&op, rank->buffer, (ncclDataType_t)type, ncclScalarDevice, rank->comm) != ncclSuccess)
      return "ncclRedOpCreatePreMulSum";
    for (int factor = 1; factor <= 4; factor *= 2) { /* sums that each type has, of 8 ranks */
      const char *problem = multiply(rank, (ncclDataType_t)type, op, factor);
      if (problem != NULL && first[0] == '\0')
        snprintf(first, sizeof(text[0]), "type %d, factor %d: %s", type, factor, problem);
    }
    ncclRedOpDestroy(op, rank->comm);
  }
  return first[0] != '\0' ? first : NULL;
}

/* The window's memory is freed while it is open. */
static const char *freed_early(struct rank *rank)
{
  void *at[MOST];
  struct tt_user_place place;
  if (ncclMemFree(rank->buffer) != ncclSuccess) return "ncclMemFree";
  if (tt_user_buffers_find(rank->comm->env->users, rank->buffer, 8, &place, at) != ncclInvalidUsage)
    return "memory that was freed is not found out";
  return ncclCommWindowDeregister(rank->comm, rank->window) == ncclSuccess ? NULL : "ncclCommWindowDeregister";
}

/* What the GPU has left while all ranks are at the same place. */
static size_t left(struct rank *rank)
{
  size_t bytes, all;
  barrier(rank);
  if (cudaMemGetInfo(&bytes, &all) != cudaSuccess) bytes = 0;
  barrier(rank);
  return bytes;
}

/* `during`: what was left while the window was open. Connections that came up meanwhile are not counted so. */
static const char *is_free(struct rank *rank, size_t during)
{
  static char text[MOST][96];
  size_t after = left(rank);
  if (after + TOLERANCE >= during + BYTES) return NULL;
  snprintf(text[rank->number], sizeof(text[0]), "%zu bytes are left, and %zu were while it was open", after, during);
  return text[rank->number];
}

/* Memory of cudaMalloc is registered all the same. */
static const char *of_malloc(struct rank *rank)
{
  void *ptr;
  ncclWindow_t window;
  if (cudaMalloc(&ptr, 1 << 20) != cudaSuccess) return "cudaMalloc";
  ncclResult_t result = ncclCommWindowRegister(rank->comm, ptr, 1 << 20, &window, NCCL_WIN_COLL_SYMMETRIC);
  if (result == ncclSuccess) result = ncclCommWindowDeregister(rank->comm, window);
  barrier(rank);
  cudaFree(ptr);
  return result == ncclSuccess ? NULL : "ncclCommWindowRegister";
}

static const char *close_window(struct rank *rank)
{
  if (ncclCommWindowDeregister(rank->comm, rank->window) != ncclSuccess) return "ncclCommWindowDeregister";
  return ncclMemFree(rank->buffer) == ncclSuccess ? NULL : "ncclMemFree";
}

static void *run_rank(void *arg)
{
  struct rank *rank = arg;
  struct scene *scene = rank->scene;
  if (cudaSetDevice(rank->number % scene->gpus) != cudaSuccess ||
      ncclCommInitRank(&rank->comm, scene->ranks, scene->id, rank->number) != ncclSuccess ||
      cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking) != cudaSuccess) {
    printf("FAIL windows: rank %d cannot start: %s\n", rank->number, tt_log_thread_error());
    _exit(1);
  }
  barrier(rank);
  verdict(rank, "mapped by all", open_window(rank));
  verdict(rank, "written by all", write_to_all(rank));
  verdict(rank, "all-reduce", all_reduce(rank));
  verdict(rank, "factors in memory", factors(rank));
  size_t during = left(rank);
  verdict(rank, "closed", close_window(rank));
  verdict(rank, "its memory is freed", is_free(rank, during));
  verdict(rank, "captured", captured(rank));
  verdict(rank, "opened again", open_window(rank));
  during = left(rank);
  verdict(rank, "freed early", freed_early(rank));
  verdict(rank, "that memory is freed", is_free(rank, during));
  verdict(rank, "of cudaMalloc", of_malloc(rank));
  ncclCommDestroy(rank->comm);
  cudaStreamDestroy(rank->stream);
  return NULL;
}

static int run_threads(struct scene *scene)
{
  pthread_t threads[MOST];
  struct rank ranks[MOST];
  if (ncclGetUniqueId(&scene->id) != ncclSuccess) return 1;
  for (int r = 0; r < scene->ranks; r++) {
    ranks[r] = (struct rank){.scene = scene, .number = r};
    if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0) return 1;
  }
  for (int r = 0; r < scene->ranks; r++) pthread_join(threads[r], NULL);
  return scene->failures > 0;
}

/* Runs in a process of its own, since CUDA cannot be used in a child of a process that has used it. */
static pid_t start(struct scene *scene, int number, const int id_pipe[2])
{
  fflush(stdout);
  pid_t pid = fork();
  if (pid != 0) return pid;
  alarm(SECONDS);
  if (number < 0) { /* looks, or runs all as threads */
    int gpus = 0;
    if (scene->ranks > 0) _exit(run_threads(scene));
    _exit(cudaGetDeviceCount(&gpus) == cudaSuccess ? gpus : 0);
  }
  struct rank rank = {.scene = scene, .number = number};
  if (number == 0) {
    if (ncclGetUniqueId(&scene->id) != ncclSuccess) _exit(1);
    for (int r = 1; r < scene->ranks; r++)
      if (write(id_pipe[1], &r, sizeof(r)) != sizeof(r)) _exit(1);
  } else {
    int any;
    if (read(id_pipe[0], &any, sizeof(any)) != sizeof(any)) _exit(1);
  }
  run_rank(&rank);
  _exit(scene->failures > 0);
}

static int finish(pid_t pid)
{
  int status;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) return 1;
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  printf("FAIL windows: a process was ended by signal %d\n", WTERMSIG(status));
  return 1;
}

static bool find_library(int argc, char **argv)
{
  static char library[PATH_MAX + 64];
  static const char beside[] = "/../lib/tutti/libtutti-device-cuda.so";
  ssize_t length = readlink("/proc/self/exe", library, PATH_MAX - 1);
  if (argc > 2 || length < 0) return false;
  memcpy(strrchr(library, '/'), beside, sizeof(beside));
  setenv("TUTTI_DEVICE", argc == 2 ? argv[1] : library, 1);
  return access(getenv("TUTTI_DEVICE"), R_OK) == 0;
}

int main(int argc, char **argv)
{
  struct scene *scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int id_pipe[2], failures = 0;
  pid_t pids[MOST];
  if (scene == MAP_FAILED || pipe(id_pipe) != 0 || !find_library(argc, argv)) {
    fprintf(stderr, "usage: %s [libtutti-device-cuda.so]\n", argv[0]);
    return 1;
  }
  scene->gpus = finish(start(scene, -1, id_pipe));
  if (scene->gpus == 0) {
    printf("SKIP windows: there is no GPU here\n");
    return NO_GPU;
  }
  if (scene->gpus > MOST) scene->gpus = MOST;
  if (scene->gpus == 1) setenv("TUTTI_ALLOW_DUPLICATE_DEVICE", "1", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_ALGO", "Mapped", 0); /* where buffers are mapped, whatever their size */
  scene->ranks = scene->gpus > 1 ? scene->gpus : 2;
  scene->threads = true;
  failures += finish(start(scene, -1, id_pipe));
  scene->threads = false;
  for (int r = 0; r < scene->ranks; r++) pids[r] = start(scene, r, id_pipe);
  for (int r = 0; r < scene->ranks; r++) failures += finish(pids[r]);
  printf("%s\n", failures > 0 ? "windows: some failed" : "windows: all passed");
  return failures > 0;
}
