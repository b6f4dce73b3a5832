/* What CUDA and the wires alone take of a small message, so that times of libraries have something to be held against:
 *
 *     nvcc -O3 -arch=native bench/gpu/floor.cu -o floor && ./floor [RANKS]
 *
 * Eager: microseconds of a thread for each GPU at once (2, or RANKS), for each of the calls that a library makes to
 * enqueue one kernel. Graph, with two GPUs: a kernel that exchanges 8 bytes with the other GPU and does nothing else,
 * as LL does: a line of 16 bytes each way, with a flag in each half. Medians of 9. Exit status 77: too few GPUs. */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <thread>
#include <time.h>
#include <vector>

enum { MOST_GPUS = 16, CALLS = 2000, REPEATS = 9, NODES = 20, LAUNCHES = 40, SLOTS = 8, SLOT_BYTES = 1024 };

static void check(cudaError_t error, const char *doing)
{
  if (error == cudaSuccess) return;
  fprintf(stderr, "floor: %s: %s\n", doing, cudaGetErrorString(error));
  exit(EXIT_FAILURE);
}
#define TRY(call) check(call, #call)

static double now_us()
{
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static double median(std::vector<double> values)
{
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/* ---- Eager ---- */

static __global__ void nothing()
{
}
struct parameters {
  char bytes[8000];
};
static __global__ void nothing_much(const __grid_constant__ parameters p)
{
  if (p.bytes[0] != 0) __trap();
}

enum step { LAUNCH, PARAMETERS, EVENT, CAPTURED, STEPS };
static const char *const names[STEPS] = {"an empty kernel", "with parameters of 8000 bytes", "and an event behind it",
                                         "and whether the stream is captured"};

static void enqueue(int steps, cudaStream_t stream, cudaEvent_t event)
{
  static const parameters p = {};
  cudaStreamCaptureStatus status;
  if (steps >= CAPTURED) TRY(cudaStreamIsCapturing(stream, &status));
  if (steps == LAUNCH)
    nothing<<<1, 32, 0, stream>>>();
  else
    nothing_much<<<1, 160, 0, stream>>>(p);
  if (steps >= EVENT) TRY(cudaEventRecord(event, stream));
}

static void run_eager(int gpu, int steps, double *us)
{
  cudaStream_t stream;
  cudaEvent_t event;
  TRY(cudaSetDevice(gpu));
  TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  std::vector<double> times;
  for (int r = 0; r < REPEATS; r++) {
    double begin = now_us();
    for (int i = 0; i < CALLS; i++) enqueue(steps, stream, event);
    TRY(cudaStreamSynchronize(stream));
    times.push_back((now_us() - begin) / CALLS);
  }
  TRY(cudaGetLastError());
  *us = median(times);
}

static void eager(int gpus)
{
  for (int steps = 0; steps < STEPS; steps++) {
    std::vector<std::thread> threads;
    double us[MOST_GPUS];
    for (int g = 0; g < gpus; g++) threads.emplace_back(run_eager, g, steps, &us[g]);
    for (std::thread &thread : threads) thread.join();
    printf("eager, %d threads: %-36s %6.2f us\n", gpus, names[steps], *std::max_element(us, us + gpus));
  }
}

/* ---- Graph ---- */

struct ends {
  char *mine, *theirs; /* slots of this GPU, and of the other one */
  uint64_t *step;
  const uint64_t *input;
  uint64_t *output;
};

static __device__ void store_line(char *to, uint64_t data, uint32_t flag)
{
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%2};" ::"l"(to), "r"((uint32_t)data), "r"(flag),
               "r"((uint32_t)(data >> 32))
               : "memory");
}

static __device__ uint64_t wait_line(const char *from, uint32_t flag)
{
  uint4 v;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
  } while (v.y != flag || v.w != flag);
  return v.x | (uint64_t)v.z << 32;
}

static __global__ void exchange(const ends e)
{
  uint64_t step = *(volatile uint64_t *)e.step;
  if (threadIdx.x == 0) {
    size_t at = step % SLOTS * SLOT_BYTES;
    store_line(e.theirs + at, *e.input, (uint32_t)step + 1);
    *e.output = *e.input + wait_line(e.mine + at, (uint32_t)step + 1);
    *e.step = step + 1;
  }
}

static cudaGraphExec_t make_graph(int gpu, bool exchanges, const ends &e, cudaStream_t *stream)
{
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  TRY(cudaSetDevice(gpu));
  TRY(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  TRY(cudaStreamBeginCapture(*stream, cudaStreamCaptureModeThreadLocal));
  for (int n = 0; n < NODES; n++) {
    if (exchanges)
      exchange<<<1, 32, 0, *stream>>>(e);
    else
      nothing<<<1, 32, 0, *stream>>>();
  }
  TRY(cudaStreamEndCapture(*stream, &graph));
  TRY(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

static void graph(bool exchanges)
{
  enum { INPUT = SLOTS * SLOT_BYTES, OUTPUT = INPUT + 1024, STEP = OUTPUT + 1024, BYTES = STEP + 1024 };
  char *memory[2];
  cudaGraphExec_t exec[2];
  cudaStream_t streams[2];
  for (int g = 0; g < 2; g++) {
    TRY(cudaSetDevice(g));
    TRY(cudaMalloc((void **)&memory[g], BYTES));
    TRY(cudaMemset(memory[g], 0, BYTES));
    TRY(cudaDeviceSynchronize());
  }
  for (int g = 0; g < 2; g++) {
    char *own = memory[g];
    ends e = {own, memory[1 - g], (uint64_t *)(own + STEP), (uint64_t *)(own + INPUT), (uint64_t *)(own + OUTPUT)};
    exec[g] = make_graph(g, exchanges, e, &streams[g]);
  }
  std::vector<double> times;
  for (int r = 0; r < REPEATS; r++) {
    double begin = now_us();
    for (int i = 0; i < LAUNCHES * 2; i++) TRY(cudaGraphLaunch(exec[i % 2], streams[i % 2]));
    for (cudaStream_t stream : streams) TRY(cudaStreamSynchronize(stream));
    times.push_back((now_us() - begin) / (LAUNCHES * NODES));
  }
  printf("graph, 2 GPUs:     %-36s %6.2f us\n", exchanges ? "8 bytes each way" : names[LAUNCH], median(times));
}

int main(int argc, char **argv)
{
  int gpus = argc > 1 ? atoi(argv[1]) : 2, count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    fprintf(stderr, "floor: CUDA finds no GPU here\n");
    return 77;
  }
  if (gpus < 1 || gpus > count || gpus > MOST_GPUS) {
    fprintf(stderr, "floor: %d GPUs are asked for, and there are %d; give a number from 1 to %d\n", gpus, count,
            std::min(count, (int)MOST_GPUS));
    return 77;
  }
  eager(gpus);
  if (count < 2) return EXIT_SUCCESS;
  int can[2];
  for (int g = 0; g < 2; g++) {
    TRY(cudaDeviceCanAccessPeer(&can[g], g, 1 - g));
    if (!can[g]) return EXIT_SUCCESS;
    TRY(cudaSetDevice(g));
    TRY(cudaDeviceEnablePeerAccess(1 - g, 0));
  }
  graph(false);
  graph(true);
  return EXIT_SUCCESS;
}
