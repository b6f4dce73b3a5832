/* The GPUs' load for --load: a thread a device that keeps a few matrix products in flight on a stream of its own, by
 * cuBLAS where there is one, which is found when it is asked for, else by a plain kernel. */
#include "load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Square matrices of this size: a product of halves takes about a quarter of a millisecond on an H100, as one of a
 * network's layers does. */
enum { SIZE = 4096, PLAIN_SIZE = 1024, IN_FLIGHT = 4 };

/* Of cuBLAS, whose header need not be there. */
struct blas {
  void *handle;
  int (*create)(void **handle);
  int (*destroy)(void *handle);
  int (*set_stream)(void *handle, cudaStream_t stream);
  int (*product)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int lda,
                 const void *b, int ldb, const void *beta, void *c, int ldc);
};

struct load {
  int device;
  pthread_t thread;
  sem_t begun; /* the first product is made, or nothing will be */
  _Atomic bool stop;
  bool failed;
  char error[256];
  struct blas blas;
  char *memory; /* three matrices */
  cudaStream_t stream;
  cudaEvent_t events[IN_FLIGHT];
  uint64_t products;
  double started, ended;
};

static double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ISO C has no conversion from an object's address to a function's. */
static bool find(void *library, const char *name, void *function)
{
  void *found = dlsym(library, name);
  *(void **)function = found;
  return found != NULL;
}

/* False: there is no cuBLAS that works. It stays loaded, as its memory may be in use until the end. */
static bool open_blas(struct blas *blas, cudaStream_t stream)
{
  static const char *const files[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
  void *library = NULL;
  for (int i = 0; !library && i < 3; i++) library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
  if (!library || !find(library, "cublasCreate_v2", &blas->create) ||
      !find(library, "cublasDestroy_v2", &blas->destroy) || !find(library, "cublasSetStream_v2", &blas->set_stream) ||
      !find(library, "cublasHgemm", &blas->product))
    return false;
  if (blas->create(&blas->handle)) blas->handle = NULL;
  return blas->handle && !blas->set_stream(blas->handle, stream);
}

static bool multiply(struct load *load)
{
  static const uint16_t one = 0x3c00, zero = 0; /* halves */
  size_t bytes = (size_t)SIZE * SIZE * 2;
  const char *a = load->memory, *b = a + bytes;
  char *c = load->memory + 2 * bytes;
  if (!load->blas.handle)
    return perf_cuda_good(perf_cuda_product((const float *)a, (const float *)b, (float *)c, PLAIN_SIZE, load->stream),
                          "--load's kernel");
  int status = load->blas.product(load->blas.handle, 0, 0, SIZE, SIZE, SIZE, &one, a, SIZE, b, SIZE, &zero, c, SIZE);
  if (!status) return true;
  char sentence[64];
  snprintf(sentence, sizeof(sentence), "cublasHgemm: status %d", status);
  perf_cuda_say(sentence);
  return false;
}

static bool prepare(struct load *load)
{
  size_t bytes = 3 * (size_t)SIZE * SIZE * 2;
  if (!perf_cuda_good(cudaSetDevice(load->device), "cudaSetDevice") ||
      !perf_cuda_good(cudaStreamCreateWithFlags(&load->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags") ||
      !perf_cuda_good(cudaMalloc((void **)&load->memory, bytes), "cudaMalloc for --load") ||
      /* Halves of 1.06, floats of 0.011: zeros would take less power than work does. */
      !perf_cuda_good(cudaMemsetAsync(load->memory, 0x3c, bytes, load->stream), "cudaMemsetAsync"))
    return false;
  for (int i = 0; i < IN_FLIGHT; i++)
    if (!perf_cuda_good(cudaEventCreateWithFlags(&load->events[i], cudaEventBlockingSync | cudaEventDisableTiming),
                        "cudaEventCreateWithFlags"))
      return false;
  if (!open_blas(&load->blas, load->stream)) load->blas.handle = NULL;
  return true;
}

/* Number `i`: its event is awaited before the same event is used again. */
static bool step(struct load *load, uint64_t i)
{
  cudaEvent_t event = load->events[i % IN_FLIGHT];
  if (i >= IN_FLIGHT && !perf_cuda_good(cudaEventSynchronize(event), "cudaEventSynchronize")) return false;
  return multiply(load) && perf_cuda_good(cudaEventRecord(event, load->stream), "cudaEventRecord");
}

static void clean_up(struct load *load)
{
  if (load->stream) (void)perf_cuda_good(cudaStreamSynchronize(load->stream), "waiting for --load");
  if (load->blas.handle) (void)load->blas.destroy(load->blas.handle);
  for (int i = 0; i < IN_FLIGHT; i++)
    if (load->events[i]) (void)cudaEventDestroy(load->events[i]);
  if (load->stream) (void)cudaStreamDestroy(load->stream);
  if (load->memory) (void)cudaFree(load->memory);
}

static void *run(void *arg)
{
  struct load *load = arg;
  bool good = prepare(load) && step(load, 0) &&
              perf_cuda_good(cudaStreamSynchronize(load->stream), "the first product of --load");
  load->started = now();
  sem_post(&load->begun);
  for (load->products = 1; good && !atomic_load(&load->stop); load->products++) good = step(load, load->products);
  load->failed = !good;
  if (!good) snprintf(load->error, sizeof(load->error), "%s", perf_cuda_said());
  if (good) (void)cudaStreamSynchronize(load->stream);
  load->ended = now();
  return NULL;
}

void *perf_cuda_load_start(int device)
{
  struct load *load = calloc(1, sizeof(*load));
  if (!load) {
    perf_cuda_say("out of memory");
    return NULL;
  }
  load->device = device;
  sem_init(&load->begun, 0, 0);
  if (pthread_create(&load->thread, NULL, run, load)) {
    perf_cuda_say("no thread could be started");
    sem_destroy(&load->begun);
    free(load);
    return NULL;
  }
  while (sem_wait(&load->begun)) {
  }
  return load;
}

bool perf_cuda_load_stop(void *arg, struct perf_load_result *result)
{
  struct load *load = arg;
  atomic_store(&load->stop, true);
  pthread_join(load->thread, NULL);
  bool good = !load->failed;
  snprintf(result->kind, sizeof(result->kind), "%s", load->blas.handle ? "cublasHgemm" : "a plain product of floats");
  result->size = load->blas.handle ? SIZE : PLAIN_SIZE;
  result->products = load->products;
  result->seconds = load->ended - load->started;
  clean_up(load);
  if (!good) perf_cuda_say(load->error);
  sem_destroy(&load->begun);
  free(load);
  return good;
}
