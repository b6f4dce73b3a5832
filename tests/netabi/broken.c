/* A net plugin that breaks one rule, to show that the suite notices. It wraps a good plugin (BROKEN_INNER, a path) and
 * does what BROKEN says; with BROKEN unset it breaks nothing. Only v12 is exported. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tutti/counters.h"
#include "tutti/net.h"

static const ncclNet_v12_t *inner;
static const struct tt_net_counters *inner_counters;

static bool broken(const char *how)
{
  const char *value = getenv("BROKEN");
  return value && strcmp(value, how) == 0;
}

/* What a wrapped request needs beyond the inner one. They are kept until the process ends: comms are closed with
 * requests in flight, of which this plugin is not told. */
struct request {
  void *inner;
  bool receives;
  int n;
  size_t bytes;
  char *bounce, *user; /* truncate */
  struct request *next;
};
static _Atomic(struct request *) requests;

static struct request *request_new(void)
{
  struct request *request = calloc(1, sizeof *request);
  if (!request) abort();
  request->next = atomic_load(&requests);
  while (!atomic_compare_exchange_weak(&requests, &request->next, request)) continue;
  return request;
}

static ncclResult_t init(void **ctx, uint64_t id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t log,
                         ncclProfilerCallback_t profile)
{
  const char *path = getenv("BROKEN_INNER");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  inner = library ? dlsym(library, "ncclNetPlugin_v12") : NULL;
  if (!inner) return ncclInvalidUsage;
  inner_counters = dlsym(library, TT_NET_COUNTERS_SYMBOL);
  return inner->init(ctx, id, config, log, profile);
}

static ncclResult_t devices(int *count)
{
  return inner->devices(count);
}

static ncclResult_t get_properties(int dev, ncclNetProperties_v12_t *props)
{
  ncclResult_t result = inner->getProperties(dev, props);
  if (broken("size-limit")) props->maxP2pBytes = 0;
  return result;
}

static ncclResult_t listen(void *ctx, int dev, void *handle, void **comm)
{
  if (broken("long-handle")) memset((char *)handle + NCCL_NET_HANDLE_MAXSIZE, 1, 16);
  return inner->listen(ctx, dev, handle, comm);
}

static ncclResult_t connect(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v12_t **device)
{
  ncclResult_t result;
  do {
    result = inner->connect(ctx, dev, handle, comm, device);
    usleep(1000);
  } while (broken("block-connect") && result == ncclSuccess && !*comm);
  return result;
}

static ncclResult_t accept(void *listener, void **comm, ncclNetDeviceHandle_v12_t **device)
{
  ncclResult_t result;
  do {
    result = inner->accept(listener, comm, device);
    usleep(1000);
  } while (broken("block-accept") && result == ncclSuccess && !*comm);
  if (broken("leak-fds") && *comm && open("/dev/null", O_RDONLY) < 0) return ncclSystemError;
  return result;
}

static ncclResult_t reg_mr(void *comm, void *data, size_t bytes, int type, void **mhandle)
{
  return inner->regMr(comm, data, bytes, type, mhandle);
}

static ncclResult_t dereg_mr(void *comm, void *mhandle)
{
  return inner->deregMr(comm, mhandle);
}

static ncclResult_t isend(void *comm, void *data, size_t bytes, int tag, void *mhandle, void *phandle, void **out)
{
  struct request *request = request_new();
  size_t sent = broken("lose-tail") && bytes > 65536 ? bytes - 16 : bytes;
  if (broken("empty-sends") && bytes == 0) sent = 1;
  if (broken("shift") && bytes > 1000000) memmove((char *)data + 8, data, bytes - 8);
  ncclResult_t result =
      inner->isend(comm, data, sent, broken("ignore-tags") ? 0 : tag, mhandle, phandle, &request->inner);
  request->bytes = bytes;
  if (result != ncclSuccess || !request->inner) {
    request = NULL;
    if (broken("stale-request") && result == ncclSuccess) return result;
  }
  *out = request;
  return result;
}

enum { BOUNCE = 1 << 20 };

static ncclResult_t irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                          void **out)
{
  struct request *request = request_new();
  int none[64] = {0};
  size_t large = BOUNCE;
  request->receives = true;
  request->n = n;
  request->bytes = sizes[0];
  void *where = data[0];
  if (broken("truncate") && n == 1 && (request->bounce = malloc(BOUNCE))) {
    request->user = data[0];
    where = request->bounce;
    sizes = &large;
  }
  ncclResult_t result = inner->irecv(comm, n, request->bounce ? &where : data, sizes,
                                     broken("ignore-tags") ? none : tags, mhandles, phandles, &request->inner);
  if (result != ncclSuccess || !request->inner) {
    free(request->bounce);
    request->bounce = NULL;
    request = NULL;
  }
  *out = request;
  return result;
}

static ncclResult_t test(void *handle, int *done, int *sizes)
{
  struct request *request = handle;
  ncclResult_t result = inner->test(request->inner, done, sizes);
  if (broken("never-reports-death") && result != ncclSuccess) {
    *done = 0;
    return ncclSuccess;
  }
  if (result != ncclSuccess || !*done) return result;
  if (sizes && broken("wrong-sizes") && request->receives) sizes[0] += 4;
  if (sizes && broken("many-sizes") && request->receives) sizes[request->n] = 0;
  if (request->bounce) {
    int got = sizes ? sizes[0] : (int)request->bytes;
    memcpy(request->user, request->bounce, (size_t)got < request->bytes ? (size_t)got : request->bytes);
    free(request->bounce);
    request->bounce = NULL;
  }
  return result;
}

/* Its sum of 31 receives in flight is one too few. */
static struct {
  pthread_mutex_t lock;
  int count;
} in_flight = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ncclResult_t few_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **out)
{
  pthread_mutex_lock(&in_flight.lock);
  bool full = broken("few-requests") && in_flight.count == 31;
  ncclResult_t result = ncclSuccess;
  *out = NULL;
  if (!full) result = irecv(comm, n, data, sizes, tags, mhandles, phandles, out);
  if (*out) in_flight.count++;
  pthread_mutex_unlock(&in_flight.lock);
  return result;
}

static ncclResult_t few_test(void *handle, int *done, int *sizes)
{
  bool receives = ((struct request *)handle)->receives;
  ncclResult_t result = test(handle, done, sizes);
  pthread_mutex_lock(&in_flight.lock);
  if (receives && result == ncclSuccess && *done) in_flight.count--;
  pthread_mutex_unlock(&in_flight.lock);
  return result;
}

static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
  if (broken("stale-flush")) return ncclSuccess;
  return inner->iflush(comm, n, data, sizes, mhandles, request);
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

static ncclResult_t finalize(void *ctx)
{
  ncclResult_t result = inner->finalize(ctx);
  /* One state for all, torn down with the first user. */
  if (broken("uncounted")) {
    int users = 0;
    while (inner->devices(&users) == ncclSuccess && users > 0 && inner->finalize(ctx) == ncclSuccess) continue;
  }
  return result;
}

__attribute__((visibility("default"))) const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = "Broken",
    .init = init,
    .devices = devices,
    .getProperties = get_properties,
    .listen = listen,
    .connect = connect,
    .accept = accept,
    .regMr = reg_mr,
    .deregMr = dereg_mr,
    .isend = isend,
    .irecv = few_irecv,
    .iflush = iflush,
    .test = few_test,
    .closeSend = close_send,
    .closeRecv = close_recv,
    .closeListen = close_listen,
    .finalize = finalize,
};

struct visitor {
  tt_counters_visit *visit;
  void *context;
};

static void show(void *argument, const struct tt_counters *counters)
{
  const struct visitor *visitor = argument;
  struct tt_counters shown = *counters;
  if (broken("miscount") && shown.bytes == 1) shown.bytes++;
  if (broken("forget-closed") && !shown.comm) shown.operations = 0;
  if (broken("no-depth")) shown.queue_depth = 0;
  visitor->visit(visitor->context, &shown);
}

static ncclResult_t read_counters(tt_counters_visit *visit, void *context)
{
  return inner_counters->read(show, &(struct visitor){visit, context});
}

__attribute__((visibility("default"))) const struct tt_net_counters tuttiNetCounters = {
    .size = sizeof(struct tt_net_counters),
    .read = read_counters,
};
