/* Ranks of one process: memory of one GPU, used by another one. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include "memory.h"

enum order { IMPORTER_FIRST, OWNER_FIRST, NORDERS };

/* Returns what went wrong, or NULL. */
static const char *share(struct bench *bench, int owner, int importer, enum order order)
{
  const struct tt_device *device = bench->device;
  struct tt_device_context *mine = bench->gpus[owner].context, *theirs = bench->gpus[importer].second;
  struct tt_device_memory memory, import;
  struct tt_device_export export;
  const char *problem = NULL;
  if (device->alloc(mine, TEST_BYTES, &memory) != ncclSuccess) return "alloc";
  if (memory.bytes < TEST_BYTES) problem = "alloc gave less than was asked for";
  if (!bench_holds(bench, owner, memory.ptr, memory.bytes, 0)) problem = "the memory is not zeroed";
  if (device->export_memory(mine, &memory, 1, &export) != ncclSuccess || export.kind != TT_EXPORT_LOCAL ||
      export.bytes != memory.bytes || export.fd != -1) {
    device->release(mine, &memory);
    return "export";
  }
  if (device->import_memory(theirs, &export, &import) != ncclSuccess) {
    device->release(mine, &memory);
    return "import";
  }
  if (import.bytes != memory.bytes) problem = "the import has another size";
  if (!bench_fill(bench, importer, import.ptr, import.bytes, 11) ||
      !bench_holds(bench, owner, memory.ptr, memory.bytes, 11))
    problem = "the owner does not see what the importer wrote";
  if (!bench_fill(bench, owner, memory.ptr, memory.bytes, 22) ||
      !bench_holds(bench, importer, import.ptr, import.bytes, 22))
    problem = "the importer does not see what the owner wrote";
  if (order == OWNER_FIRST) {
    device->release(mine, &memory);
    if (bench->vmm && !bench_holds(bench, importer, import.ptr, import.bytes, 22))
      problem = "the import is lost after the owner's release";
  }
  device->release(theirs, &import);
  if (order == IMPORTER_FIRST) {
    if (!bench_holds(bench, owner, memory.ptr, memory.bytes, 22)) problem = "the release of the import destroyed it";
    device->release(mine, &memory);
  }
  if (memory.ptr != NULL || memory.resource != NULL || import.ptr != NULL || import.resource != NULL)
    problem = "release does not clear the struct";
  return problem;
}

/* ---- Callers' state ---- */

typedef int current_context(void **context);

struct thread {
  struct bench *bench;
  const char *problem;
};

/* A thread that never chose a GPU has no context before and after, and no other GPU's either. */
static void *without_gpu(void *argument)
{
  struct thread *thread = argument;
  struct bench *bench = thread->bench;
  struct tt_device_memory memory;
  void *context = NULL;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  current_context *current = driver == NULL ? NULL : (current_context *)dlsym(driver, "cuCtxGetCurrent");
  int last = bench->ngpus - 1;
  if (current == NULL || current(&context) != 0 || context != NULL) {
    thread->problem = "a new thread has a context";
    return NULL;
  }
  if (bench->device->alloc(bench->gpus[last].context, TEST_BYTES, &memory) != ncclSuccess) {
    thread->problem = "alloc";
    return NULL;
  }
  bench->device->release(bench->gpus[last].context, &memory);
  if (current(&context) != 0 || context != NULL) thread->problem = "the thread has a context now";
  return NULL;
}

static const char *keeps_device(struct bench *bench)
{
  struct tt_device_memory memory;
  struct thread thread = {.bench = bench};
  pthread_t id;
  for (int chosen = 0; chosen < bench->ngpus; chosen++)
    for (int used = 0; used < bench->ngpus; used++) {
      int now = -1, seen = -1;
      if (cudaSetDevice(chosen) != cudaSuccess) return "cudaSetDevice";
      if (bench->device->alloc(bench->gpus[used].context, 1, &memory) != ncclSuccess) return "alloc";
      bench->device->release(bench->gpus[used].context, &memory);
      if (cudaGetDevice(&now) != cudaSuccess || now != chosen) return "the thread's GPU is another one now";
      if (bench->device->current(&seen) != ncclSuccess || seen != chosen) return "current() names another GPU";
    }
  if (pthread_create(&id, NULL, without_gpu, &thread) != 0) return "pthread_create";
  pthread_join(id, NULL);
  return thread.problem;
}

/* Whatever is done while a stream is captured is no part of the graph, and does not spoil it. */
static const char *within_capture(struct bench *bench)
{
  cudaStream_t stream = bench->gpus[0].stream;
  struct tt_device_memory memory;
  cudaGraph_t graph = NULL;
  size_t nodes = 99;
  if (cudaSetDevice(0) != cudaSuccess || cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) != cudaSuccess)
    return "cudaStreamBeginCapture";
  ncclResult_t result = bench->device->alloc(bench->gpus[0].context, TEST_BYTES, &memory);
  if (result == ncclSuccess) bench->device->release(bench->gpus[0].context, &memory);
  cudaError_t error = cudaStreamEndCapture(stream, &graph);
  cudaGetLastError();
  if (result != ncclSuccess) return "alloc";
  if (error != cudaSuccess || cudaGraphGetNodes(graph, NULL, &nodes) != cudaSuccess) return "the capture was spoilt";
  cudaGraphDestroy(graph);
  return nodes == 0 ? NULL : "the graph has nodes";
}

static const char *properties_fit(struct bench *bench)
{
  struct tt_device_properties p, other;
  for (int g = 0; g < bench->ngpus; g++) {
    char pci[32];
    p = (struct tt_device_properties){.size = sizeof(p)};
    if (bench->device->properties(g, &p) != ncclSuccess) return "properties";
    if (!p.name[0] || p.capability < 50 || p.processors < 1 || p.memory < 1u << 30) return "implausible properties";
    unsigned domain, bus, slot, function;
    if (sscanf(p.pci, "%4x:%2x:%2x.%1x", &domain, &bus, &slot, &function) != 4) return "no PCI id";
    snprintf(pci, sizeof(pci), "%04x:%02x:%02x.%x", domain, bus, slot, function);
    for (int i = 0; pci[i] || p.pci[i]; i++)
      if (pci[i] != p.pci[i]) return "the PCI id is not written as in /sys";
    for (int h = 0; h < g; h++) {
      other = (struct tt_device_properties){.size = sizeof(other)};
      if (bench->device->properties(h, &other) != ncclSuccess) return "properties";
      bool same = true;
      for (size_t i = 0; i < sizeof(p.id); i++) same &= p.id[i] == other.id[i];
      if (same) return "two GPUs have the same id";
    }
  }
  return NULL;
}

int test_one_process(struct bench *bench)
{
  int failures = report(properties_fit(bench), "properties of %d GPUs", bench->ngpus);
  for (int owner = 0; owner < bench->ngpus; owner++)
    for (int importer = 0; importer < bench->ngpus; importer++) {
      int can = 0;
      if (bench->device->can_map(importer, owner, &can) != ncclSuccess || !can) {
        printf("SKIP one process, %s: GPU %d cannot reach GPU %d\n", bench->kind, importer, owner);
        continue;
      }
      for (enum order order = 0; order < NORDERS; order++)
        failures +=
            report(share(bench, owner, importer, order), "one process, %s, GPU %d used by GPU %d, %s", bench->kind,
                   owner, importer, order == OWNER_FIRST ? "owner releases first" : "importer releases first");
    }
  failures += report(keeps_device(bench), "one process, %s, threads keep their GPU", bench->kind);
  failures += report(within_capture(bench), "one process, %s, while a stream is captured", bench->kind);
  return failures;
}
