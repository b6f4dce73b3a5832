/* Loading the backend, and looking at memory with a GPU's eyes. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "memory.h"

static void log_line(int level, const char *text)
{
  if (level <= 2) fprintf(stderr, "backend: %s\n", text);
}

int report(const char *problem, const char *format, ...)
{
  char name[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(name, sizeof(name), format, arguments);
  va_end(arguments);
  if (problem != NULL)
    printf("FAIL %s: %s\n", name, problem);
  else
    printf("PASS %s\n", name);
  fflush(stdout);
  return problem != NULL;
}

static bool is_good(cudaError_t error, const char *what)
{
  if (error != cudaSuccess) fprintf(stderr, "test: %s: %s\n", what, cudaGetErrorString(error));
  return error == cudaSuccess;
}

bool bench_load(struct bench *bench, const char *library, bool vmm)
{
  char why[400] = "";
  memset(bench, 0, sizeof(*bench));
  bench->vmm = vmm;
  bench->kind = vmm ? "cuMem" : "cudaMalloc";
  setenv("NCCL_CUMEM_ENABLE", vmm ? "1" : "0", 1);
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    fprintf(stderr, "test: %s\n", dlerror());
    return false;
  }
  tt_device_entry *entry = (tt_device_entry *)dlsym(handle, TT_DEVICE_SYMBOL);
  bench->device = entry == NULL ? NULL : entry(log_line, why, sizeof(why));
  if (bench->device == NULL) {
    fprintf(stderr, "test: the backend cannot be used: %s\n", entry == NULL ? "no entry" : why);
    return false;
  }
  if (bench->device->count(&bench->ngpus) != ncclSuccess) return false;
  if (bench->ngpus > MOST_GPUS) bench->ngpus = MOST_GPUS;
  return true;
}

static bool open_context(struct bench *bench, int gpu, int rank, struct tt_device_context **context)
{
  struct tt_device_config config = {.size = sizeof(config), .index = gpu, .rank = rank, .nranks = 2 * bench->ngpus};
  return bench->device->open(&config, context) == ncclSuccess;
}

bool bench_open(struct bench *bench)
{
  for (int g = 0; g < bench->ngpus; g++) {
    if (!is_good(cudaSetDevice(g), "cudaSetDevice") ||
        !is_good(cudaStreamCreateWithFlags(&bench->gpus[g].stream, cudaStreamNonBlocking), "a stream") ||
        !is_good(cudaMalloc((void **)&bench->gpus[g].wrong, sizeof(*bench->gpus[g].wrong)), "cudaMalloc") ||
        !is_good(kernel_load(), "loading kernels") || !open_context(bench, g, 2 * g, &bench->gpus[g].context) ||
        !open_context(bench, g, 2 * g + 1, &bench->gpus[g].second))
      return false;
  }
  return true;
}

void bench_close(struct bench *bench)
{
  for (int g = 0; g < bench->ngpus; g++) {
    if (bench->gpus[g].context != NULL) bench->device->close(bench->gpus[g].context);
    if (bench->gpus[g].second != NULL) bench->device->close(bench->gpus[g].second);
    bench->gpus[g].context = bench->gpus[g].second = NULL;
    cudaSetDevice(g);
    cudaFree(bench->gpus[g].wrong);
    cudaStreamDestroy(bench->gpus[g].stream);
  }
}

bool bench_fill(const struct bench *bench, int gpu, void *ptr, size_t bytes, uint64_t seed)
{
  cudaStream_t stream = bench->gpus[gpu].stream;
  return is_good(cudaSetDevice(gpu), "cudaSetDevice") &&
         is_good(kernel_fill(ptr, bytes, seed, stream), "a kernel that writes") &&
         is_good(cudaStreamSynchronize(stream), "a kernel that writes");
}

bool bench_holds(const struct bench *bench, int gpu, const void *ptr, size_t bytes, uint64_t seed)
{
  cudaStream_t stream = bench->gpus[gpu].stream;
  unsigned long long *wrong = bench->gpus[gpu].wrong, count = 0;
  bool ran = is_good(cudaSetDevice(gpu), "cudaSetDevice") &&
             is_good(cudaMemsetAsync(wrong, 0, sizeof(*wrong), stream), "cudaMemsetAsync") &&
             is_good(kernel_compare(ptr, bytes, seed, wrong, stream), "a kernel that reads") &&
             is_good(cudaMemcpyAsync(&count, wrong, sizeof(count), cudaMemcpyDeviceToHost, stream), "a copy") &&
             is_good(cudaStreamSynchronize(stream), "a kernel that reads");
  if (ran && count > 0)
    fprintf(stderr, "test: %llu of %zu words differ on GPU %d\n", count, bytes / sizeof(uint64_t), gpu);
  return ran && count == 0;
}
