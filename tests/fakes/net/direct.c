/* A net plugin that takes devices' memory: it wraps a good one (DIRECT_INNER, a path), which knows only the host's, and
 * copies between the two itself. It is strict: what is registered as another kind of memory than it is, a descriptor
 * that is of other memory, memory that goes before its registration, ends the process. Variables:
 *   DIRECT_MEMORY=cuda   the devices are GPUs; else fake ones
 *   DIRECT_CLAIM         cuda, dmabuf or both (the default): what it takes
 *   DIRECT_FAIL          cuda, dmabuf or both: such registrations fail
 *   DIRECT_LATE=1        what was received shows in a device's memory only once it was flushed
 *   DIRECT_FORCE=1       it asks for flushes
 *   DIRECT_PCI           1, 0: dma-bufs must have addresses on the PCI bus, or others
 *   DIRECT_NO_FLUSH=1    and must not be asked for any, since the device does it */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "direct_memory.h"
#include "tutti/net.h"

static const ncclNet_v12_t *inner;
static const struct direct_memory *memory;
static bool late;

struct comm {
  void *inner;
  atomic_int regions;
  struct request *requests; /* in flight */
};

/* The wrapped network sees a shadow of a device's memory. */
struct region {
  void *inner;
  bool device;
  char *data, *shadow;
  size_t bytes;
};

/* What was received into a device's memory and not flushed. */
struct pending {
  struct pending *next;
  struct region *region;
  char *data;
  size_t bytes;
};
static struct pending *pending; /* under the lock */

struct request {
  struct request *next, **link;
  void *inner;           /* NULL: a flush */
  struct region *region; /* of a receive into a device's memory, or of a flush; else NULL */
  char *data;
  size_t bytes; /* of a flush */
  int tests;    /* of a flush, until it is done */
};

static void check(bool good, const char *what)
{
  if (good) return;
  fprintf(stderr, "direct: %s\n", what);
  abort();
}

static bool is(const char *variable, const char *what, const char *otherwise)
{
  const char *value = getenv(variable);
  if (value == NULL) value = otherwise;
  return strcmp(value, what) == 0 || strcmp(value, "both") == 0;
}

static bool is_set(const char *variable)
{
  const char *value = getenv(variable);
  return value != NULL && atoi(value) != 0;
}

static bool forget(const struct region *region, const char *data);
static void flushed(void);

/* Once: other communicators' threads read what this sets. */
static void load(void)
{
  const char *path = getenv("DIRECT_INNER");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  memory = is("DIRECT_MEMORY", "cuda", "") ? &direct_memory_cuda : &direct_memory_fake;
  late = is_set("DIRECT_LATE");
  inner = library ? dlsym(library, "ncclNetPlugin_v12") : NULL;
  if (inner && !memory->begin(flushed)) inner = NULL;
}

static ncclResult_t init(void **ctx, uint64_t id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t log,
                         ncclProfilerCallback_t profile)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
  if (!inner) return ncclInvalidUsage;
  return inner->init(ctx, id, config, log, profile);
}

static ncclResult_t devices(int *n)
{
  return inner->devices(n);
}

static ncclResult_t get_properties(int dev, ncclNetProperties_v12_t *props)
{
  ncclResult_t result = inner->getProperties(dev, props);
  if (is("DIRECT_CLAIM", "cuda", "both")) props->ptrSupport |= NCCL_PTR_CUDA;
  if (is("DIRECT_CLAIM", "dmabuf", "both")) props->ptrSupport |= NCCL_PTR_DMABUF;
  props->forceFlush = is_set("DIRECT_FORCE");
  props->maxRecvs = 1;
  return result;
}

static ncclResult_t listen(void *ctx, int dev, void *handle, void **comm)
{
  return inner->listen(ctx, dev, handle, comm);
}

static ncclResult_t wrap(ncclResult_t result, void *made, void **comm)
{
  *comm = NULL;
  if (result != ncclSuccess || !made) return result;
  struct comm *wrapped = calloc(1, sizeof *wrapped);
  check(wrapped != NULL, "no memory");
  wrapped->inner = made;
  *comm = wrapped;
  return ncclSuccess;
}

static ncclResult_t connect(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v12_t **device)
{
  void *made = NULL;
  ncclResult_t result = inner->connect(ctx, dev, handle, &made, device);
  return wrap(result, made, comm);
}

static ncclResult_t accept(void *listener, void **comm, ncclNetDeviceHandle_v12_t **device)
{
  void *made = NULL;
  ncclResult_t result = inner->accept(listener, &made, device);
  return wrap(result, made, comm);
}

static ncclResult_t reg(struct comm *comm, void *data, size_t bytes, bool device, void **mhandle)
{
  struct region *region = calloc(1, sizeof *region);
  check(region != NULL, "no memory");
  *region = (struct region){.device = device, .data = data, .bytes = bytes, .shadow = data};
  if (device) check((region->shadow = malloc(bytes)) != NULL, "no memory");
  ncclResult_t result = inner->regMr(comm->inner, region->shadow, bytes, NCCL_PTR_HOST, &region->inner);
  check(result == ncclSuccess, "the wrapped network registers no memory");
  comm->regions++;
  *mhandle = region;
  return ncclSuccess;
}

static ncclResult_t reg_mr(void *comm, void *data, size_t bytes, int type, void **mhandle)
{
  bool device = memory->is_device(data, bytes);
  check(type == (device ? NCCL_PTR_CUDA : NCCL_PTR_HOST), "memory is registered as another kind than it is");
  check(!device || is("DIRECT_CLAIM", "cuda", "both"), "it takes no devices' addresses");
  if (device && is("DIRECT_FAIL", "cuda", "")) return ncclSystemError;
  return reg(comm, data, bytes, device, mhandle);
}

static ncclResult_t reg_mr_dmabuf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                                  void **mhandle)
{
  check(is("DIRECT_CLAIM", "dmabuf", "both"), "it takes no dma-bufs");
  check(type == NCCL_PTR_CUDA && offset == 0, "a dma-buf is a device's memory, from its beginning");
  check(memory->is_device(data, bytes) && memory->is_dmabuf(fd, data, bytes), "a dma-buf is of other memory");
  if (is("DIRECT_FAIL", "dmabuf", "")) return ncclSystemError;
  return reg(comm, data, bytes, true, mhandle);
}

static ncclResult_t dereg_mr(void *opaque, void *mhandle)
{
  struct comm *comm = opaque;
  struct region *region = mhandle;
  check(memory->is_device(region->data, region->bytes) == region->device, "memory went before its registration");
  ncclResult_t result = inner->deregMr(comm->inner, region->inner);
  while (forget(region, NULL)) continue;
  if (region->device) free(region->shadow);
  free(region);
  comm->regions--;
  return result;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of comms' requests, and of what is pending */

static void free_request(struct request *request)
{
  pthread_mutex_lock(&lock);
  *request->link = request->next;
  if (request->next) request->next->link = request->link;
  pthread_mutex_unlock(&lock);
  free(request);
}

static struct request *make_request(struct comm *comm, void *of_inner, struct region *region, void *data)
{
  struct request *request = calloc(1, sizeof *request);
  check(request != NULL, "no memory");
  pthread_mutex_lock(&lock);
  *request = (struct request){
      .next = comm->requests, .link = &comm->requests, .inner = of_inner, .region = region, .data = data};
  if (request->next) request->next->link = &request->next;
  comm->requests = request;
  pthread_mutex_unlock(&lock);
  return request;
}

/* Where the wrapped network finds what lies at `data`. */
static char *shadow_of(const struct region *region, const char *data, size_t bytes)
{
  check(data >= region->data && bytes <= region->bytes && (size_t)(data - region->data) <= region->bytes - bytes,
        "memory is not registered");
  return region->shadow + (data - region->data);
}

static ncclResult_t isend(void *opaque, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request)
{
  struct comm *comm = opaque;
  struct region *region = mhandle;
  char *shadow = shadow_of(region, data, size);
  void *made = NULL;
  *request = NULL;
  if (region->device && !memory->from_device(shadow, data, size)) return ncclUnhandledCudaError;
  ncclResult_t result = inner->isend(comm->inner, shadow, size, tag, region->inner, phandle, &made);
  if (result == ncclSuccess && made) *request = make_request(comm, made, NULL, NULL);
  return result;
}

static ncclResult_t irecv(void *opaque, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                          void **request)
{
  struct comm *comm = opaque;
  struct region *region = mhandles[0];
  void *shadow = shadow_of(region, data[0], sizes[0]), *made = NULL;
  *request = NULL;
  check(n == 1, "it receives one at a time");
  ncclResult_t result = inner->irecv(comm->inner, 1, &shadow, sizes, tags, &region->inner, phandles, &made);
  if (result == ncclSuccess && made) *request = make_request(comm, made, region->device ? region : NULL, data[0]);
  return result;
}

static ncclResult_t show(const struct region *region, char *data, size_t bytes)
{
  return memory->to_device(data, shadow_of(region, data, bytes), bytes) ? ncclSuccess : ncclUnhandledCudaError;
}

static void keep(struct region *region, char *data, size_t bytes)
{
  struct pending *kept = malloc(sizeof *kept);
  check(kept != NULL, "no memory");
  pthread_mutex_lock(&lock);
  *kept = (struct pending){.next = pending, .region = region, .data = data, .bytes = bytes};
  pending = kept;
  pthread_mutex_unlock(&lock);
}

/* Forgets one that is pending: at `data`, or any of the region's. */
static bool forget(const struct region *region, const char *data)
{
  pthread_mutex_lock(&lock);
  struct pending **link = &pending, *found;
  while (*link && ((*link)->region != region || (data && (*link)->data != data))) link = &(*link)->next;
  found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&lock);
  free(found);
  return found != NULL;
}

/* A device has flushed all that was written before. */
static void flushed(void)
{
  pthread_mutex_lock(&lock);
  while (pending) {
    struct pending *next = pending->next;
    show(pending->region, pending->data, pending->bytes);
    free(pending);
    pending = next;
  }
  pthread_mutex_unlock(&lock);
}

/* Some are done at once. */
static ncclResult_t iflush(void *opaque, int n, void **data, int *sizes, void **mhandles, void **request)
{
  static atomic_uint flushes;
  struct comm *comm = opaque;
  struct region *region = mhandles[0];
  *request = NULL;
  check(n == 1 && region->device && sizes[0] > 0, "only what came into a device's memory is flushed");
  check(!is_set("DIRECT_NO_FLUSH"), "the device flushes by itself");
  if (!late) return ncclSuccess;
  check(forget(region, data[0]), "what was not received, or was flushed, is flushed");
  if (flushes++ % 3 == 0) return show(region, data[0], (size_t)sizes[0]);
  struct request *flush = make_request(comm, NULL, region, data[0]);
  flush->bytes = (size_t)sizes[0];
  flush->tests = 3;
  *request = flush;
  return ncclSuccess;
}

static ncclResult_t test(void *opaque, int *done, int *sizes)
{
  struct request *request = opaque;
  ncclResult_t result = ncclSuccess;
  int size = 0;
  if (request->inner) {
    result = inner->test(request->inner, done, &size);
    if (sizes) *sizes = size;
    if (result == ncclSuccess && *done && request->region && late)
      keep(request->region, request->data, (size_t)size);
    else if (result == ncclSuccess && *done && request->region)
      result = show(request->region, request->data, (size_t)size);
  } else {
    *done = --request->tests == 0;
    if (*done) result = show(request->region, request->data, request->bytes);
  }
  if (*done || result != ncclSuccess) free_request(request);
  return result;
}

static ncclResult_t close_comm(void *opaque, ncclResult_t (*close)(void *))
{
  struct comm *comm = opaque;
  check(comm->regions == 0, "memory is registered with a comm that is closed");
  ncclResult_t result = close(comm->inner);
  while (comm->requests) free_request(comm->requests);
  free(comm);
  return result;
}

static ncclResult_t close_send(void *comm)
{
  return close_comm(comm, inner->closeSend);
}

static ncclResult_t close_recv(void *comm)
{
  return close_comm(comm, inner->closeRecv);
}

static ncclResult_t close_listen(void *comm)
{
  return inner->closeListen(comm);
}

static ncclResult_t finalize(void *ctx)
{
  return inner->finalize(ctx);
}

__attribute__((visibility("default"))) const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = "Direct",
    .init = init,
    .devices = devices,
    .getProperties = get_properties,
    .listen = listen,
    .connect = connect,
    .accept = accept,
    .regMr = reg_mr,
    .regMrDmaBuf = reg_mr_dmabuf,
    .deregMr = dereg_mr,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .closeSend = close_send,
    .closeRecv = close_recv,
    .closeListen = close_listen,
    .finalize = finalize,
};
