/* A net plugin that does nothing but record its calls, built many times over: STUB_NAME is its name, STUB_V6 ... the
 * versions it exports, STUB_BARE leaves optional members NULL, STUB_BROKEN a required one.
 *
 * Each call is reported, as one line, to the function whose address is in the environment variable STUB_RECORD.
 * STUB_<name>_<what> changes the behaviour:
 *   NDEV n, INIT_ERROR e, FINALIZE_ERROR e, OFFLOAD t, WARN 1 (log before failing), P2P n (maxP2pBytes),
 *   PENDING n (connect and accept succeed at call n+1), CONNECT_ERROR e, BUSY 1 (post nothing, write nothing),
 *   NO_LISTEN 1, ISEND_ERROR e */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tutti/counters.h"
#include "tutti/net.h"
#ifdef STUB_NEEDS
int stub_dependency(void);
#endif

#define EXPORT __attribute__((visibility("default")))
#ifdef STUB_BARE
#define OPTIONAL(member) NULL
#else
#define OPTIONAL(member) member
#endif
#ifdef STUB_BROKEN
#define REQUIRED(member) NULL
#else
#define REQUIRED(member) member
#endif

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
  char text[512];
  const char *address = getenv("STUB_RECORD");
  if (!address) return;
  int bytes = snprintf(text, sizeof(text), "%s: ", STUB_NAME);
  va_list args;
  va_start(args, format);
  vsnprintf(text + bytes, sizeof(text) - (size_t)bytes, format, args);
  va_end(args);
  void (*record)(const char *) = (void (*)(const char *))(uintptr_t)strtoull(address, NULL, 16);
  record(text);
}

static long setting(const char *what, long otherwise)
{
  char name[128];
  snprintf(name, sizeof(name), "STUB_%s_%s", STUB_NAME, what);
  const char *value = getenv(name);
  return value ? atol(value) : otherwise;
}

__attribute__((destructor)) static void gone(void)
{
  note("unloaded");
}

#ifndef STUB_EMPTY
static ncclDebugLogger_t logger;

static ncclResult_t outcome(const char *what)
{
  long error = setting(what, 0);
  if (error && setting("WARN", 0))
    logger(NCCL_LOG_WARN, NCCL_NET, __FILE__, __LINE__, "the stub explains %s %d", what, (int)error);
  return (ncclResult_t)error;
}

/* ---- Members that are the same in all versions ---- */

static ncclResult_t devices(int *ndev)
{
  *ndev = (int)setting("NDEV", 2);
  note("devices %d", *ndev);
  return ncclSuccess;
}

static ncclResult_t finish_connect(const char *what, int *calls, void **comm)
{
  if ((*calls)++ < setting("PENDING", 0)) return ncclSuccess;
  *comm = (void *)what;
  return outcome("CONNECT_ERROR");
}

static ncclResult_t regMrDmaBuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle)
{
  note("regMrDmaBuf %s %p %zu %d %llu %d", (char *)comm, data, size, type, (unsigned long long)offset, fd);
  *mhandle = (void *)0x20;
  return ncclSuccess;
}

static ncclResult_t deregMr(void *comm, void *mhandle)
{
  note("deregMr %s %p", (char *)comm, mhandle);
  return ncclSuccess;
}

static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
  note("iflush %s %d %p %d %p", (char *)comm, n, data[0], sizes[0], mhandles[0]);
  *request = (void *)0x300;
  return ncclSuccess;
}

static ncclResult_t test(void *request, int *done, int *sizes)
{
  note("test %p", request);
  *done = 7;
  if (sizes) sizes[0] = 11;
  return ncclSuccess;
}

#define CLOSE(member)                                                                                                  \
  static ncclResult_t member(void *comm)                                                                               \
  {                                                                                                                    \
    note(#member " %s", (char *)comm);                                                                                 \
    return ncclSuccess;                                                                                                \
  }
CLOSE(closeSend)
CLOSE(closeRecv)
CLOSE(closeListen)

static ncclResult_t getDeviceMr(void *comm, void *mhandle, void **out)
{
  (void)comm, (void)mhandle;
  *out = NULL;
  return ncclSuccess;
}

static ncclResult_t irecvConsumed(void *comm, int n, void *request)
{
  note("irecvConsumed %s %d %p", (char *)comm, n, request);
  return ncclSuccess;
}

/* ---- Members of several versions; what a version lacks is not touched ---- */

#define FILL_6(p)                                                                                                      \
  memset(p, 0, sizeof(*p)), (p)->name = (char *)"stub device", (p)->pciPath = (char *)"/sys/stub",                     \
                            (p)->guid = 42 + dev, (p)->ptrSupport = NCCL_PTR_HOST | NCCL_PTR_DMABUF,                   \
                            (p)->speed = 100000, (p)->port = 3, (p)->latency = 1.5f, (p)->maxComms = 1000,             \
                            (p)->maxRecvs = 4
#define FILL_7(p) FILL_6(p), (p)->netDeviceType = (ncclNetDeviceType)setting("OFFLOAD", 0), (p)->netDeviceVersion = 7
#define FILL_8(p) FILL_7(p), (p)->regIsGlobal = 1
#define FILL_9(p)                                                                                                      \
  FILL_8(p), (p)->forceFlush = 1, (p)->vProps.ndevs = 2, (p)->vProps.devs[0] = 5, (p)->vProps.devs[1] = 6,             \
             (p)->maxP2pBytes = (size_t)setting("P2P", 1L << 35), (p)->maxCollBytes = 1L << 36
#define FILL_11(p) FILL_9(p), (p)->maxMultiRequestSize = 3
#define FILL_12(p) FILL_11(p), (p)->railId = 6, (p)->planeId = 9

#define GET_PROPERTIES(version, fill)                                                                                  \
  static ncclResult_t getProperties_##version(int dev, ncclNetProperties_##version##_t *props)                         \
  {                                                                                                                    \
    fill(props);                                                                                                       \
    return ncclSuccess;                                                                                                \
  }

static ncclResult_t init_v6(ncclDebugLogger_t log)
{
  logger = log;
  note("init");
  return outcome("INIT_ERROR");
}

static ncclResult_t init_v10(ncclDebugLogger_t log, ncclProfilerCallback_t profile)
{
  void *event = &event;
  profile(&event, ncclProfilerNetEventStart, NULL, 0, NULL);
  note("profile %p", event);
  return init_v6(log);
}

static ncclResult_t init_v11(void **ctx, uint64_t commId, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t log,
                             ncclProfilerCallback_t profile)
{
  (void)profile;
  logger = log;
  note("init %llu %d", (unsigned long long)commId, config->trafficClass);
  *ctx = (void *)(uintptr_t)(commId + 1000);
  return outcome("INIT_ERROR");
}

static ncclResult_t finalize(void *ctx)
{
  note("finalize %lu", (unsigned long)(uintptr_t)ctx - 1000);
  return outcome("FINALIZE_ERROR");
}

static ncclResult_t setNetAttr(void *ctx, ncclNetAttr_v12_t *attr)
{
  note("setNetAttr %lu %d %u", (unsigned long)(uintptr_t)ctx - 1000, attr->sendCommAttr.maxConcurrentPeers, attr->op);
  return ncclInternalError; /* must not matter */
}

static ncclResult_t do_listen(int dev, void *handle, void **comm)
{
  note("listen %d", dev);
  memset(handle, 'h', NCCL_NET_HANDLE_MAXSIZE);
  *(int *)handle = 0; /* the state of the connection attempt, as real plugins keep it */
  if (!setting("NO_LISTEN", 0)) *comm = (void *)("listen-" STUB_NAME);
  return ncclSuccess;
}

static ncclResult_t listen_v6(int dev, void *handle, void **comm)
{
  return do_listen(dev, handle, comm);
}

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **comm)
{
  note("listen for %lu", (unsigned long)(uintptr_t)ctx - 1000);
  return do_listen(dev, handle, comm);
}

static ncclResult_t connect_v6(int dev, void *handle, void **comm)
{
  note("connect %d %d", dev, *(int *)handle);
  return finish_connect("send-" STUB_NAME, (int *)handle, comm);
}

/* Real plugins write here without looking whether offload was asked for. */
static ncclResult_t connect_v7(int dev, void *handle, void **comm, ncclNetDeviceHandle_v7_t **offload)
{
  if (*offload) note("connect asks for offload");
  *offload = NULL;
  return connect_v6(dev, handle, comm);
}

static ncclResult_t connect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **comm,
                                ncclNetDeviceHandle_v10_t **offload)
{
  note("connect config %d", config->trafficClass);
  return connect_v7(dev, handle, comm, offload);
}

static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v11_t **offload)
{
  note("connect for %lu", (unsigned long)(uintptr_t)ctx - 1000);
  return connect_v7(dev, handle, comm, offload);
}

static ncclResult_t accept_v6(void *listenComm, void **comm)
{
  static int calls;
  note("accept %s", (char *)listenComm);
  return finish_connect("recv-" STUB_NAME, &calls, comm);
}

static ncclResult_t accept_v7(void *listenComm, void **comm, ncclNetDeviceHandle_v7_t **offload)
{
  *offload = NULL;
  return accept_v6(listenComm, comm);
}

static ncclResult_t regMr_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
  note("regMr %s %p %zu %d", (char *)comm, data, size, type);
  *mhandle = (void *)0x10;
  return ncclSuccess;
}

static ncclResult_t regMr_v6(void *comm, void *data, int size, int type, void **mhandle)
{
  return size < 0 ? ncclInternalError : regMr_v8(comm, data, (size_t)size, type, mhandle);
}

static ncclResult_t do_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request)
{
  note("isend %s %p %zu %d %p %p", (char *)comm, data, size, tag, mhandle, phandle);
  if (!setting("BUSY", 0)) *request = (void *)0x100;
  return outcome("ISEND_ERROR");
}

static ncclResult_t isend_v6(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
  return size < 0 ? ncclInternalError : do_isend(comm, data, (size_t)size, tag, mhandle, NULL, request);
}

static ncclResult_t isend_v9(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
  return do_isend(comm, data, size, tag, mhandle, NULL, request);
}

static ncclResult_t do_irecv(void *comm, int n, void **data, const size_t *sizes, int *tags, void **mhandles,
                             void **phandles, void **request)
{
  for (int i = 0; i < n; i++)
    note("irecv %s %d/%d %p %zu %d %p %p on %p", (char *)comm, i, n, data[i], sizes[i], tags[i], mhandles[i],
         phandles ? phandles[i] : NULL, *request);
  if (!setting("BUSY", 0)) *request = (void *)0x200;
  return ncclSuccess;
}

static ncclResult_t irecv_v6(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
  size_t wide[64];
  for (int i = 0; i < n; i++) wide[i] = (size_t)sizes[i];
  return do_irecv(comm, n, data, wide, tags, mhandles, NULL, request);
}

static ncclResult_t irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
  return do_irecv(comm, n, data, sizes, tags, mhandles, NULL, request);
}

static ncclResult_t irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **request)
{
  return do_irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
}

static ncclResult_t make(int *d, int ndevs, const int *devs)
{
  note("makeVDevice %d: %d ... %d", ndevs, devs[0], devs[ndevs - 1]);
  *d = 17;
  return ncclSuccess;
}

static ncclResult_t makeVDevice_v9(int *d, ncclNetVDeviceProps_v9_t *props)
{
  return make(d, props->ndevs, props->devs);
}

static ncclResult_t makeVDevice_v12(int *d, ncclNetVDeviceProps_v12_t *props)
{
  return make(d, props->ndevs, props->devs);
}

/* ---- The exported objects ---- */

#define PLUGIN(version, init_, listen_, connect_, accept_, reg_, send_, recv_, ...)                                    \
  EXPORT ncclNet_##version##_t ncclNetPlugin_##version = {.name = STUB_NAME,                                           \
                                                          .init = init_,                                               \
                                                          .devices = devices,                                          \
                                                          .getProperties = getProperties_##version,                    \
                                                          .listen = listen_,                                           \
                                                          .connect = connect_,                                         \
                                                          .accept = accept_,                                           \
                                                          .regMr = reg_,                                               \
                                                          .regMrDmaBuf = OPTIONAL(regMrDmaBuf),                        \
                                                          .deregMr = deregMr,                                          \
                                                          .isend = REQUIRED(send_),                                    \
                                                          .irecv = recv_,                                              \
                                                          .iflush = OPTIONAL(iflush),                                  \
                                                          .test = test,                                                \
                                                          .closeSend = closeSend,                                      \
                                                          .closeRecv = closeRecv,                                      \
                                                          .closeListen = closeListen,                                  \
                                                          __VA_ARGS__}
#define SINCE_7 .getDeviceMr = OPTIONAL(getDeviceMr), .irecvConsumed = OPTIONAL(irecvConsumed)
#define SINCE_11 .finalize = OPTIONAL(finalize), .setNetAttr = OPTIONAL(setNetAttr)

#ifdef STUB_V6
GET_PROPERTIES(v6, FILL_6)
PLUGIN(v6, init_v6, listen_v6, connect_v6, accept_v6, regMr_v6, isend_v6, irecv_v6, );
#endif
#ifdef STUB_V7
GET_PROPERTIES(v7, FILL_7)
PLUGIN(v7, init_v6, listen_v6, connect_v7, accept_v7, regMr_v6, isend_v6, irecv_v6, SINCE_7);
#endif
#ifdef STUB_V8
GET_PROPERTIES(v8, FILL_8)
PLUGIN(v8, init_v6, listen_v6, connect_v7, accept_v7, regMr_v8, isend_v6, irecv_v6, SINCE_7);
#endif
#ifdef STUB_V9
GET_PROPERTIES(v9, FILL_9)
PLUGIN(v9, init_v6, listen_v6, connect_v7, accept_v7, regMr_v8, isend_v9, irecv_v9, SINCE_7,
       .makeVDevice = OPTIONAL(makeVDevice_v9));
#endif
#ifdef STUB_V10
GET_PROPERTIES(v10, FILL_9)
PLUGIN(v10, init_v10, listen_v6, connect_v10, accept_v7, regMr_v8, do_isend, irecv_v10, SINCE_7,
       .makeVDevice = OPTIONAL(makeVDevice_v9));
#endif
#ifdef STUB_V11
GET_PROPERTIES(v11, FILL_11)
PLUGIN(v11, init_v11, listen_v11, connect_v11, accept_v7, regMr_v8, do_isend, irecv_v10, SINCE_7,
       .makeVDevice = OPTIONAL(makeVDevice_v9), SINCE_11);
#endif
#ifdef STUB_V12
GET_PROPERTIES(v12, FILL_12)
PLUGIN(v12, init_v11, listen_v11, connect_v11, accept_v7, regMr_v8, do_isend, irecv_v10, SINCE_7,
       .makeVDevice = OPTIONAL(makeVDevice_v12), SINCE_11);
#endif
#endif

/* Counters: of this release, of an older one whose struct ends before `retries`, and a table too short for `read`. */
#if defined(STUB_V10) || defined(STUB_V11) || defined(STUB_V12)
static ncclResult_t read_counters(tt_counters_visit *visit, void *context)
{
  struct tt_counters counters = {.size = sizeof(counters),
                                 .counts = TT_COUNTS_BYTES | TT_COUNTS_OPERATIONS | TT_COUNTS_RETRIES,
                                 .what = TT_COUNTERS_DEVICE,
                                 .name = "counted",
                                 .peer = "",
                                 .bytes = 1,
                                 .operations = 2,
                                 .retries = 3,
                                 .queue_depth_most = 4};
#ifndef STUB_V12
  counters.size = offsetof(struct tt_counters, retries);
#endif
  visit(context, &counters);
  return ncclSuccess;
}

EXPORT const struct tt_net_counters tuttiNetCounters = {
#if defined(STUB_V10)
    .size = offsetof(struct tt_net_counters, read),
#else
    .size = sizeof(struct tt_net_counters),
#endif
    .read = read_counters};
#endif

/* Versions that this library does not know: whatever they hold must not be read. */
#ifdef STUB_V13
EXPORT void *ncclNetPlugin_v13[22];
#endif
#ifdef STUB_V5
EXPORT void *ncclNetPlugin_v5[16];
#endif
#ifdef STUB_NEEDS
EXPORT int stub_use(void)
{
  return stub_dependency();
}
#endif
