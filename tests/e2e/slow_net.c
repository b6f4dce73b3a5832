/* libtutti-net-socket.so, but for one thing: messages of less than SLOW_BYTES arrive SLOW_USEC later; while the file
 * SLOW_FILE exists, those of so many bytes and more. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "tutti/net.h"

extern ncclNet_v12_t ncclNetPlugin_v12;
__attribute__((visibility("default"))) ncclNet_v12_t ncclNetPlugin_v12;
static ncclNet_v12_t real;

struct request {
  void *real; /* NULL: it is done, and `size` bytes came */
  int size, receives;
  long long ready; /* when it may be reported; 0: not known yet */
};

static long long now_usec(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static ncclResult_t wrap(ncclResult_t result, int receives, void **request)
{
  if (result != ncclSuccess || *request == NULL) return result;
  struct request *wrapped = calloc(1, sizeof *wrapped);
  if (wrapped == NULL) abort();
  wrapped->real = *request;
  wrapped->receives = receives;
  *request = wrapped;
  return ncclSuccess;
}

static ncclResult_t slow_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                               void **request)
{
  return wrap(real.isend(comm, data, size, tag, mhandle, phandle, request), 0, request);
}

static ncclResult_t slow_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                               void **phandles, void **request)
{
  return wrap(real.irecv(comm, n, data, sizes, tags, mhandles, phandles, request), n, request);
}

static ncclResult_t slow_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
  return wrap(real.iflush(comm, n, data, sizes, mhandles, request), 0, request);
}

static ncclResult_t slow_test(void *request, int *done, int *sizes)
{
  struct request *wrapped = request;
  *done = 0;
  if (wrapped->real != NULL) {
    int came[8] = {0}, finished = 0;
    ncclResult_t result = real.test(wrapped->real, &finished, came);
    if (result != ncclSuccess || !finished) return result;
    bool small = came[0] < atoi(getenv("SLOW_BYTES")), slow = (access(getenv("SLOW_FILE"), F_OK) == 0) != small;
    wrapped->real = NULL;
    wrapped->size = came[0];
    wrapped->ready = wrapped->receives && slow ? now_usec() + atoi(getenv("SLOW_USEC")) : 0;
  }
  if (wrapped->ready > now_usec()) return ncclSuccess;
  *done = 1;
  if (sizes != NULL) sizes[0] = wrapped->size;
  free(wrapped);
  return ncclSuccess;
}

static ncclResult_t slow_properties(int dev, ncclNetProperties_v12_t *properties)
{
  ncclResult_t result = real.getProperties(dev, properties);
  properties->maxRecvs = 1; /* of one message each */
  return result;
}

__attribute__((constructor)) static void copy_plugin(void)
{
  void *library = dlopen(getenv("SLOW_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  const ncclNet_v12_t *found = library != NULL ? (const ncclNet_v12_t *)dlsym(library, "ncclNetPlugin_v12") : NULL;
  if (found == NULL) abort();
  real = ncclNetPlugin_v12 = *found;
  ncclNetPlugin_v12.isend = slow_isend;
  ncclNetPlugin_v12.irecv = slow_irecv;
  ncclNetPlugin_v12.iflush = slow_iflush;
  ncclNetPlugin_v12.test = slow_test;
  ncclNetPlugin_v12.getProperties = slow_properties;
}
