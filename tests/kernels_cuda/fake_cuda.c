/* CUDA without a GPU, see fake_cuda.h: the runtime. fake_driver.c is the driver. */
#include "fake_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "fake_hints.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/describe.h"

struct fake_cuda fake;
char fake_primaries[4];
_Thread_local void *fake_current;
_Thread_local int fake_mode = cudaStreamCaptureModeGlobal;

bool fake_fails(void)
{
  return fake.fail_at > 0 && --fake.fail_at == 0;
}

/* ---- Runtime: threads and devices ---- */

cudaError_t cudaGetLastError(void)
{
  return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
  return error == cudaErrorUnknown ? "made to fail" : "another error";
}

const char *cudaGetErrorName(cudaError_t error)
{
  return error == cudaErrorUnknown ? "cudaErrorUnknown" : "another";
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
  int old = fake_mode;
  fake_mode = *mode;
  *mode = old;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
  MAY_FAIL;
  if (device < 0 || device >= DEVICES) return cudaErrorInvalidDevice;
  fake_current = &fake_primaries[device];
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
  (void)device;
  MAY_FAIL;
  if (attribute != cudaDevAttrMultiProcessorCount) return fake_capability(value, attribute);
  *value = 132;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
  MAY_FAIL;
  *count = DEVICES;
  return cudaSuccess;
}

/* Device 2 is far from the others. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
  MAY_FAIL;
  *can = device != peer && device != 2 && peer != 2;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
  (void)flags;
  RELAXED_ONLY;
  MAY_FAIL;
  if (fake_current == &fake_primaries[peer]) return cudaErrorInvalidDevice;
  return fake.peers++ == 0 ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}

/* ---- Runtime: memory ---- */

/* As pages, so that alignments hold. */
static void *take(size_t bytes)
{
  void *ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(ptr, 0xa5, bytes); /* nothing is zero by itself */
  return ptr;
}

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned int flags)
{
  MAY_FAIL;
  if (flags != (cudaHostAllocMapped | cudaHostAllocPortable)) return cudaErrorInvalidValue;
  *ptr = take(bytes);
  fake.host_blocks++;
  return cudaSuccess;
}

/* As CUDA has it: no range twice, nor parts of one. Devices see the same memory, at an address of their own. */
static struct {
  char *ptr, *on_devices;
  size_t bytes;
} registered[8];

cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned int flags)
{
  size_t n = sizeof(registered) / sizeof(registered[0]), free_one = n;
  char *at = ptr;
  RELAXED_ONLY;
  MAY_FAIL;
  if (flags != (cudaHostRegisterMapped | cudaHostRegisterPortable)) return cudaErrorInvalidValue;
  for (size_t i = 0; i < n; i++) {
    if (registered[i].ptr == NULL)
      free_one = i;
    else if (at < registered[i].ptr + registered[i].bytes && registered[i].ptr < at + bytes)
      return cudaErrorHostMemoryAlreadyRegistered;
  }
  if (free_one == n) abort();
  void *on_devices = mremap(ptr, 0, bytes, MREMAP_MAYMOVE);
  if (on_devices == MAP_FAILED) abort();
  registered[free_one].ptr = at;
  registered[free_one].on_devices = on_devices;
  registered[free_one].bytes = bytes;
  fake.registered++;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr)
{
  RELAXED_ONLY;
  for (size_t i = 0; i < sizeof(registered) / sizeof(registered[0]); i++) {
    if (registered[i].ptr != ptr) continue;
    munmap(registered[i].on_devices, registered[i].bytes);
    registered[i].ptr = NULL;
    fake.registered--;
    return cudaSuccess;
  }
  return cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
  (void)ptr;
  attributes->type = fake.host_reset ? cudaMemoryTypeUnregistered : cudaMemoryTypeHost;
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
  (void)flags;
  MAY_FAIL;
  *device = host;
  for (size_t i = 0; i < sizeof(registered) / sizeof(registered[0]); i++) {
    char *ptr = registered[i].ptr;
    if (ptr == NULL || (char *)host < ptr || (char *)host >= ptr + registered[i].bytes) continue;
    *device = registered[i].on_devices + ((char *)host - ptr);
  }
  return cudaSuccess;
}

static struct fake_allocation allocations[16];
static uint64_t last_id;

uint64_t fake_next_id(void)
{
  return ++last_id;
}

int fake_thread_device(void)
{
  return fake_current == NULL ? 0 : (int)((char *)fake_current - fake_primaries);
}

struct fake_allocation *fake_allocation_at(const void *ptr)
{
  for (size_t i = 0; i < sizeof(allocations) / sizeof(allocations[0]); i++) {
    struct fake_allocation *a = &allocations[i];
    if (a->ptr == ptr || (a->ptr != NULL && (const char *)ptr >= a->ptr && (const char *)ptr < a->ptr + a->bytes))
      return a;
  }
  return NULL;
}

static void *new_allocation(size_t bytes, struct fake_allocation like)
{
  struct fake_allocation *a = fake_allocation_at(NULL);
  if (a == NULL) abort();
  *a = like;
  a->ptr = take(bytes);
  a->bytes = bytes;
  a->id = fake_next_id();
  return a->ptr;
}

static void forget_allocation(void *ptr)
{
  struct fake_allocation *a = fake_allocation_at(ptr);
  if (a == NULL || a->ptr != ptr) abort();
  munmap(a->ptr, a->bytes);
  *a = (struct fake_allocation){0};
}

void *fake_other_memory(enum fake_kind kind, size_t bytes)
{
  return new_allocation(bytes,
                        (struct fake_allocation){.type = kind == FAKE_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                                                 .pool = kind == FAKE_POOL,
                                                 .managed = kind == FAKE_MANAGED,
                                                 .device = 1});
}

void fake_other_forget(void *ptr)
{
  forget_allocation(ptr);
}

void *fake_neighbours(size_t bytes_each)
{
  char *ptr = take(2 * bytes_each);
  for (int i = 0; i < 2; i++)
    *fake_allocation_at(NULL) = (struct fake_allocation){.ptr = ptr + (size_t)i * bytes_each,
                                                         .bytes = bytes_each,
                                                         .id = fake_next_id(),
                                                         .type = CU_MEMORYTYPE_DEVICE,
                                                         .device = 1};
  return ptr;
}

void fake_neighbours_end(void *ptr)
{
  forget_allocation((char *)ptr + fake_allocation_at(ptr)->bytes);
  forget_allocation(ptr);
}

cudaError_t cudaMalloc(void **ptr, size_t bytes)
{
  RELAXED_ONLY;
  MAY_FAIL;
  *ptr = new_allocation(bytes, (struct fake_allocation){.type = CU_MEMORYTYPE_DEVICE, .device = fake_thread_device()});
  fake.mallocs++;
  return cudaSuccess;
}

cudaError_t cudaFree(void *ptr)
{
  forget_allocation(ptr);
  fake.mallocs--;
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
  MAY_FAIL;
  memset(handle, 0, sizeof(*handle));
  memcpy(handle, &ptr, sizeof(ptr));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t handle, unsigned int flags)
{
  MAY_FAIL;
  if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
  memcpy(ptr, &handle, sizeof(*ptr));
  fake.opened++;
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *ptr)
{
  (void)ptr;
  fake.opened--;
  return cudaSuccess;
}

/* ---- Runtime: streams ---- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
  MAY_FAIL;
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
  MAY_FAIL;
  if (flags != cudaStreamNonBlocking || priority != -5) return cudaErrorInvalidValue;
  *stream = (cudaStream_t)&fake;
  fake.streams++;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
  (void)stream;
  fake.streams--;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
  (void)stream;
  RELAXED_ONLY;
  MAY_FAIL;
  fake.queries++;
  return fake.stuck ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
  MAY_FAIL;
  if (flags != cudaEventDisableTiming) return cudaErrorInvalidValue;
  *event = (cudaEvent_t)&fake;
  fake.events++;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  (void)event;
  fake.events--;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
  (void)event, (void)stream;
  MAY_FAIL;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
  (void)event;
  RELAXED_ONLY;
  MAY_FAIL;
  return __atomic_load_n(&fake.running, __ATOMIC_ACQUIRE) ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t stream)
{
  (void)stream;
  MAY_FAIL;
  memset(ptr, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
  (void)stream;
  MAY_FAIL;
  if (kind != cudaMemcpyDefault) return cudaErrorInvalidValue;
  memcpy(to, from, bytes);
  return cudaSuccess;
}

/* ---- What describes devices is no part of this ---- */

bool tt_cuda_in_fabric(int index)
{
  (void)index;
  return fake.joined;
}
