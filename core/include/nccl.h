/*
 * nccl.h: Tutti's public API, source and binary compatible with NCCL 2.28.
 *
 * Every function exists twice: ncclX is a weak symbol that a profiling library may interpose, pncclX is the same code
 * under a name that nobody interposes.
 *
 * Threads: a communicator is used by one thread at a time; different communicators may be used at once. GetAsyncError
 * and Abort may be called from any thread. Group calls are per thread.
 *
 * Errors: every function returns ncclSuccess or the class of the failure; ncclGetLastError() has the sentence.
 *
 * Buffers: counts are in elements. On the host device they are ordinary memory; the caller owns them and leaves them
 * alone until the operation is complete. With stream NULL, an operation on the host device is complete when its call
 * (or the outermost ncclGroupEnd) returns.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>

/* Applications written for NCCL expect this header to bring in CUDA's. Where they are not installed, or where
 * TUTTI_NO_CUDA_HEADERS is defined, the one type needed is declared here: the same incomplete type that CUDA uses. */
#if !defined(TUTTI_NO_CUDA_HEADERS) && defined(__has_include)
#if __has_include(<cuda_runtime.h>) && __has_include(<cuda_fp16.h>) && __has_include(<cuda_bf16.h>)
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#if defined(__cplusplus) && __has_include(<cuda_fp8.h>)
#include <cuda_fp8.h>
#endif
#define TUTTI_HAVE_CUDA_HEADERS 1
#endif
#endif
#ifndef TUTTI_HAVE_CUDA_HEADERS
typedef struct CUstream_st *cudaStream_t;
#endif

/* The NCCL release whose API this is. Tutti's own version is in tutti.h. */
#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(X, Y, Z)                                                                                          \
  (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's handle of a communicator. */
typedef struct ncclComm *ncclComm_t;
#define NCCL_COMM_NULL NULL

/* A registered memory window. */
typedef struct ncclWindow_vidmem *ncclWindow_t;

/* Names one communicator to be created. Opaque; send its 128 bytes to every rank by any means. One id makes one
 * communicator. */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1, /* a call of the GPU runtime failed */
  ncclSystemError = 2,        /* a call of the operating system failed */
  ncclInternalError = 3,      /* the library broke its own rules: a bug, or corrupted memory */
  ncclInvalidArgument = 4,    /* an argument is wrong */
  ncclInvalidUsage = 5,       /* the environment, or the order or agreement of calls, is wrong */
  ncclRemoteError = 6,        /* another rank died or could not be reached */
  ncclInProgress = 7,         /* a non-blocking communicator is still at work */
  ncclNumResults = 8
} ncclResult_t;

/* Members of ncclConfig_t that the user leaves alone hold these. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_UNDEF_FLOAT -1.0f

/* Window flags and the alignment of a window's buffer in bytes. */
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

/* CTA policies (bit flags). */
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /* end the parent's running operations first */
#define NCCL_REVOKE_DEFAULT 0x00

/* Settings of one communicator. Start from NCCL_CONFIG_INITIALIZER; environment variables win over members. The
 * library reads `size` and `version` to accept structs of older and newer releases. */
typedef struct ncclConfig_v22800 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;            /* 1: calls return when done; 0: they return ncclInProgress */
  int cgaClusterSize;      /* thread block cluster size, GPU only */
  int minCTAs;             /* fewest channels */
  int maxCTAs;             /* most channels */
  const char *netName;     /* name of the net plugin to use; copied */
  int splitShare;          /* 1: communicators split from this one share its resources */
  int trafficClass;        /* handed to the net plugin */
  const char *commName;    /* shown in logs; must outlive the communicator */
  int collnetEnable;       /* 1: in-network reduction where there is any */
  int CTAPolicy;           /* NCCL_CTA_POLICY_* */
  int shrinkShare;         /* as splitShare, for shrinking */
  int nvlsCTAs;            /* channels of multicast collectives */
  int nChannelsPerNetPeer; /* channels of send and receive to a peer over the network */
  int nvlinkCentricSched;  /* 1: schedule for NVLink */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                                        \
  {                                                                                                                    \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_CONFIG_UNDEF_INT,         \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR,                    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,                    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                    \
        NCCL_CONFIG_UNDEF_INT                                                                                          \
  }

/* What ncclGroupSimulateEnd() reports; estimatedTime is in microseconds. */
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER                                                                                      \
  {                                                                                                                    \
    sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_UNDEF_FLOAT              \
  }

/* Reductions. Values from ncclNumOps up to ncclMaxRedOp name operations that the user made. */
typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4, /* floats: sum of inputs each scaled by 1/nranks; integers: sum, then truncating division */
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/* Where the scalar of a PreMulSum operation lives. */
typedef enum {
  ncclScalarDevice = 0,       /* device memory, read when the operation runs */
  ncclScalarHostImmediate = 1 /* host memory, read before the call returns */
} ncclScalarResidence_t;

/* Declares name and its uninterposed twin. */
#define TUTTI_API(type, name, ...)                                                                                     \
  type name(__VA_ARGS__);                                                                                              \
  type p##name(__VA_ARGS__);

/* Version and errors. */
TUTTI_API(ncclResult_t, ncclGetVersion, int *version)
TUTTI_API(const char *, ncclGetErrorString, ncclResult_t result)
/* The last error sentence: of `comm` if it failed, else of the process. Valid until the next error. */
TUTTI_API(const char *, ncclGetLastError, ncclComm_t comm)
/* ncclInProgress while a call on a non-blocking communicator is at work; else the communicator's first failure, or
 * ncclSuccess. Lock-free; never blocks; any thread. */
TUTTI_API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *asyncError)
TUTTI_API(void, ncclResetDebugInit, void)

/* Life of a communicator. */
TUTTI_API(ncclResult_t, ncclGetUniqueId, ncclUniqueId *uniqueId)
TUTTI_API(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
TUTTI_API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
          ncclConfig_t *config)
TUTTI_API(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *newcomm, int nranks, int myrank, int nId,
          ncclUniqueId *commIds, ncclConfig_t *config)
/* ndev communicators of one process, rank i on devlist[i] (NULL: device i). */
TUTTI_API(ncclResult_t, ncclCommInitAll, ncclComm_t *comm, int ndev, const int *devlist)
TUTTI_API(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
TUTTI_API(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
TUTTI_API(ncclResult_t, ncclCommAbort, ncclComm_t comm)
TUTTI_API(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int revokeFlags)
TUTTI_API(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
TUTTI_API(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
          ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags)
TUTTI_API(ncclResult_t, ncclCommCount, const ncclComm_t comm, int *count)
TUTTI_API(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int *device)
TUTTI_API(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int *rank)

/* Memory and registration. */
TUTTI_API(ncclResult_t, ncclMemAlloc, void **ptr, size_t size)
TUTTI_API(ncclResult_t, ncclMemFree, void *ptr)
TUTTI_API(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void *buff, size_t size, void **handle)
TUTTI_API(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void *handle)
TUTTI_API(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
          int winFlags)
TUTTI_API(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t win)

/* Reduction operations made by the user: each input is multiplied by *scalar, then summed. */
TUTTI_API(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
          ncclScalarResidence_t residence, ncclComm_t comm)
TUTTI_API(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm)

/* Collectives: every rank calls the same one with the same count, type, op and root. In place means
 * recvbuff == sendbuff; for ReduceScatter recvbuff == sendbuff + rank * recvcount, for AllGather
 * sendbuff == recvbuff + rank * sendcount, and likewise for Gather's sendbuff and Scatter's recvbuff on the root. */
TUTTI_API(ncclResult_t, ncclReduce, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
TUTTI_API(ncclResult_t, ncclBcast, void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
          cudaStream_t stream)
TUTTI_API(ncclResult_t, ncclBroadcast, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          int root, ncclComm_t comm, cudaStream_t stream)
TUTTI_API(ncclResult_t, ncclAllReduce, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
/* sendbuff holds nranks * recvcount elements. */
TUTTI_API(ncclResult_t, ncclReduceScatter, const void *sendbuff, void *recvbuff, size_t recvcount,
          ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
/* recvbuff holds nranks * sendcount elements. */
TUTTI_API(ncclResult_t, ncclAllGather, const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
          ncclComm_t comm, cudaStream_t stream)
/* count is per peer, for the three below. */
TUTTI_API(ncclResult_t, ncclAlltoAll, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          ncclComm_t comm, cudaStream_t stream)
TUTTI_API(ncclResult_t, ncclGather, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          int root, ncclComm_t comm, cudaStream_t stream)
TUTTI_API(ncclResult_t, ncclScatter, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          int root, ncclComm_t comm, cudaStream_t stream)

/* Point to point: the k-th send of a pair meets its k-th receive. Within a group all run at once. */
TUTTI_API(ncclResult_t, ncclSend, const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
          ncclComm_t comm, cudaStream_t stream)
TUTTI_API(ncclResult_t, ncclRecv, void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
          cudaStream_t stream)

/* Calls between Start and the matching End form one operation; nested groups join the outermost. */
TUTTI_API(ncclResult_t, ncclGroupStart, void)
TUTTI_API(ncclResult_t, ncclGroupEnd, void)
TUTTI_API(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t *simInfo)

#undef TUTTI_API

#ifdef __cplusplus
}
#endif

#endif
