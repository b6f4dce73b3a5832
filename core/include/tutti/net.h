/*
 * tutti/net.h: the net plugin ABI, versions 6 to 12, compatible with NCCL's.
 *
 * A net plugin is a shared library that exports one or more data objects `ncclNetPlugin_vN` of type ncclNet_vN_t. The
 * loader takes the newest version that it knows, copies the struct, and never writes to it. A plugin that exports v8
 * and v11 loads into every NCCL from 2.20 on and into Tutti. Everything is documented once, at ncclNet_v12_t and
 * ncclNetProperties_v12_t; older versions are documented by their difference from the next newer one.
 *
 * Rules that hold for every member
 *   - Return values: ncclSuccess; ncclSystemError when the operating system or the NIC fails; ncclInternalError when
 *     the caller broke a rule of this page; ncclInvalidUsage for mistakes of the user (environment, a message larger
 *     than its receive buffer); ncclRemoteError when the peer is lost; ncclUnhandledCudaError when the GPU runtime
 *     fails. ncclInProgress has no meaning here. An error of isend, irecv, iflush or test ends the communicator.
 *   - Nothing blocks on a peer. What cannot be done now returns ncclSuccess with a NULL object, and is called again.
 *   - Objects that the plugin returns (comms, requests, memory handles, contexts) are opaque to the caller, which gives
 *     them back through the member named at each. The caller owns data buffers and keeps them until a request is done.
 *   - "May be NULL" says which members a plugin may leave NULL. All others must be set.
 *
 * Threads
 *   - init, devices, getProperties, makeVDevice, finalize: a thread that makes or destroys a communicator; one such
 *     call at a time in the process, except that getProperties may also be called by a proxy thread at any time.
 *   - listen, connect, accept, regMr, regMrDmaBuf, deregMr, close*, getDeviceMr: a proxy service thread.
 *   - isend, irecv, iflush, test, irecvConsumed: a proxy progress thread.
 *   - setNetAttr: either of the two.
 *   A comm's data path (isend ... irecvConsumed) is used by one thread at a time, but a registration on the same comm
 *   may run beside it, and threads of several communicators use the plugin at once.
 *   Under NCCL the GPU device of the rank, if it has one, is current in all of them; Tutti leaves the threads' as they
 *   are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TUTTI_NET_H_
#define TUTTI_NET_H_

#include <stddef.h>
#include <stdint.h>
#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#define TUTTI_NET_ASSERT(condition) static_assert(condition, #condition)
#else
#define TUTTI_NET_ASSERT(condition) _Static_assert(condition, #condition)
#endif

/* ---- Logging and profiling: functions that the caller hands to the plugin ---- */

typedef enum {
  NCCL_LOG_NONE = 0,
  NCCL_LOG_VERSION = 1,
  NCCL_LOG_WARN = 2, /* an error: always shown unless logging is off, and kept as the last error */
  NCCL_LOG_INFO = 3,
  NCCL_LOG_ABORT = 4,
  NCCL_LOG_TRACE = 5
} ncclDebugLogLevel;

/* Subsystems of a log line; bits. */
typedef enum {
  NCCL_INIT = 0x1,
  NCCL_COLL = 0x2,
  NCCL_P2P = 0x4,
  NCCL_SHM = 0x8,
  NCCL_NET = 0x10,
  NCCL_GRAPH = 0x20,
  NCCL_TUNING = 0x40,
  NCCL_ENV = 0x80,
  NCCL_ALLOC = 0x100,
  NCCL_CALL = 0x200,
  NCCL_PROXY = 0x400,
  NCCL_NVLS = 0x800,
  NCCL_BOOTSTRAP = 0x1000,
  NCCL_REG = 0x2000,
  NCCL_PROFILE = 0x4000,
  NCCL_RAS = 0x8000,
  NCCL_DESTROY = 0x10000,
  NCCL_ALLOC_HOST = 0x20000,
  NCCL_ALL = ~0
} ncclDebugLogSubSys;

/* Writes one line, printf style, without a newline. `flags` are ncclDebugLogSubSys bits. `filefunc` is the file name
 * for NCCL_LOG_WARN, the function name for NCCL_LOG_TRACE, and unused for NCCL_LOG_INFO. Any thread. */
typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char *filefunc, int line,
                                  const char *fmt, ...);

enum {
  ncclProfilerNetEventStart = 0,
  ncclProfilerNetEventStop = 1,
  ncclProfilerNetEventUpdate = 2,
  ncclProfilerNetEventUpdateAndStop = 3
};

/* Reports an event to the profiler. `type` is one of the above. *eHandle is written at a start and given back with the
 * later calls of the same event; NULL means that nobody wants it. `pHandle` is the phandle of the isend or irecv
 * concerned. `pluginId` says what extData points at: bits 0-15 the version of the event, bits 16-31 its kind (1: IB,
 * 2: socket). Any thread. */
typedef ncclResult_t (*ncclProfilerCallback_t)(void **eHandle, int type, void *pHandle, int64_t pluginId,
                                               void *extData);

/* The bits of ncclNetAttr_v12_t.op. */
typedef enum {
  ncclFuncBroadcast = 0,
  ncclFuncReduce = 1,
  ncclFuncAllGather = 2,
  ncclFuncReduceScatter = 3,
  ncclFuncAllReduce = 4,
  ncclFuncSendRecv = 5,
  ncclFuncSend = 6,
  ncclFuncRecv = 7,
  ncclFuncAlltoAll = 8,
  ncclFuncScatter = 9,
  ncclFuncGather = 10,
  ncclNumFuncs = 11
} ncclFunc_t;

/* ---- Constants ---- */

#define NCCL_NET_HANDLE_MAXSIZE 128 /* bytes of a listen handle */
#define NCCL_NET_MAX_REQUESTS 32    /* requests in flight that a comm must allow; a send comm maxRecvs times as many */
#define NCCL_NET_MAX_REQUESTS_V6 8  /* the same for v6 */

/* ptrSupport flags; regMr's type is one of the first two. */
#define NCCL_PTR_HOST 0x1
#define NCCL_PTR_CUDA 0x2
#define NCCL_PTR_DMABUF 0x4

/* v9 and newer: the value of *request when irecv is entered, see there. */
#define NCCL_NET_OPTIONAL_RECV_COMPLETION 0x1
#define NCCL_NET_MULTI_REQUEST 0x2

#define NCCL_MAX_NET_SIZE_BYTES (1LL << 40) /* upper limit of maxP2pBytes and maxCollBytes */
#define MAX_NET_SIZE (1LL << 30)            /* bytes of a message through v8 and older */
#define MAX_COLLNET_SIZE (1LL << 29)        /* maxCollBytes of v8 and older */

#define NCCL_NET_MAX_DEVS_PER_NIC 4     /* v9 to v11 */
#define NCCL_NET_MAX_DEVS_PER_NIC_V12 8 /* v12 */

#define NCCL_NET_TRAFFIC_CLASS_UNDEF -1
#define NCCL_NET_ATTR_UNDEF -1
#define NCCL_NET_ID_UNDEF -1

/* ---- Device offload ---- */

/* Where the data path of a connection runs. Tutti drives all connections from the host and refuses plugins of any
 * other type by name. */
typedef enum {
  NCCL_NET_DEVICE_HOST = 0,
  NCCL_NET_DEVICE_UNPACK = 1,
  NCCL_NET_DEVICE_GIN_PROXY = 2,
  NCCL_NET_DEVICE_GIN_GDAKI = 3,
  NCCL_NET_DEVICE_GIN_GPI = 4
} ncclNetDeviceType;

#define NCCL_NET_DEVICE_INVALID_VERSION 0
#define NCCL_NET_DEVICE_UNPACK_VERSION 7
#define NCCL_NET_MTU_SIZE 4096

/* What connect and accept hand to the kernel for an offloaded connection. */
typedef struct {
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  void *handle;           /* device memory, owned by the plugin, or NULL */
  size_t size;            /* bytes at handle */
  int needsProxyProgress; /* 0: the proxy leaves this connection alone */
} ncclNetDeviceHandle_v7_t;
typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v8_t;
typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v9_t;
typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v10_t;
typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v11_t;
typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v12_t;

/* ---- Version 12 ---- */

/* The physical devices of a virtual one. A physical device lists itself. */
typedef struct {
  int ndevs;
  int devs[NCCL_NET_MAX_DEVS_PER_NIC_V12];
} ncclNetVDeviceProps_v12_t;

/* What a communicator's user asked of the network. */
typedef struct {
  int trafficClass; /* meaning is the plugin's; NCCL_NET_TRAFFIC_CLASS_UNDEF when not set */
} ncclNetCommConfig_v12_t;

/* Properties of a device. The caller zeroes the struct first. */
typedef struct {
  char *name;                      /* for logs; owned by the plugin, valid until it is unloaded */
  char *pciPath;                   /* directory of the PCI device under /sys, or NULL for a virtual one; as name */
  uint64_t guid;                   /* devices of equal guid share one physical port and its bandwidth */
  int ptrSupport;                  /* NCCL_PTR_* flags: memory that regMr takes */
  int regIsGlobal;                 /* 1: a registration may be used with every comm of the device */
  int forceFlush;                  /* 1: iflush is needed after every receive into GPU memory */
  int speed;                       /* megabits a second */
  int port;                        /* port number, for logs */
  float latency;                   /* microseconds; 0: unknown */
  int maxComms;                    /* comms that can exist at once */
  int maxRecvs;                    /* largest n of irecv; at least 1 */
  ncclNetDeviceType netDeviceType; /* offload type and */
  int netDeviceVersion;            /* its version */
  ncclNetVDeviceProps_v12_t vProps;
  size_t maxP2pBytes;      /* largest message, 1 to NCCL_MAX_NET_SIZE_BYTES */
  size_t maxCollBytes;     /* largest collective operation, same range */
  int maxMultiRequestSize; /* requests in one multi-request; 1: none */
  int16_t railId;          /* rail that the port is wired to; NCCL_NET_ID_UNDEF when unknown */
  int16_t planeId;         /* plane within the rail; as railId */
} ncclNetProperties_v12_t;

/* What a communicator is about to do; hints. */
typedef struct {
  int32_t maxConcurrentPeers; /* peers that talk at once */
  int32_t minConcurrentPeers;
  int32_t maxFlowsPerPeer; /* connections a peer that are busy at once */
  int32_t minFlowsPerPeer;
} ncclNetCommAttr_v12_t; /* NCCL_NET_ATTR_UNDEF in a member: unknown */
typedef struct {
  ncclNetCommAttr_v12_t sendCommAttr;
  ncclNetCommAttr_v12_t recvCommAttr;
  uint32_t op;    /* bit i: ncclFunc_t i; all ones: unknown */
  uint32_t algo;  /* bit i: tree, ring, collnet direct, collnet chain, nvls, nvls tree, pat; all ones: unknown */
  uint32_t proto; /* bit i: LL, LL128, Simple; all ones: unknown */
} ncclNetAttr_v12_t;

#define NCCL_NET_ATTR_INIT                                                                                             \
  {                                                                                                                    \
    {NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF},                              \
        {NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF},                          \
        (uint32_t)NCCL_NET_ATTR_UNDEF, (uint32_t)NCCL_NET_ATTR_UNDEF, (uint32_t)NCCL_NET_ATTR_UNDEF                    \
  }

typedef struct {
  /* The network's name: shown in logs, and what NCCL_NET and ncclConfig_t.netName are compared with, ignoring case. */
  const char *name;

  /* Starts the plugin for one communicator; called once for each, before anything else. *ctx is the plugin's and comes
   * back to listen, connect, setNetAttr and finalize; NULL is a valid context. commId is equal on all ranks of the
   * communicator. config is valid during the call only. The two functions stay valid as long as the plugin is loaded.
   * An error disables the plugin in this process, and the next one is tried; finalize is then not called. */
  ncclResult_t (*init)(void **ctx, uint64_t commId, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t logFunction,
                       ncclProfilerCallback_t profFunction);

  /* The number of devices, physical ones first, then those that makeVDevice made. 0, like an error, disables the
   * plugin in this process, and the next one is tried. */
  ncclResult_t (*devices)(int *ndev);

  /* Fills *props for 0 <= dev < *ndev. */
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t *props);

  /* Opens a place to connect to and describes it in the NCCL_NET_HANDLE_MAXSIZE bytes at `handle`, which the caller
   * sends to the peer as they are. *listenComm must not be NULL on success; it ends with closeListen, perhaps without
   * ever having been given to accept. */
  ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);

  /* Connects to a peer's handle. *sendComm is NULL on entry; leaving it NULL means "not yet": the caller repeats the
   * call later with the same arguments. `handle` is the same writable storage in every repetition, so the plugin may
   * keep the state of the attempt in it. The same thread polls accept and other connections meanwhile, so waiting here
   * deadlocks. sendDevComm may be NULL; if *sendDevComm is not NULL, device offload is wanted and the zeroed struct
   * that it points at may be filled; the plugin sets *sendDevComm to NULL if it does not offload. If an error is
   * returned with *sendComm set, the caller closes it. */
  ncclResult_t (*connect)(void *ctx, int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v12_t **sendDevComm);

  /* The other side of connect, with the same rules. The caller closes the listenComm after success. */
  ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v12_t **recvDevComm);

  /* Makes `size` bytes at `data` usable with `comm`, a send or a receive comm. `type` is NCCL_PTR_HOST, or
   * NCCL_PTR_CUDA if ptrSupport has it. *mhandle is the plugin's and comes back to isend, irecv, iflush and deregMr.
   * NULL is a valid handle for the caller's own buffers; for a buffer of the user it means "not registered", and data
   * is staged. An error is fatal for own buffers and means staging for a buffer of the user. */
  ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);

  /* The same for memory exported as a dma-buf; `data` begins `offset` bytes into it. Called if ptrSupport has
   * NCCL_PTR_DMABUF. The caller closes fd when the call returns. May be NULL. */
  ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);

  /* Ends a registration. `comm` is the one it was made with, and still open. */
  ncclResult_t (*deregMr)(void *comm, void *mhandle);

  /* Starts sending `size` bytes, 0 allowed. *request must be written on every path, since the caller does not clear it:
   * NULL says that nothing was posted and that the caller will call again with the same arguments. `tag` picks the
   * receive buffer of a grouped receive and may be ignored where maxRecvs is 1. `phandle` goes to profFunction; NULL
   * when nobody profiles; it stays valid until the request is done. */
  ncclResult_t (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);

  /* Starts receiving n messages, 1 <= n <= maxRecvs, under one request. Buffer i of sizes[i] bytes takes the message of
   * tags[i], which may be shorter; a longer one is an error. A send matches a buffer of the oldest receive that is not
   * complete, so messages of one connection never overtake each other. *request as in isend; on entry it is NULL, or
   * NCCL_NET_OPTIONAL_RECV_COMPLETION, which allows (n == 1) a request that is done at once, because the reader checks
   * flags inside the data. */
  ncclResult_t (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                        void **request);

  /* Makes received data visible to the GPU. Called after a receive into GPU memory that moved at least one byte;
   * `sizes` are the sizes received, some perhaps 0. *request == NULL means, other than in isend, that it is already
   * complete. May be NULL if no device has NCCL_PTR_CUDA. */
  ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);

  /* *done becomes 1 when the request is complete, else 0; the request is then gone. `sizes` may be NULL; else it is
   * one int for a send and n for a receive, and exactly those are written, in bytes, when done. Sizes of 2 GiB and
   * more, which isend and irecv allow, do not fit and are cut off: who moves such messages must know their sizes
   * otherwise. */
  ncclResult_t (*test)(void *request, int *done, int *sizes);

  /* End a comm, also one that is half connected or has requests in flight, which are dropped. */
  ncclResult_t (*closeSend)(void *sendComm);
  ncclResult_t (*closeRecv)(void *recvComm);
  ncclResult_t (*closeListen)(void *listenComm);

  /* Device offload only: what the kernel needs of a memory handle. May be NULL. */
  ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);

  /* Device offload only: the data of `request`, an irecv of n messages that has tested done, was consumed. May be
   * NULL. */
  ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);

  /* Fuses the 2 or more physical devices of *props to a virtual one and stores its index in *d. An error leaves the
   * physical devices as they were. May be NULL: devices are then never fused. */
  ncclResult_t (*makeVDevice)(int *d, ncclNetVDeviceProps_v12_t *props);

  /* Ends what init began, once a successful init, after all comms of that communicator were closed. */
  ncclResult_t (*finalize)(void *ctx);

  /* Takes hints before connections or transfers; the result is ignored. May be NULL. */
  ncclResult_t (*setNetAttr)(void *ctx, ncclNetAttr_v12_t *netAttr);
} ncclNet_v12_t;

/* ---- Version 11: at most 4 physical devices in a virtual one; no railId and planeId ---- */

typedef struct {
  int ndevs;
  int devs[NCCL_NET_MAX_DEVS_PER_NIC];
} ncclNetVDeviceProps_v11_t;

typedef ncclNetCommConfig_v12_t ncclNetCommConfig_v11_t;
typedef ncclNetCommAttr_v12_t ncclNetCommAttr_v11_t;
typedef ncclNetAttr_v12_t ncclNetAttr_v11_t;

typedef struct {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  ncclNetVDeviceProps_v11_t vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
} ncclNetProperties_v11_t;

typedef struct {
  const char *name;
  ncclResult_t (*init)(void **ctx, uint64_t commId, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t logFunction,
                       ncclProfilerCallback_t profFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t *props);
  ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(void *ctx, int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v11_t **sendDevComm);
  ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v11_t **recvDevComm);
  ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  ncclResult_t (*deregMr)(void *comm, void *mhandle);
  ncclResult_t (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
  ncclResult_t (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                        void **request);
  ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
  ncclResult_t (*test)(void *request, int *done, int *sizes);
  ncclResult_t (*closeSend)(void *sendComm);
  ncclResult_t (*closeRecv)(void *recvComm);
  ncclResult_t (*closeListen)(void *listenComm);
  ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);
  ncclResult_t (*makeVDevice)(int *d, ncclNetVDeviceProps_v11_t *props);
  ncclResult_t (*finalize)(void *ctx);
  ncclResult_t (*setNetAttr)(void *ctx, ncclNetAttr_v11_t *netAttr);
} ncclNet_v11_t;

/* ---- Version 10: one state for the process instead of a context for each communicator ----
 * init is called when the plugin is loaded and again only after its last communicator has gone; there is no finalize
 * and no setNetAttr. The communicator's config comes with every connect and stays valid as long as the communicator.
 * No maxMultiRequestSize (taken as 1). */

typedef ncclNetVDeviceProps_v11_t ncclNetVDeviceProps_v9_t;
typedef ncclNetVDeviceProps_v9_t ncclNetVDeviceProps_v10_t;
typedef ncclNetCommConfig_v12_t ncclNetCommConfig_v10_t;

typedef struct {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  ncclNetVDeviceProps_v9_t vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
} ncclNetProperties_v9_t;
typedef ncclNetProperties_v9_t ncclNetProperties_v10_t;

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction, ncclProfilerCallback_t profFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v10_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **sendComm,
                          ncclNetDeviceHandle_v10_t **sendDevComm);
  ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v10_t **recvDevComm);
  ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  ncclResult_t (*deregMr)(void *comm, void *mhandle);
  ncclResult_t (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
  ncclResult_t (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                        void **request);
  ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
  ncclResult_t (*test)(void *request, int *done, int *sizes);
  ncclResult_t (*closeSend)(void *sendComm);
  ncclResult_t (*closeRecv)(void *recvComm);
  ncclResult_t (*closeListen)(void *listenComm);
  ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);
  ncclResult_t (*makeVDevice)(int *d, ncclNetVDeviceProps_v10_t *props);
} ncclNet_v10_t;

/* ---- Version 9: no profiler (no profFunction, no phandles) and no config in connect ---- */

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v9_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v9_t **sendDevComm);
  ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v9_t **recvDevComm);
  ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  ncclResult_t (*deregMr)(void *comm, void *mhandle);
  ncclResult_t (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle, void **request);
  ncclResult_t (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request);
  ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
  ncclResult_t (*test)(void *request, int *done, int *sizes);
  ncclResult_t (*closeSend)(void *sendComm);
  ncclResult_t (*closeRecv)(void *recvComm);
  ncclResult_t (*closeListen)(void *listenComm);
  ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);
  ncclResult_t (*makeVDevice)(int *d, ncclNetVDeviceProps_v9_t *props);
} ncclNet_v9_t;

/* ---- Version 8: messages of at most MAX_NET_SIZE bytes, sizes as int; no virtual devices ----
 * No forceFlush (0), vProps, maxP2pBytes (MAX_NET_SIZE) and maxCollBytes (MAX_COLLNET_SIZE). *request is never
 * NCCL_NET_OPTIONAL_RECV_COMPLETION. */

typedef struct {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
} ncclNetProperties_v8_t;

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v8_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v8_t **sendDevComm);
  ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v8_t **recvDevComm);
  ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  ncclResult_t (*deregMr)(void *comm, void *mhandle);
  ncclResult_t (*isend)(void *sendComm, void *data, int size, int tag, void *mhandle, void **request);
  ncclResult_t (*irecv)(void *recvComm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
  ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
  ncclResult_t (*test)(void *request, int *done, int *sizes);
  ncclResult_t (*closeSend)(void *sendComm);
  ncclResult_t (*closeRecv)(void *recvComm);
  ncclResult_t (*closeListen)(void *listenComm);
  ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);
} ncclNet_v8_t;

/* ---- Version 7: regMr of less than 2 GiB, size as int; no regIsGlobal (0) ---- */

typedef struct {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
} ncclNetProperties_v7_t;

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v7_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v7_t **sendDevComm);
  ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v7_t **recvDevComm);
  ncclResult_t (*regMr)(void *comm, void *data, int size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  ncclResult_t (*deregMr)(void *comm, void *mhandle);
  ncclResult_t (*isend)(void *sendComm, void *data, int size, int tag, void *mhandle, void **request);
  ncclResult_t (*irecv)(void *recvComm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
  ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
  ncclResult_t (*test)(void *request, int *done, int *sizes);
  ncclResult_t (*closeSend)(void *sendComm);
  ncclResult_t (*closeRecv)(void *recvComm);
  ncclResult_t (*closeListen)(void *listenComm);
  ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);
} ncclNet_v7_t;

/* ---- Version 6: no device offload: no device handles, getDeviceMr, irecvConsumed, netDeviceType ----
 * Only NCCL_NET_MAX_REQUESTS_V6 requests in flight were promised by plugins of this version. */

typedef struct {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
} ncclNetProperties_v6_t;

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v6_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(int dev, void *handle, void **sendComm);
  ncclResult_t (*accept)(void *listenComm, void **recvComm);
  ncclResult_t (*regMr)(void *comm, void *data, int size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  ncclResult_t (*deregMr)(void *comm, void *mhandle);
  ncclResult_t (*isend)(void *sendComm, void *data, int size, int tag, void *mhandle, void **request);
  ncclResult_t (*irecv)(void *recvComm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
  ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
  ncclResult_t (*test)(void *request, int *done, int *sizes);
  ncclResult_t (*closeSend)(void *sendComm);
  ncclResult_t (*closeRecv)(void *recvComm);
  ncclResult_t (*closeListen)(void *listenComm);
} ncclNet_v6_t;

/* ---- The newest version under its short names ---- */

typedef ncclNet_v12_t ncclNet_t;
typedef ncclNetProperties_v12_t ncclNetProperties_t;
typedef ncclNetVDeviceProps_v12_t ncclNetVDeviceProps_t;
typedef ncclNetCommConfig_v12_t ncclNetCommConfig_t;
typedef ncclNetCommAttr_v12_t ncclNetCommAttr_t;
typedef ncclNetAttr_v12_t ncclNetAttr_t;
typedef ncclNetDeviceHandle_v12_t ncclNetDeviceHandle_t;
#define NCCL_NET_PLUGIN_SYMBOL ncclNetPlugin_v12

/* ---- The layouts are the ABI (64-bit platforms) ---- */

TUTTI_NET_ASSERT(sizeof(void *) == 8 && sizeof(size_t) == 8 && sizeof(ncclNetDeviceType) == 4);
TUTTI_NET_ASSERT(sizeof(ncclResult_t) == 4);
TUTTI_NET_ASSERT(sizeof(ncclNet_v12_t) == 176 && sizeof(ncclNet_v11_t) == 176);
TUTTI_NET_ASSERT(sizeof(ncclNet_v10_t) == 160 && sizeof(ncclNet_v9_t) == 160);
TUTTI_NET_ASSERT(sizeof(ncclNet_v8_t) == 152 && sizeof(ncclNet_v7_t) == 152 && sizeof(ncclNet_v6_t) == 136);
TUTTI_NET_ASSERT(offsetof(ncclNet_v12_t, regMr) == 56 && offsetof(ncclNet_v12_t, isend) == 80);
TUTTI_NET_ASSERT(offsetof(ncclNet_v12_t, test) == 104 && offsetof(ncclNet_v12_t, getDeviceMr) == 136);
TUTTI_NET_ASSERT(offsetof(ncclNet_v12_t, makeVDevice) == 152 && offsetof(ncclNet_v12_t, setNetAttr) == 168);
TUTTI_NET_ASSERT(sizeof(ncclNetProperties_v12_t) == 128 && sizeof(ncclNetProperties_v11_t) == 112);
TUTTI_NET_ASSERT(sizeof(ncclNetProperties_v10_t) == 104 && sizeof(ncclNetProperties_v9_t) == 104);
TUTTI_NET_ASSERT(sizeof(ncclNetProperties_v8_t) == 64 && sizeof(ncclNetProperties_v7_t) == 56);
TUTTI_NET_ASSERT(sizeof(ncclNetProperties_v6_t) == 48);
TUTTI_NET_ASSERT(offsetof(ncclNetProperties_v12_t, speed) == 36 && offsetof(ncclNetProperties_v12_t, vProps) == 64);
TUTTI_NET_ASSERT(offsetof(ncclNetProperties_v12_t, maxP2pBytes) == 104);
TUTTI_NET_ASSERT(offsetof(ncclNetProperties_v12_t, railId) == 124 && offsetof(ncclNetProperties_v12_t, planeId) == 126);
TUTTI_NET_ASSERT(offsetof(ncclNetProperties_v11_t, maxP2pBytes) == 88);
TUTTI_NET_ASSERT(offsetof(ncclNetProperties_v9_t, maxCollBytes) == 96);
TUTTI_NET_ASSERT(offsetof(ncclNetProperties_v8_t, speed) == 32 && offsetof(ncclNetProperties_v7_t, speed) == 28);
TUTTI_NET_ASSERT(sizeof(ncclNetVDeviceProps_v12_t) == 36 && sizeof(ncclNetVDeviceProps_v11_t) == 20);
TUTTI_NET_ASSERT(sizeof(ncclNetAttr_v12_t) == 44 && sizeof(ncclNetDeviceHandle_v12_t) == 32);
TUTTI_NET_ASSERT(offsetof(ncclNetDeviceHandle_v12_t, needsProxyProgress) == 24);

#undef TUTTI_NET_ASSERT

#ifdef __cplusplus
}
#endif

#endif
