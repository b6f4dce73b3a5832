/* Users' memory: what the driver says of each kind of it, and that it is exported, kept and freed as it should. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cuda.h>
#include "memory.h"

#define GRANULE ((size_t)2 << 20)
#define LARGE ((size_t)512 << 20)
/* Less than LARGE, whatever else the process allocates meanwhile. */
#define TOLERANCE ((size_t)64 << 20)
#define LOCAL (1u << TT_EXPORT_LOCAL)
#define FD (1u << TT_EXPORT_FD)

/* The driver's own functions: the test links its runtime only. */
static struct {
  __typeof__(&cuMemCreate) cuMemCreate;
  __typeof__(&cuMemRelease) cuMemRelease;
  __typeof__(&cuMemAddressReserve) cuMemAddressReserve;
  __typeof__(&cuMemAddressFree) cuMemAddressFree;
  __typeof__(&cuMemMap) cuMemMap;
  __typeof__(&cuMemUnmap) cuMemUnmap;
  __typeof__(&cuMemSetAccess) cuMemSetAccess;
} driver;

static bool find_driver(void)
{
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return false;
#define FIND(name)                                                                                                     \
  if ((driver.name = (__typeof__(driver.name))dlsym(library, #name)) == NULL) return false
  FIND(cuMemCreate);
  FIND(cuMemRelease);
  FIND(cuMemAddressReserve);
  FIND(cuMemAddressFree);
  FIND(cuMemMap);
  FIND(cuMemUnmap);
  FIND(cuMemSetAccess);
#undef FIND
  return true;
}

static char text[256];

/* What is wrong with what the backend finds around a pointer, or NULL. */
static const char *compare(struct bench *bench, int gpu, const void *ptr, const void *base, size_t bytes,
                           uint32_t exports, struct tt_device_buffer *found)
{
  *found = (struct tt_device_buffer){.size = sizeof(*found)};
  if (bench->device->find_buffer(bench->gpus[gpu].context, ptr, found) != ncclSuccess) return "find_buffer";
  bool same = found->base == base && found->bytes == bytes && found->exports == exports;
  if (same && found->id != 0) return NULL;
  snprintf(text, sizeof(text), "%p, %zu bytes, exports %x were expected, and %p, %zu, %x are found (id %llx)", base,
           bytes, exports, found->base, found->bytes, found->exports, (unsigned long long)found->id);
  return text;
}

/* ---- ncclMemAlloc's ---- */

/* A peer writes through an import of it, and still sees it when it was freed. */
static const char *share(struct bench *bench, int gpu, int peer, void *ptr, int local)
{
  const struct tt_device *device = bench->device;
  struct tt_device_export export;
  struct tt_device_memory import;
  const char *problem = NULL;
  if (device->export_buffer(bench->gpus[gpu].context, (char *)ptr + 8, local, &export) != ncclSuccess) return "export";
  ncclResult_t result = device->import_memory(bench->gpus[peer].second, &export, &import);
  if (export.fd >= 0) close(export.fd);
  if (result != ncclSuccess) return "import";
  if (!bench_fill(bench, peer, import.ptr, TEST_BYTES, 5)) problem = "writing as a peer";
  if (problem == NULL && !bench_holds(bench, gpu, ptr, TEST_BYTES, 5)) problem = "what a peer wrote is not there";
  if (problem == NULL && !bench_fill(bench, gpu, ptr, TEST_BYTES, 0)) problem = "writing";
  if (problem == NULL && !bench_holds(bench, peer, import.ptr, TEST_BYTES, 0)) problem = "a peer does not see it";
  device->release(bench->gpus[peer].second, &import);
  return problem;
}

static const char *allocated(struct bench *bench, int gpu, int peer)
{
  const struct tt_device *device = bench->device;
  struct tt_device_buffer first, second;
  void *ptr;
  size_t bytes = bench->vmm ? (TEST_BYTES + GRANULE - 1) / GRANULE * GRANULE : TEST_BYTES;
  if (device->user_alloc(gpu, TEST_BYTES, &ptr) != ncclSuccess) return "user_alloc";
  const char *problem = bench_holds(bench, gpu, ptr, TEST_BYTES, 0) ? NULL : "it is not zeroed";
  if (problem == NULL)
    problem = compare(bench, gpu, (char *)ptr + TEST_BYTES - 1, ptr, bytes, bench->vmm ? LOCAL | FD : LOCAL, &first);
  if (problem == NULL && first.device != gpu) problem = "it lies on another GPU";
  for (int local = bench->vmm ? 0 : 1; local < 2 && problem == NULL; local++)
    problem = share(bench, gpu, peer, ptr, local);
  if (device->user_free(ptr) != ncclSuccess && problem == NULL) problem = "user_free";
  if (problem != NULL) return problem;
  if (device->user_alloc(gpu, TEST_BYTES, &ptr) != ncclSuccess) return "user_alloc";
  problem = compare(bench, gpu, ptr, ptr, bytes, first.exports, &second);
  if (problem == NULL && second.id == first.id) problem = "two allocations have one id";
  device->user_free(ptr);
  return problem;
}

static bool room(int gpu, size_t *left)
{
  size_t all;
  return cudaSetDevice(gpu) == cudaSuccess && cudaMemGetInfo(left, &all) == cudaSuccess;
}

/* Freed memory is there again, at once or when the last import is gone. */
static const char *freed(struct bench *bench, int gpu)
{
  const struct tt_device *device = bench->device;
  struct tt_device_export export;
  struct tt_device_memory import = {0};
  size_t before, with, after;
  void *ptr;
  if (!room(gpu, &before)) return "cudaMemGetInfo";
  if (device->user_alloc(gpu, LARGE, &ptr) != ncclSuccess) return "user_alloc";
  if (device->export_buffer(bench->gpus[gpu].context, ptr, 1, &export) != ncclSuccess ||
      device->import_memory(bench->gpus[gpu].second, &export, &import) != ncclSuccess) {
    device->user_free(ptr);
    return "export or import";
  }
  const char *problem = device->user_free(ptr) != ncclSuccess ? "user_free" : NULL;
  if (problem == NULL && bench->vmm && !bench_holds(bench, gpu, import.ptr, GRANULE, 0))
    problem = "an import does not keep the memory";
  if (!room(gpu, &with)) problem = "cudaMemGetInfo";
  device->release(bench->gpus[gpu].second, &import);
  if (problem != NULL) return problem;
  if (!room(gpu, &after)) return "cudaMemGetInfo";
  if (bench->vmm && with + LARGE - TOLERANCE > before) return "it was freed while a peer had it mapped";
  return after + TOLERANCE < before ? "it was not freed" : NULL;
}

/* ---- What users allocate by themselves ---- */

static bool map_one(int gpu, CUdeviceptr at)
{
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu}};
  CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  if (driver.cuMemCreate(&handle, GRANULE, &properties, 0) != CUDA_SUCCESS) return false;
  bool mapped = driver.cuMemMap(at, GRANULE, 0, handle, 0) == CUDA_SUCCESS;
  driver.cuMemRelease(handle);
  return mapped && driver.cuMemSetAccess(at, GRANULE, &access, 1) == CUDA_SUCCESS;
}

/* Handles side by side in one range, as PyTorch's expandable segments; then another one where one of them was. */
static const char *segments(struct bench *bench, int gpu)
{
  enum { PARTS = 3 };
  struct tt_device_buffer found[PARTS + 1];
  CUdeviceptr at;
  const char *problem = NULL;
  if (cudaSetDevice(gpu) != cudaSuccess || !find_driver()) return "the driver's functions";
  if (driver.cuMemAddressReserve(&at, (PARTS + 1) * GRANULE, GRANULE, 0, 0) != CUDA_SUCCESS) return "no addresses";
  for (int i = 0; i < PARTS; i++)
    if (!map_one(gpu, at + (CUdeviceptr)i * GRANULE)) return "mapping";
  for (int i = 0; i < PARTS && problem == NULL; i++) {
    void *base = (void *)(at + (CUdeviceptr)i * GRANULE);
    problem = compare(bench, gpu, (char *)base + 77, base, GRANULE, LOCAL | FD, &found[i]);
    for (int k = 0; k < i && problem == NULL; k++)
      if (found[k].id == found[i].id) problem = "neighbours have one id";
  }
  driver.cuMemUnmap(at + GRANULE, GRANULE);
  if (problem == NULL && !map_one(gpu, at + GRANULE)) problem = "mapping again";
  void *again = (void *)(at + GRANULE);
  if (problem == NULL) problem = compare(bench, gpu, again, again, GRANULE, LOCAL | FD, &found[PARTS]);
  for (int k = 0; k < PARTS && problem == NULL; k++)
    if (found[k].id == found[PARTS].id) problem = "the memory that came second has an id that was used before";
  for (int i = 0; i < PARTS; i++) driver.cuMemUnmap(at + (CUdeviceptr)i * GRANULE, GRANULE);
  driver.cuMemAddressFree(at, (PARTS + 1) * GRANULE);
  return problem;
}

/* Two small ones, which lie in one block of the driver's, and the second once more at its address. */
static const char *of_malloc(struct bench *bench, int gpu)
{
  struct tt_device_buffer a, b, again;
  void *one, *two;
  const char *problem = NULL;
  if (cudaSetDevice(gpu) != cudaSuccess || cudaMalloc(&one, 5120) != cudaSuccess ||
      cudaMalloc(&two, 5120) != cudaSuccess)
    return "cudaMalloc";
  problem = compare(bench, gpu, (char *)one + 5000, one, 5120, LOCAL, &a);
  if (problem == NULL) problem = compare(bench, gpu, two, two, 5120, LOCAL, &b);
  if (problem == NULL && a.id == b.id) problem = "two allocations have one id";
  cudaFree(two);
  if (cudaMalloc(&two, 5120) != cudaSuccess) problem = "cudaMalloc";
  if (problem == NULL) problem = compare(bench, gpu, two, two, 5120, LOCAL, &again);
  if (problem == NULL && (again.id == a.id || again.id == b.id)) problem = "an id was used again";
  cudaFree(one);
  cudaFree(two);
  return problem;
}

static const char *expect_no_exports(struct bench *bench, int gpu, void *ptr, int device)
{
  struct tt_device_buffer found = {.size = sizeof(found)};
  struct tt_device_export export;
  if (bench->device->find_buffer(bench->gpus[gpu].context, (char *)ptr + 100, &found) != ncclSuccess)
    return "find_buffer";
  snprintf(text, sizeof(text), "device %d, exports %x", found.device, found.exports);
  if (found.exports != 0 || found.device != device) return text;
  for (int local = 0; local < 2; local++)
    if (bench->device->export_buffer(bench->gpus[gpu].context, ptr, local, &export) == ncclSuccess)
      return "it was exported";
  return NULL;
}

static const char *of_others(struct bench *bench, int gpu)
{
  void *pool, *managed, *host;
  cudaStream_t stream = bench->gpus[gpu].stream;
  if (cudaSetDevice(gpu) != cudaSuccess || cudaMallocAsync(&pool, 1 << 20, stream) != cudaSuccess ||
      cudaStreamSynchronize(stream) != cudaSuccess)
    return "cudaMallocAsync";
  const char *problem = expect_no_exports(bench, gpu, pool, gpu);
  cudaFreeAsync(pool, stream);
  cudaStreamSynchronize(stream);
  if (problem != NULL) return problem;
  if (cudaMallocManaged(&managed, 1 << 20, cudaMemAttachGlobal) != cudaSuccess) return "cudaMallocManaged";
  problem = expect_no_exports(bench, gpu, managed, gpu);
  cudaFree(managed);
  if (problem != NULL) return problem;
  if (cudaHostAlloc(&host, 1 << 20, cudaHostAllocDefault) != cudaSuccess) return "cudaHostAlloc";
  problem = expect_no_exports(bench, gpu, host, -1);
  cudaFreeHost(host);
  return problem;
}

int test_users(struct bench *bench)
{
  int failures = 0;
  if (!(bench->device->features & TT_DEVICE_USER_MEMORY)) return report("the backend has none", "users' memory");
  for (int gpu = 0; gpu < bench->ngpus; gpu++) {
    int peer = (gpu + 1) % bench->ngpus, can = 0;
    if (bench->device->can_map(peer, gpu, &can) != ncclSuccess || !can) peer = gpu;
    failures += report(allocated(bench, gpu, peer), "%s, a user's memory on GPU %d, shared with GPU %d", bench->kind,
                       gpu, peer);
    failures += report(freed(bench, gpu), "%s, a user's memory on GPU %d is freed", bench->kind, gpu);
    if (!bench->vmm) continue; /* the rest is the same in both runs */
    failures += report(segments(bench, gpu), "several handles in one range of addresses on GPU %d", gpu);
    failures += report(of_malloc(bench, gpu), "memory of cudaMalloc on GPU %d is recognised", gpu);
    failures += report(of_others(bench, gpu), "pools, managed and page-locked memory are recognised, GPU %d", gpu);
  }
  return failures;
}
