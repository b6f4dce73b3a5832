/* A plugin such as there were before v8, for the suite: it exports v6 and v7 alone, and hands everything on to the v8
 * of a library (OLDER_INNER, a path). By v6 it takes as many receives as that promised, and not one more. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "tutti/net.h"

static const ncclNet_v8_t *inner;

static ncclResult_t init(ncclDebugLogger_t log)
{
  const char *path = getenv("OLDER_INNER");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  inner = library ? dlsym(library, "ncclNetPlugin_v8") : NULL;
  return inner ? inner->init(log) : ncclInvalidUsage;
}

static ncclResult_t devices(int *count)
{
  return inner->devices(count);
}

static ncclResult_t properties_v7(int dev, ncclNetProperties_v7_t *props)
{
  ncclNetProperties_v8_t own = {0};
  ncclResult_t result = inner->getProperties(dev, &own);
  *props = (ncclNetProperties_v7_t){.name = own.name,
                                    .pciPath = own.pciPath,
                                    .guid = own.guid,
                                    .ptrSupport = own.ptrSupport,
                                    .speed = own.speed,
                                    .port = own.port,
                                    .latency = own.latency,
                                    .maxComms = own.maxComms,
                                    .maxRecvs = own.maxRecvs,
                                    .netDeviceType = own.netDeviceType,
                                    .netDeviceVersion = own.netDeviceVersion};
  return result;
}

static ncclResult_t properties_v6(int dev, ncclNetProperties_v6_t *props)
{
  ncclNetProperties_v7_t own;
  ncclResult_t result = properties_v7(dev, &own);
  memcpy(props, &own, sizeof *props); /* v7 begins as v6 */
  return result;
}

static ncclResult_t listen(int dev, void *handle, void **comm)
{
  return inner->listen(dev, handle, comm);
}

static ncclResult_t connect_v7(int dev, void *handle, void **comm, ncclNetDeviceHandle_v7_t **device)
{
  return inner->connect(dev, handle, comm, device);
}

static ncclResult_t connect_v6(int dev, void *handle, void **comm)
{
  ncclNetDeviceHandle_v8_t own = {0}, *device = &own;
  return inner->connect(dev, handle, comm, &device);
}

static ncclResult_t accept_v7(void *listener, void **comm, ncclNetDeviceHandle_v7_t **device)
{
  return inner->accept(listener, comm, device);
}

static ncclResult_t accept_v6(void *listener, void **comm)
{
  ncclNetDeviceHandle_v8_t own = {0}, *device = &own;
  return inner->accept(listener, comm, &device);
}

static ncclResult_t reg_mr(void *comm, void *data, int bytes, int type, void **mhandle)
{
  return inner->regMr(comm, data, (size_t)bytes, type, mhandle);
}

static ncclResult_t dereg_mr(void *comm, void *mhandle)
{
  return inner->deregMr(comm, mhandle);
}

static ncclResult_t isend(void *comm, void *data, int bytes, int tag, void *mhandle, void **request)
{
  return inner->isend(comm, data, bytes, tag, mhandle, request);
}

static ncclResult_t irecv(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
  return inner->irecv(comm, n, data, sizes, tags, mhandles, request);
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
  return inner->closeSend(comm);
}

static ncclResult_t close_recv(void *comm)
{
  return inner->closeRecv(comm);
}

static ncclResult_t close_listen(void *comm)
{
  return inner->closeListen(comm);
}

/* ---- v6: few receives in flight ---- */

static struct {
  pthread_mutex_t lock;
  struct {
    void *comm, *request; /* NULL: free */
  } entry[1024];
} receives = {.lock = PTHREAD_MUTEX_INITIALIZER};
enum { ENTRIES = sizeof receives.entry / sizeof receives.entry[0] };

static ncclResult_t few_irecv(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
  int count = 0, free = -1;
  ncclResult_t result = ncclSuccess;
  *request = NULL;
  pthread_mutex_lock(&receives.lock);
  for (int i = 0; i < ENTRIES; i++) {
    if (!receives.entry[i].request) free = i;
    count += receives.entry[i].request && receives.entry[i].comm == comm;
  }
  if (free >= 0 && count < NCCL_NET_MAX_REQUESTS_V6) {
    result = irecv(comm, n, data, sizes, tags, mhandles, request);
    receives.entry[free].comm = comm;
    receives.entry[free].request = *request;
  }
  pthread_mutex_unlock(&receives.lock);
  return result;
}

/* Frees what is of a request, or of a comm that is closed with requests in flight. */
static void forget(const void *request, const void *comm)
{
  pthread_mutex_lock(&receives.lock);
  for (int i = 0; i < ENTRIES; i++)
    if (receives.entry[i].request == request || receives.entry[i].comm == comm)
      receives.entry[i].request = receives.entry[i].comm = NULL;
  pthread_mutex_unlock(&receives.lock);
}

static ncclResult_t few_test(void *request, int *done, int *sizes)
{
  ncclResult_t result = test(request, done, sizes);
  if (result != ncclSuccess || *done) forget(request, &receives);
  return result;
}

static ncclResult_t few_close_recv(void *comm)
{
  if (comm) forget(&receives, comm);
  return close_recv(comm);
}

__attribute__((visibility("default"))) const ncclNet_v7_t ncclNetPlugin_v7 = {
    .name = "Older",
    .init = init,
    .devices = devices,
    .getProperties = properties_v7,
    .listen = listen,
    .connect = connect_v7,
    .accept = accept_v7,
    .regMr = reg_mr,
    .deregMr = dereg_mr,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .closeSend = close_send,
    .closeRecv = close_recv,
    .closeListen = close_listen,
};

__attribute__((visibility("default"))) const ncclNet_v6_t ncclNetPlugin_v6 = {
    .name = "Older",
    .init = init,
    .devices = devices,
    .getProperties = properties_v6,
    .listen = listen,
    .connect = connect_v6,
    .accept = accept_v6,
    .regMr = reg_mr,
    .deregMr = dereg_mr,
    .isend = isend,
    .irecv = few_irecv,
    .iflush = iflush,
    .test = few_test,
    .closeSend = close_send,
    .closeRecv = few_close_recv,
    .closeListen = close_listen,
};
