/* Prints every size, offset and value of nccl.h that a compiled program depends on. Built twice, with Tutti's header
 * and with the CUDA toolkit's own, the two outputs must be equal. */
#include <stdio.h>
#include <stddef.h>
#include "nccl.h"

#define SIZE(type) printf("sizeof " #type " %zu align %zu\n", sizeof(type), _Alignof(type))
#define OFFSET(type, member)                                                                                           \
  printf("offset " #type "." #member " %zu size %zu\n", offsetof(type, member), sizeof(((type *)0)->member))
#define VALUE(name) printf("value " #name " %lld\n", (long long)(name))
/* A function's type must be the one written here, or this does not compile. */
#define FUNCTION(name, type, ...)                                                                                      \
  do {                                                                                                                 \
    type (*f)(__VA_ARGS__) = name;                                                                                     \
    type (*g)(__VA_ARGS__) = p##name;                                                                                  \
    printf("function " #name " %d\n", f != NULL && g != NULL);                                                         \
  } while (0)

static void types(void)
{
  SIZE(ncclComm_t);
  SIZE(ncclWindow_t);
  SIZE(ncclUniqueId);
  SIZE(ncclResult_t);
  SIZE(ncclRedOp_t);
  SIZE(ncclDataType_t);
  SIZE(ncclScalarResidence_t);
  SIZE(ncclConfig_t);
  SIZE(ncclSimInfo_t);
  SIZE(cudaStream_t);
  OFFSET(ncclConfig_t, size);
  OFFSET(ncclConfig_t, magic);
  OFFSET(ncclConfig_t, version);
  OFFSET(ncclConfig_t, blocking);
  OFFSET(ncclConfig_t, cgaClusterSize);
  OFFSET(ncclConfig_t, minCTAs);
  OFFSET(ncclConfig_t, maxCTAs);
  OFFSET(ncclConfig_t, netName);
  OFFSET(ncclConfig_t, splitShare);
  OFFSET(ncclConfig_t, trafficClass);
  OFFSET(ncclConfig_t, commName);
  OFFSET(ncclConfig_t, collnetEnable);
  OFFSET(ncclConfig_t, CTAPolicy);
  OFFSET(ncclConfig_t, shrinkShare);
  OFFSET(ncclConfig_t, nvlsCTAs);
  OFFSET(ncclConfig_t, nChannelsPerNetPeer);
  OFFSET(ncclConfig_t, nvlinkCentricSched);
  OFFSET(ncclSimInfo_t, size);
  OFFSET(ncclSimInfo_t, magic);
  OFFSET(ncclSimInfo_t, version);
  OFFSET(ncclSimInfo_t, estimatedTime);
}

static void values(void)
{
  VALUE(ncclSuccess);
  VALUE(ncclUnhandledCudaError);
  VALUE(ncclSystemError);
  VALUE(ncclInternalError);
  VALUE(ncclInvalidArgument);
  VALUE(ncclInvalidUsage);
  VALUE(ncclRemoteError);
  VALUE(ncclInProgress);
  VALUE(ncclNumResults);
  VALUE(ncclSum);
  VALUE(ncclProd);
  VALUE(ncclMax);
  VALUE(ncclMin);
  VALUE(ncclAvg);
  VALUE(ncclNumOps);
  VALUE(ncclMaxRedOp);
  VALUE(ncclNumOps_dummy);
  VALUE(ncclInt8);
  VALUE(ncclChar);
  VALUE(ncclUint8);
  VALUE(ncclInt32);
  VALUE(ncclInt);
  VALUE(ncclUint32);
  VALUE(ncclInt64);
  VALUE(ncclUint64);
  VALUE(ncclFloat16);
  VALUE(ncclHalf);
  VALUE(ncclFloat32);
  VALUE(ncclFloat);
  VALUE(ncclFloat64);
  VALUE(ncclDouble);
  VALUE(ncclBfloat16);
  VALUE(ncclFloat8e4m3);
  VALUE(ncclFloat8e5m2);
  VALUE(ncclNumTypes);
  VALUE(ncclScalarDevice);
  VALUE(ncclScalarHostImmediate);
  VALUE(NCCL_MAJOR);
  VALUE(NCCL_MINOR);
  VALUE(NCCL_VERSION_CODE);
  VALUE(NCCL_VERSION(2, 8, 4));
  VALUE(NCCL_VERSION(2, 28, 9));
  VALUE(NCCL_UNIQUE_ID_BYTES);
  VALUE(NCCL_CONFIG_UNDEF_INT);
  VALUE(NCCL_SPLIT_NOCOLOR);
  VALUE(NCCL_WIN_DEFAULT);
  VALUE(NCCL_WIN_COLL_SYMMETRIC);
  VALUE(NCCL_WIN_REQUIRED_ALIGNMENT);
  VALUE(NCCL_CTA_POLICY_DEFAULT);
  VALUE(NCCL_CTA_POLICY_EFFICIENCY);
  VALUE(NCCL_CTA_POLICY_ZERO);
  VALUE(NCCL_SHRINK_DEFAULT);
  VALUE(NCCL_SHRINK_ABORT);
  VALUE(NCCL_REVOKE_DEFAULT);
}

static void initialisers(void)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;
  printf("config %zu %x %u %d %d %d %d %d %d %d %d %d %d %d %d %d %d\n", config.size, config.magic, config.version,
         config.blocking, config.cgaClusterSize, config.minCTAs, config.maxCTAs, config.netName == NULL,
         config.splitShare, config.trafficClass, config.commName == NULL, config.collnetEnable, config.CTAPolicy,
         config.shrinkShare, config.nvlsCTAs, config.nChannelsPerNetPeer, config.nvlinkCentricSched);
  printf("sim %zu %x %u %f\n", sim.size, sim.magic, sim.version, (double)sim.estimatedTime);
}

static void functions(void)
{
  FUNCTION(ncclGetVersion, ncclResult_t, int *);
  FUNCTION(ncclGetErrorString, const char *, ncclResult_t);
  FUNCTION(ncclGetLastError, const char *, ncclComm_t);
  FUNCTION(ncclCommGetAsyncError, ncclResult_t, ncclComm_t, ncclResult_t *);
  FUNCTION(ncclGetUniqueId, ncclResult_t, ncclUniqueId *);
  FUNCTION(ncclCommInitRank, ncclResult_t, ncclComm_t *, int, ncclUniqueId, int);
  FUNCTION(ncclCommInitRankConfig, ncclResult_t, ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
  FUNCTION(ncclCommInitRankScalable, ncclResult_t, ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *);
  FUNCTION(ncclCommInitAll, ncclResult_t, ncclComm_t *, int, const int *);
  FUNCTION(ncclCommFinalize, ncclResult_t, ncclComm_t);
  FUNCTION(ncclCommDestroy, ncclResult_t, ncclComm_t);
  FUNCTION(ncclCommAbort, ncclResult_t, ncclComm_t);
  FUNCTION(ncclCommRevoke, ncclResult_t, ncclComm_t, int);
  FUNCTION(ncclCommSplit, ncclResult_t, ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
  FUNCTION(ncclCommShrink, ncclResult_t, ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int);
  FUNCTION(ncclCommCount, ncclResult_t, const ncclComm_t, int *);
  FUNCTION(ncclCommCuDevice, ncclResult_t, const ncclComm_t, int *);
  FUNCTION(ncclCommUserRank, ncclResult_t, const ncclComm_t, int *);
  FUNCTION(ncclMemAlloc, ncclResult_t, void **, size_t);
  FUNCTION(ncclMemFree, ncclResult_t, void *);
  FUNCTION(ncclCommRegister, ncclResult_t, const ncclComm_t, void *, size_t, void **);
  FUNCTION(ncclCommDeregister, ncclResult_t, const ncclComm_t, void *);
  FUNCTION(ncclCommWindowRegister, ncclResult_t, ncclComm_t, void *, size_t, ncclWindow_t *, int);
  FUNCTION(ncclCommWindowDeregister, ncclResult_t, ncclComm_t, ncclWindow_t);
  FUNCTION(ncclRedOpCreatePreMulSum, ncclResult_t, ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t,
           ncclComm_t);
  FUNCTION(ncclRedOpDestroy, ncclResult_t, ncclRedOp_t, ncclComm_t);
  FUNCTION(ncclReduce, ncclResult_t, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
           cudaStream_t);
  FUNCTION(ncclBcast, ncclResult_t, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  FUNCTION(ncclBroadcast, ncclResult_t, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  FUNCTION(ncclAllReduce, ncclResult_t, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
           cudaStream_t);
  FUNCTION(ncclReduceScatter, ncclResult_t, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
           cudaStream_t);
  FUNCTION(ncclAllGather, ncclResult_t, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
  FUNCTION(ncclAlltoAll, ncclResult_t, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
  FUNCTION(ncclGather, ncclResult_t, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  FUNCTION(ncclScatter, ncclResult_t, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  FUNCTION(ncclSend, ncclResult_t, const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  FUNCTION(ncclRecv, ncclResult_t, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  FUNCTION(ncclGroupStart, ncclResult_t, void);
  FUNCTION(ncclGroupEnd, ncclResult_t, void);
  FUNCTION(ncclGroupSimulateEnd, ncclResult_t, ncclSimInfo_t *);
}

int main(void)
{
  types();
  values();
  initialisers();
  functions();
  return 0;
}
