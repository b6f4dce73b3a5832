/* A net plugin that counts: comms, registered bytes, and receives by the number of their buffers. It wraps a good one
 * (COUNTING_INNER, a path) and may claim less or more of it: COUNTING_MAX_RECVS; COUNTING_DEVICES devices, which are
 * all the same. */
#include "counting.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tutti/net.h"

#define EXPORT __attribute__((visibility("default")))

static const ncclNet_v12_t *inner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct counting counts;

struct region {
  void *mhandle;
  size_t bytes;
};

static void count(int *now, int *most, int change)
{
  pthread_mutex_lock(&lock);
  *now += change;
  if (*now > *most) *most = *now;
  pthread_mutex_unlock(&lock);
}

EXPORT void counting_read(struct counting *out, int clear)
{
  pthread_mutex_lock(&lock);
  *out = counts;
  if (clear) {
    counts = (struct counting){.listens = counts.listens,
                               .sends = counts.sends,
                               .recvs = counts.recvs,
                               .most_listens = counts.listens,
                               .most_sends = counts.sends,
                               .most_recvs = counts.recvs,
                               .held = counts.held,
                               .registered = counts.registered,
                               .most_registered = counts.registered};
  }
  pthread_mutex_unlock(&lock);
}

static ncclResult_t init(void **ctx, uint64_t id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t log,
                         ncclProfilerCallback_t profile)
{
  const char *path = getenv("COUNTING_INNER");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  inner = library ? dlsym(library, "ncclNetPlugin_v12") : NULL;
  if (!inner) return ncclInvalidUsage;
  return inner->init(ctx, id, config, log, profile);
}

static int claimed_devices(void)
{
  const char *devices = getenv("COUNTING_DEVICES");
  return devices ? atoi(devices) : 0;
}

static ncclResult_t devices(int *n)
{
  ncclResult_t result = inner->devices(n);
  if (result == ncclSuccess && claimed_devices() > 0) *n = claimed_devices();
  return result;
}

static int inner_device(int dev)
{
  return claimed_devices() > 0 ? 0 : dev;
}

static void count_device(int *by_device, int dev)
{
  pthread_mutex_lock(&lock);
  if (dev >= 0 && dev < COUNTING_DEVICES) by_device[dev]++;
  pthread_mutex_unlock(&lock);
}

static ncclResult_t get_properties(int dev, ncclNetProperties_v12_t *props)
{
  const char *most = getenv("COUNTING_MAX_RECVS");
  ncclResult_t result = inner->getProperties(inner_device(dev), props);
  if (most) props->maxRecvs = atoi(most);
  return result;
}

static ncclResult_t listen(void *ctx, int dev, void *handle, void **comm)
{
  ncclResult_t result = inner->listen(ctx, inner_device(dev), handle, comm);
  if (result == ncclSuccess) count(&counts.listens, &counts.most_listens, 1);
  if (result == ncclSuccess) count_device(counts.listened, dev);
  return result;
}

static ncclResult_t connect(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v12_t **device)
{
  ncclResult_t result = inner->connect(ctx, inner_device(dev), handle, comm, device);
  if (result == ncclSuccess && *comm) count(&counts.sends, &counts.most_sends, 1);
  if (result == ncclSuccess && *comm) count_device(counts.connected, dev);
  return result;
}

static ncclResult_t accept(void *listener, void **comm, ncclNetDeviceHandle_v12_t **device)
{
  ncclResult_t result = inner->accept(listener, comm, device);
  if (result == ncclSuccess && *comm) count(&counts.recvs, &counts.most_recvs, 1);
  return result;
}

static ncclResult_t reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
  struct region *region = malloc(sizeof *region);
  if (!region) return ncclSystemError;
  *region = (struct region){NULL, size};
  ncclResult_t result = inner->regMr(comm, data, size, type, &region->mhandle);
  if (result != ncclSuccess) {
    free(region);
    return result;
  }
  *mhandle = region;
  pthread_mutex_lock(&lock);
  counts.registered += size;
  if (counts.registered > counts.most_registered) counts.most_registered = counts.registered;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

static ncclResult_t dereg_mr(void *comm, void *mhandle)
{
  struct region *region = mhandle;
  pthread_mutex_lock(&lock);
  counts.registered -= region->bytes;
  pthread_mutex_unlock(&lock);
  ncclResult_t result = inner->deregMr(comm, region->mhandle);
  free(region);
  return result;
}

static int hold;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;

EXPORT void counting_hold(int held)
{
  pthread_mutex_lock(&lock);
  hold = held;
  pthread_cond_broadcast(&let_go);
  pthread_mutex_unlock(&lock);
}

static int refuses;
static uint64_t refused_at;

EXPORT void counting_refuse(int refuse)
{
  pthread_mutex_lock(&lock);
  refuses = refuse;
  counts.refused = 0;
  counts.refused_apart_ns = UINT64_MAX;
  pthread_mutex_unlock(&lock);
}

/* As plugins do whose receiver has not said where to. */
static int is_refused(void)
{
  struct timespec clock;
  clock_gettime(CLOCK_MONOTONIC, &clock);
  uint64_t now = (uint64_t)clock.tv_sec * 1000000000u + (uint64_t)clock.tv_nsec;
  pthread_mutex_lock(&lock);
  int refused = refuses;
  if (refused && counts.refused++ > 0 && now - refused_at < counts.refused_apart_ns)
    counts.refused_apart_ns = now - refused_at;
  refused_at = now;
  pthread_mutex_unlock(&lock);
  return refused;
}

static int may_send(void)
{
  const char *most = getenv("COUNTING_SENDS");
  pthread_mutex_lock(&lock);
  counts.held++;
  while (hold) pthread_cond_wait(&let_go, &lock);
  counts.held--;
  int may = !most || counts.isends < atoi(most);
  pthread_mutex_unlock(&lock);
  return may;
}

static ncclResult_t isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request)
{
  *request = NULL;
  if (!may_send()) return ncclSystemError;
  if (is_refused()) return ncclSuccess;
  ncclResult_t result = inner->isend(comm, data, size, tag, ((struct region *)mhandle)->mhandle, phandle, request);
  pthread_mutex_lock(&lock);
  counts.isends += result == ncclSuccess && *request;
  pthread_mutex_unlock(&lock);
  return result;
}

static ncclResult_t irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                          void **request)
{
  void *own[64];
  for (int i = 0; i < n; i++) own[i] = ((struct region *)mhandles[i])->mhandle;
  ncclResult_t result = inner->irecv(comm, n, data, sizes, tags, own, phandles, request);
  if (result != ncclSuccess || !*request) return result;
  pthread_mutex_lock(&lock);
  counts.irecvs++;
  counts.grouped += n > 1;
  counts.received += n;
  if (n > counts.largest) counts.largest = n;
  pthread_mutex_unlock(&lock);
  return result;
}

static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
  return inner->iflush(comm, n, data, sizes, mhandles, request);
}

static ncclResult_t test(void *request, int *done, int *sizes)
{
  return inner->test(request, done, sizes);
}

static ncclResult_t close_send(void *comm)
{
  count(&counts.sends, &counts.most_sends, -1);
  return inner->closeSend(comm);
}

static ncclResult_t close_recv(void *comm)
{
  count(&counts.recvs, &counts.most_recvs, -1);
  return inner->closeRecv(comm);
}

static ncclResult_t close_listen(void *comm)
{
  count(&counts.listens, &counts.most_listens, -1);
  return inner->closeListen(comm);
}

static ncclResult_t finalize(void *ctx)
{
  return inner->finalize(ctx);
}

EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = "Counting",
    .init = init,
    .devices = devices,
    .getProperties = get_properties,
    .listen = listen,
    .connect = connect,
    .accept = accept,
    .regMr = reg_mr,
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
