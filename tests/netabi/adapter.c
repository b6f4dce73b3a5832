/* One adapter a version of the ABI. They share nothing with the core's shims, so that neither can hide the other's
 * mistakes. A process uses one plugin, so the struct in use is a global. */
#include "netabi.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* The plugin's log goes to stderr with NETABI_LOG=1. */
static void logger(ncclDebugLogLevel level, unsigned long flags, const char *where, int line, const char *format, ...)
{
  static int wanted = -1;
  va_list args;
  (void)flags;
  if (wanted < 0) wanted = getenv("NETABI_LOG") != NULL;
  if (!wanted) return;
  char text[1024];
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(stderr, "  plugin log %d %s:%d %s\n", (int)level, where ? where : "", line, text);
}

static ncclResult_t profile(void **event, int type, void *phandle, int64_t id, void *data)
{
  (void)type, (void)phandle, (void)id, (void)data;
  if (event) *event = NULL;
  return ncclSuccess;
}

static ncclNetCommConfig_v12_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};

/* What is written the same way for all versions: V is the number, P the variable that holds the struct. */
#define COMMON(V, CONSUMED)                                                                                            \
  static const ncclNet_v##V##_t *p##V;                                                                                 \
  static const char *name##V(void)                                                                                     \
  {                                                                                                                    \
    return p##V->name;                                                                                                 \
  }                                                                                                                    \
  static const char *missing##V(void)                                                                                  \
  {                                                                                                                    \
    return !p##V->init            ? "init"                                                                             \
           : !p##V->devices       ? "devices"                                                                          \
           : !p##V->getProperties ? "getProperties"                                                                    \
           : !p##V->listen        ? "listen"                                                                           \
           : !p##V->connect       ? "connect"                                                                          \
           : !p##V->accept        ? "accept"                                                                           \
           : !p##V->regMr         ? "regMr"                                                                            \
           : !p##V->deregMr       ? "deregMr"                                                                          \
           : !p##V->isend         ? "isend"                                                                            \
           : !p##V->irecv         ? "irecv"                                                                            \
           : !p##V->test          ? "test"                                                                             \
           : !p##V->closeSend     ? "closeSend"                                                                        \
           : !p##V->closeRecv     ? "closeRecv"                                                                        \
           : !p##V->closeListen   ? "closeListen"                                                                      \
                                  : more_missing##V();                                                                   \
  }                                                                                                                    \
  static void bind##V(struct net *out)                                                                                 \
  {                                                                                                                    \
    *out = (struct net){                                                                                               \
        .abi = V,                                                                                                      \
        .plugin = p##V,                                                                                                \
        .name = name##V,                                                                                               \
        .missing = missing##V,                                                                                         \
        .init = init##V,                                                                                               \
        .finalize = finalize##V,                                                                                       \
        .devices = p##V->devices,                                                                                      \
        .properties = properties##V,                                                                                   \
        .listen = listen##V,                                                                                           \
        .connect = connect##V,                                                                                         \
        .accept = accept##V,                                                                                           \
        .reg = reg##V,                                                                                                 \
        .dereg = p##V->deregMr,                                                                                        \
        .isend = isend##V,                                                                                             \
        .irecv = irecv##V,                                                                                             \
        .test = p##V->test,                                                                                            \
        .close_send = p##V->closeSend,                                                                                 \
        .close_recv = p##V->closeRecv,                                                                                 \
        .close_listen = p##V->closeListen,                                                                             \
        .iflush = p##V->iflush,                                                                                        \
        .consumed = CONSUMED,                                                                                          \
        .vdevice = has_vdevice##V() ? vdevice##V : NULL,                                                               \
    };                                                                                                                 \
  }

/* ---- properties: copied member by member, since layouts differ ---- */

#define COPY_V6(to, from)                                                                                              \
  (to)->name = (from)->name, (to)->pciPath = (from)->pciPath, (to)->guid = (from)->guid,                               \
  (to)->ptrSupport = (from)->ptrSupport, (to)->speed = (from)->speed, (to)->port = (from)->port,                       \
  (to)->latency = (from)->latency, (to)->maxComms = (from)->maxComms, (to)->maxRecvs = (from)->maxRecvs
#define COPY_V7(to, from)                                                                                              \
  COPY_V6(to, from), (to)->netDeviceType = (from)->netDeviceType, (to)->netDeviceVersion = (from)->netDeviceVersion
#define COPY_V8(to, from) COPY_V7(to, from), (to)->regIsGlobal = (from)->regIsGlobal
#define COPY_V9(to, from)                                                                                              \
  COPY_V8(to, from), (to)->forceFlush = (from)->forceFlush, (to)->vProps.ndevs = (from)->vProps.ndevs,                 \
                     (to)->vProps.devs[0] = (from)->vProps.devs[0], (to)->maxP2pBytes = (from)->maxP2pBytes,           \
                     (to)->maxCollBytes = (from)->maxCollBytes

#define PROPERTIES(V, ...)                                                                                             \
  static const ncclNet_v##V##_t *p##V;                                                                                 \
  static ncclResult_t properties##V(int dev, ncclNetProperties_v12_t *props)                                           \
  {                                                                                                                    \
    ncclNetProperties_v##V##_t own = {0};                                                                              \
    *props = (ncclNetProperties_v12_t){.vProps = {1, {dev}},                                                           \
                                       .maxP2pBytes = MAX_NET_SIZE,                                                    \
                                       .maxCollBytes = MAX_COLLNET_SIZE,                                               \
                                       .maxMultiRequestSize = 1,                                                       \
                                       .railId = NCCL_NET_ID_UNDEF,                                                    \
                                       .planeId = NCCL_NET_ID_UNDEF};                                                  \
    ncclResult_t result = p##V->getProperties(dev, &own);                                                              \
    __VA_ARGS__;                                                                                                       \
    return result;                                                                                                     \
  }
PROPERTIES(6, COPY_V6(props, &own))
PROPERTIES(7, COPY_V7(props, &own))
PROPERTIES(8, COPY_V8(props, &own))
PROPERTIES(9, COPY_V9(props, &own))
PROPERTIES(10, COPY_V9(props, &own))
PROPERTIES(11, COPY_V9(props, &own); props->maxMultiRequestSize = own.maxMultiRequestSize)
PROPERTIES(12, COPY_V9(props, &own); props->maxMultiRequestSize = own.maxMultiRequestSize; props->railId = own.railId;
           props->planeId = own.planeId)

/* ---- v11, v12: contexts ---- */

#define WITH_CONTEXT(V)                                                                                                \
  static ncclResult_t init##V(void **ctx)                                                                              \
  {                                                                                                                    \
    return p##V->init(ctx, 0x5eed, &config, logger, profile);                                                          \
  }                                                                                                                    \
  static ncclResult_t finalize##V(void *ctx)                                                                           \
  {                                                                                                                    \
    return p##V->finalize(ctx);                                                                                        \
  }                                                                                                                    \
  static ncclResult_t listen##V(void *ctx, int dev, void *handle, void **comm)                                         \
  {                                                                                                                    \
    return p##V->listen(ctx, dev, handle, comm);                                                                       \
  }                                                                                                                    \
  static ncclResult_t connect##V(void *ctx, int dev, void *handle, void **comm)                                        \
  {                                                                                                                    \
    ncclNetDeviceHandle_v##V##_t own = {0}, *offload = &own;                                                           \
    return p##V->connect(ctx, dev, handle, comm, &offload);                                                            \
  }                                                                                                                    \
  static const char *more_missing##V(void)                                                                             \
  {                                                                                                                    \
    return p##V->finalize ? NULL : "finalize";                                                                         \
  }
WITH_CONTEXT(11)
WITH_CONTEXT(12)

/* ---- v6 to v10: none ---- */

typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v6_t; /* which has none, and uses none */

#define WITHOUT_CONTEXT(V, CONNECT, ...)                                                                               \
  static ncclResult_t init##V(void **ctx)                                                                              \
  {                                                                                                                    \
    *ctx = NULL;                                                                                                       \
    return p##V->init(__VA_ARGS__);                                                                                    \
  }                                                                                                                    \
  static ncclResult_t finalize##V(void *ctx)                                                                           \
  {                                                                                                                    \
    (void)ctx;                                                                                                         \
    return ncclSuccess;                                                                                                \
  }                                                                                                                    \
  static ncclResult_t listen##V(void *ctx, int dev, void *handle, void **comm)                                         \
  {                                                                                                                    \
    (void)ctx;                                                                                                         \
    return p##V->listen(dev, handle, comm);                                                                            \
  }                                                                                                                    \
  static ncclResult_t connect##V(void *ctx, int dev, void *handle, void **comm)                                        \
  {                                                                                                                    \
    ncclNetDeviceHandle_v##V##_t own = {0}, *offload = &own;                                                           \
    (void)ctx;                                                                                                         \
    return CONNECT;                                                                                                    \
  }                                                                                                                    \
  static const char *more_missing##V(void)                                                                             \
  {                                                                                                                    \
    return NULL;                                                                                                       \
  }
WITHOUT_CONTEXT(6, ((void)offload, p6->connect(dev, handle, comm)), logger)
WITHOUT_CONTEXT(7, p7->connect(dev, handle, comm, &offload), logger)
WITHOUT_CONTEXT(8, p8->connect(dev, handle, comm, &offload), logger)
WITHOUT_CONTEXT(9, p9->connect(dev, handle, comm, &offload), logger)
WITHOUT_CONTEXT(10, p10->connect(dev, &config, handle, comm, &offload), logger, profile)

/* ---- isend, irecv ---- */

#define WITH_PHANDLES(V)                                                                                               \
  static ncclResult_t isend##V(void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request)           \
  {                                                                                                                    \
    return p##V->isend(comm, data, bytes, tag, mhandle, NULL, request);                                                \
  }                                                                                                                    \
  static ncclResult_t irecv##V(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,              \
                               void **request)                                                                         \
  {                                                                                                                    \
    void *phandles[64] = {NULL};                                                                                       \
    return p##V->irecv(comm, n, data, sizes, tags, mhandles, phandles, request);                                       \
  }
WITH_PHANDLES(10)
WITH_PHANDLES(11)
WITH_PHANDLES(12)

static ncclResult_t isend9(void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request)
{
  return p9->isend(comm, data, bytes, tag, mhandle, request);
}
static ncclResult_t irecv9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
  return p9->irecv(comm, n, data, sizes, tags, mhandles, request);
}

#define WITH_SHORT_SIZES(V)                                                                                            \
  static ncclResult_t isend##V(void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request)           \
  {                                                                                                                    \
    return p##V->isend(comm, data, (int)bytes, tag, mhandle, request);                                                 \
  }                                                                                                                    \
  static ncclResult_t irecv##V(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,              \
                               void **request)                                                                         \
  {                                                                                                                    \
    int narrow[64];                                                                                                    \
    for (int i = 0; i < n; i++) narrow[i] = (int)sizes[i];                                                             \
    return p##V->irecv(comm, n, data, narrow, tags, mhandles, request);                                                \
  }
WITH_SHORT_SIZES(6)
WITH_SHORT_SIZES(7)
WITH_SHORT_SIZES(8)

/* ---- accept, regMr ---- */

#define ACCEPTS(V, ACCEPT)                                                                                             \
  static ncclResult_t accept##V(void *listen, void **comm)                                                             \
  {                                                                                                                    \
    ncclNetDeviceHandle_v##V##_t handle = {0}, *offload = &handle;                                                     \
    return ACCEPT;                                                                                                     \
  }
ACCEPTS(6, ((void)offload, p6->accept(listen, comm)))
ACCEPTS(7, p7->accept(listen, comm, &offload))
ACCEPTS(8, p8->accept(listen, comm, &offload))
ACCEPTS(9, p9->accept(listen, comm, &offload))
ACCEPTS(10, p10->accept(listen, comm, &offload))
ACCEPTS(11, p11->accept(listen, comm, &offload))
ACCEPTS(12, p12->accept(listen, comm, &offload))

#define REGISTERS(V, TYPE)                                                                                             \
  static ncclResult_t reg##V(void *comm, void *data, size_t bytes, int type, void **mhandle)                           \
  {                                                                                                                    \
    return p##V->regMr(comm, data, (TYPE)bytes, type, mhandle);                                                        \
  }
REGISTERS(6, int)
REGISTERS(7, int)
REGISTERS(8, size_t)
REGISTERS(9, size_t)
REGISTERS(10, size_t)
REGISTERS(11, size_t)
REGISTERS(12, size_t)

/* ---- makeVDevice ---- */

#define WITH_VDEVICE(V)                                                                                                \
  static ncclResult_t vdevice##V(int *dev, const int *devs, int count)                                                 \
  {                                                                                                                    \
    ncclNetVDeviceProps_v##V##_t props = {.ndevs = count};                                                             \
    for (int i = 0; i < count; i++) props.devs[i] = devs[i];                                                           \
    return p##V->makeVDevice(dev, &props);                                                                             \
  }                                                                                                                    \
  static bool has_vdevice##V(void)                                                                                     \
  {                                                                                                                    \
    return p##V->makeVDevice != NULL;                                                                                  \
  }
WITH_VDEVICE(9)
WITH_VDEVICE(10)
WITH_VDEVICE(11)
WITH_VDEVICE(12)

#define WITHOUT_VDEVICE(V)                                                                                             \
  static bool has_vdevice##V(void)                                                                                     \
  {                                                                                                                    \
    return false;                                                                                                      \
  }                                                                                                                    \
  static ncclResult_t vdevice##V(int *dev, const int *devs, int count)                                                 \
  {                                                                                                                    \
    (void)dev, (void)devs, (void)count;                                                                                \
    return ncclInternalError;                                                                                          \
  }
WITHOUT_VDEVICE(6)
WITHOUT_VDEVICE(7)
WITHOUT_VDEVICE(8)

COMMON(6, NULL)
COMMON(7, p7->irecvConsumed)
COMMON(8, p8->irecvConsumed)
COMMON(9, p9->irecvConsumed)
COMMON(10, p10->irecvConsumed)
COMMON(11, p11->irecvConsumed)
COMMON(12, p12->irecvConsumed)

bool net_find(void *library, int abi, struct net *net)
{
  char symbol[32];
  snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", abi);
  const void *found = dlsym(library, symbol);
  if (!found) return false;
  switch (abi) {
  case 6:
    p6 = found;
    bind6(net);
    return true;
  case 7:
    p7 = found;
    bind7(net);
    return true;
  case 8:
    p8 = found;
    bind8(net);
    return true;
  case 9:
    p9 = found;
    bind9(net);
    return true;
  case 10:
    p10 = found;
    bind10(net);
    return true;
  case 11:
    p11 = found;
    bind11(net);
    return true;
  case 12:
    p12 = found;
    bind12(net);
    return true;
  default:
    return false;
  }
}
