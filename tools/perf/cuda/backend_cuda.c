/* The GPUs' backend of tutti-perf: backend.h with CUDA's runtime. Copies go on streams of their own, so that they wait
 * for no operation; nothing here waits for a whole device, except allocating and releasing memory. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include "backend.h"
#include "load.h"

static _Thread_local char error_text[256];

bool perf_cuda_good(cudaError_t status, const char *doing)
{
  if (status == cudaSuccess) return true;
  snprintf(error_text, sizeof(error_text), "%s: %s (%s)", doing, cudaGetErrorString(status), cudaGetErrorName(status));
  (void)cudaGetLastError();
  return false;
}

void perf_cuda_say(const char *sentence)
{
  snprintf(error_text, sizeof(error_text), "%s", sentence);
}

const char *perf_cuda_said(void)
{
  return error_text;
}

static int count_devices(void)
{
  int count = 0;
  return perf_cuda_good(cudaGetDeviceCount(&count), "cudaGetDeviceCount") ? count : 0;
}

static bool describe(int device, char *name, size_t name_size, char *pci, size_t pci_size)
{
  struct cudaDeviceProp properties;
  char id[32];
  if (!perf_cuda_good(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties") ||
      !perf_cuda_good(cudaDeviceGetPCIBusId(id, sizeof(id), device), "cudaDeviceGetPCIBusId"))
    return false;
  snprintf(name, name_size, "%s", properties.name);
  snprintf(pci, pci_size, "%s", id);
  return true;
}

static bool choose(int device)
{
  return perf_cuda_good(cudaSetDevice(device), "cudaSetDevice");
}

static bool finish_copies(const char *doing)
{
  return perf_cuda_good(cudaStreamSynchronize(cudaStreamPerThread), doing);
}

static bool zero(void *memory, size_t bytes)
{
  return perf_cuda_good(cudaMemsetAsync(memory, 0, bytes, cudaStreamPerThread), "cudaMemsetAsync") &&
         finish_copies("cudaMemsetAsync");
}

static void *allocate(size_t bytes)
{
  void *memory = NULL;
  if (!perf_cuda_good(cudaMalloc(&memory, bytes), "cudaMalloc")) return NULL;
  if (zero(memory, bytes)) return memory;
  (void)cudaFree(memory);
  return NULL;
}

static void release(void *memory, size_t bytes)
{
  (void)bytes;
  (void)perf_cuda_good(cudaFree(memory), "cudaFree");
}

static bool copy_in(void *device, const void *host, size_t bytes)
{
  return perf_cuda_good(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cudaStreamPerThread),
                        "copying to a GPU") &&
         finish_copies("copying to a GPU");
}

static bool copy_out(void *host, const void *device, size_t bytes)
{
  return perf_cuda_good(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread),
                        "copying from a GPU") &&
         finish_copies("copying from a GPU");
}

static bool stream_make(cudaStream_t *stream)
{
  return perf_cuda_good(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

static void stream_drop(cudaStream_t stream)
{
  (void)perf_cuda_good(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

static enum perf_stream_state stream_state(cudaStream_t stream)
{
  cudaError_t status = cudaStreamQuery(stream);
  if (status == cudaErrorNotReady) return PERF_STREAM_BUSY;
  return perf_cuda_good(status, "cudaStreamQuery") ? PERF_STREAM_DONE : PERF_STREAM_FAILED;
}

/* Of this thread only: other threads may meanwhile make calls that a capture would forbid. */
static bool capture_begin(cudaStream_t stream)
{
  return perf_cuda_good(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

static void *capture_end(cudaStream_t stream)
{
  cudaGraph_t graph = NULL;
  cudaGraphExec_t executable = NULL;
  if (!perf_cuda_good(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture")) return NULL;
  bool made = perf_cuda_good(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  (void)perf_cuda_good(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return made ? executable : NULL;
}

static bool graph_launch(void *graph, cudaStream_t stream)
{
  return perf_cuda_good(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
}

static void graph_drop(void *graph)
{
  (void)perf_cuda_good(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
}

static const struct perf_backend backend = {
    .size = sizeof(struct perf_backend),
    .name = "cuda",
    .streams = true,
    .fp8 = true,
    .count = count_devices,
    .describe = describe,
    .choose = choose,
    .allocate = allocate,
    .release = release,
    .zero = zero,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .stream_make = stream_make,
    .stream_drop = stream_drop,
    .stream_state = stream_state,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_drop = graph_drop,
    .load_start = perf_cuda_load_start,
    .load_stop = perf_cuda_load_stop,
    .error = perf_cuda_said,
};

extern __attribute__((visibility("default"))) const struct perf_backend *tutti_perf_backend(char *why, size_t size);

const struct perf_backend *tutti_perf_backend(char *why, size_t size)
{
  if (count_devices() > 0) return &backend;
  snprintf(why, size, "no GPU can be used: %s", error_text[0] ? error_text : "there is none");
  return NULL;
}
