/* Memory of GPUs, by the CUDA driver, which is found when it is needed: there may be neither its headers nor itself. A
 * copy is on a stream of its own that waits for nothing, so that kernels which wait for the network do not hold it up.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "direct_memory.h"

/* Numbers and types of the driver's stable ABI. */
enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, TYPE_DEVICE = 2, NON_BLOCKING = 1, RELAXED = 2 };
typedef unsigned long long address;
#define MOST_DEVICES 16

static struct {
  int (*attribute)(void *value, int attribute, address ptr);
  int (*retain)(void **context, int device);
  int (*push)(void *context);
  int (*pop)(void **context);
  int (*range)(int *least, int *greatest);
  int (*make_stream)(void **stream, unsigned flags, int priority);
  int (*wait)(void *stream);
  int (*in)(address to, const void *from, size_t bytes, void *stream);
  int (*out)(void *to, address from, size_t bytes, void *stream);
  int (*mode)(int *mode);
} cuda;

static struct {
  void *context, *stream;
} devices[MOST_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool find(void *library, void *function, const char *name)
{
  void *found = dlsym(library, name);
  memcpy(function, &found, sizeof found);
  if (found == NULL) fprintf(stderr, "direct: the CUDA driver has no %s\n", name);
  return found != NULL;
}

static bool begin(void (*flushed)(void))
{
  (void)flushed;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fprintf(stderr, "direct: %s\n", dlerror());
  return library != NULL && find(library, &cuda.attribute, "cuPointerGetAttribute") &&
         find(library, &cuda.retain, "cuDevicePrimaryCtxRetain") && find(library, &cuda.push, "cuCtxPushCurrent_v2") &&
         find(library, &cuda.pop, "cuCtxPopCurrent_v2") && find(library, &cuda.range, "cuCtxGetStreamPriorityRange") &&
         find(library, &cuda.make_stream, "cuStreamCreateWithPriority") &&
         find(library, &cuda.wait, "cuStreamSynchronize") && find(library, &cuda.in, "cuMemcpyHtoDAsync_v2") &&
         find(library, &cuda.out, "cuMemcpyDtoHAsync_v2") &&
         find(library, &cuda.mode, "cuThreadExchangeStreamCaptureMode");
}

static int device_of(const void *ptr)
{
  unsigned type = 0;
  int device = -1;
  if (cuda.attribute(&type, MEMORY_TYPE, (uintptr_t)ptr) != 0 || type != TYPE_DEVICE) return -1;
  return cuda.attribute(&device, DEVICE_ORDINAL, (uintptr_t)ptr) == 0 ? device : -1;
}

static bool is_device(const void *ptr, size_t bytes)
{
  return device_of(ptr) >= 0 && device_of((const char *)ptr + bytes - 1) >= 0;
}

static bool is_dmabuf(int fd, const void *ptr, size_t bytes)
{
  char path[64], name[128] = "";
  (void)ptr;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(path, name, sizeof name - 1);
  off_t size = lseek(fd, 0, SEEK_END);
  if (n > 0 && strstr(name, "dmabuf") != NULL && size >= 0 && (size_t)size >= bytes) return true;
  fprintf(stderr, "direct: descriptor %d is %s of %lld bytes, for %zu\n", fd, name, (long long)size, bytes);
  return false;
}

/* The device's stream, made at first; its context is current then. */
static void *enter(int device)
{
  int least, greatest;
  void *current;
  pthread_mutex_lock(&lock);
  bool good = devices[device].context != NULL || cuda.retain(&devices[device].context, device) == 0;
  good = good && cuda.push(devices[device].context) == 0;
  if (good && devices[device].stream == NULL &&
      (cuda.range(&least, &greatest) != 0 || cuda.make_stream(&devices[device].stream, NON_BLOCKING, greatest) != 0))
    cuda.pop(&current);
  pthread_mutex_unlock(&lock);
  return good ? devices[device].stream : NULL;
}

static bool copy(int device, address there, void *here, const void *from, size_t bytes)
{
  int mode = RELAXED;
  void *current;
  if (device < 0 || device >= MOST_DEVICES) return false;
  cuda.mode(&mode);
  void *stream = enter(device);
  int error = stream == NULL;
  if (stream != NULL) {
    error = from != NULL ? cuda.in(there, from, bytes, stream) : cuda.out(here, there, bytes, stream);
    if (error == 0) error = cuda.wait(stream);
    cuda.pop(&current);
  }
  cuda.mode(&mode);
  if (error != 0) fprintf(stderr, "direct: a copy of %zu bytes failed with CUDA error %d\n", bytes, error);
  return error == 0;
}

static bool to_device(void *to, const void *from, size_t bytes)
{
  return copy(device_of(to), (uintptr_t)to, NULL, from, bytes);
}

static bool from_device(void *to, const void *from, size_t bytes)
{
  return copy(device_of(from), (uintptr_t)from, to, NULL, bytes);
}

const struct direct_memory direct_memory_cuda = {
    .begin = begin, .is_device = is_device, .is_dmabuf = is_dmabuf, .to_device = to_device, .from_device = from_device};
