/* Functions that this version has only by name: each says so, and what to do instead. They exist so that programs
 * linked against NCCL, of 2.28.9 or of 2.30, load. Those that came after 2.28.9 are in no header of this version. */
#include <stdint.h>
#include "api/export.h"
#include "api/group.h"
#include "base/check.h"

#define UNSUPPORTED(name, instead)                                                                                     \
  TT_FAIL(ncclInvalidUsage, #name " is not supported by this version of Tutti; " instead)

#define TT_UNSUPPORTED(name, instead, args)                                                                            \
  TT_EXPORT(ncclResult_t, name, args)                                                                                  \
  {                                                                                                                    \
    return UNSUPPORTED(name, instead);                                                                                 \
  }

/* What a group would do at its end: the group fails too, so that nobody takes it for done. */
#define TT_UNSUPPORTED_IN_GROUP(name, instead, args)                                                                   \
  TT_EXPORT(ncclResult_t, name, args)                                                                                  \
  {                                                                                                                    \
    return tt_group_note(UNSUPPORTED(name, instead));                                                                  \
  }

#define FROM_THE_HOST "call collectives, or ncclSend and ncclRecv, from the host"
#define NEW_COMMUNICATOR "make a new communicator of all ranks with ncclCommInitRank"
#define TWO_SIDED "use ncclSend and ncclRecv"
#define NO_PEER_MEMORY "windows give no access to other ranks' memory: " TWO_SIDED
#define ENVIRONMENT "read the environment, and see tutti-info for what was read"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* ---- 2.29 and 2.30 ---- */

TT_UNSUPPORTED(ncclCommGetUniqueId, NEW_COMMUNICATOR, (ncclComm_t comm, ncclUniqueId *uniqueId))
TT_UNSUPPORTED_IN_GROUP(ncclCommGrow, NEW_COMMUNICATOR,
                        (ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                         ncclConfig_t *config))
TT_UNSUPPORTED(ncclCommSuspend, "destroy the communicator, and make it again when it is needed",
               (ncclComm_t comm, int flags))
TT_UNSUPPORTED(ncclCommResume, "no communicator can be suspended", (ncclComm_t comm))
TT_UNSUPPORTED(ncclCommMemStats, "ask the system what the process holds", (ncclComm_t comm, int stat, uint64_t *value))
TT_UNSUPPORTED(ncclCommQueryProperties, "use ncclCommCount, ncclCommUserRank and ncclCommCuDevice",
               (ncclComm_t comm, void *props))

TT_UNSUPPORTED_IN_GROUP(ncclPutSignal, TWO_SIDED,
                        (const void *localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
                         size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                         cudaStream_t stream))
TT_UNSUPPORTED_IN_GROUP(ncclSignal, TWO_SIDED,
                        (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream))
TT_UNSUPPORTED_IN_GROUP(ncclWaitSignal, TWO_SIDED, (int nDesc, void *signalDescs, ncclComm_t comm, cudaStream_t stream))

struct ncclParamHandle;

#define TT_PARAM_GET(suffix, type)                                                                                     \
  TT_UNSUPPORTED(ncclParamGet##suffix, ENVIRONMENT, (struct ncclParamHandle * handle, type * out))

TT_UNSUPPORTED(ncclParamBind, ENVIRONMENT, (struct ncclParamHandle * *out, const char *key))
TT_PARAM_GET(I8, int8_t)
TT_PARAM_GET(I16, int16_t)
TT_PARAM_GET(I32, int32_t)
TT_PARAM_GET(I64, int64_t)
TT_PARAM_GET(U8, uint8_t)
TT_PARAM_GET(U16, uint16_t)
TT_PARAM_GET(U32, uint32_t)
TT_PARAM_GET(U64, uint64_t)
TT_PARAM_GET(Str, const char *)
TT_UNSUPPORTED(ncclParamGet, ENVIRONMENT, (struct ncclParamHandle * handle, void *out, int maxLen, int *len))
TT_UNSUPPORTED(ncclParamGetParameter, ENVIRONMENT, (const char *key, const char **value, int *valueLen))
TT_UNSUPPORTED(ncclParamGetAllParameterKeys, ENVIRONMENT, (const char ***table, int *tableLen))

TT_EXPORT(void, ncclParamDumpAll, (void))
{
  TT_WARN("ncclParamDumpAll is not supported by this version of Tutti; " ENVIRONMENT);
}

/* ---- The device-side API, which NCCL declares in nccl_device.h. Layouts as there. ---- */

struct ncclTeam {
  int nRanks, rank, stride;
};

struct ncclMultimemHandle {
  void *mcBasePtr;
};

TT_UNSUPPORTED(ncclDevCommCreate, FROM_THE_HOST, (ncclComm_t comm, const void *requirements, void *devComm))
TT_UNSUPPORTED(ncclDevCommDestroy, FROM_THE_HOST, (ncclComm_t comm, const void *devComm))
TT_UNSUPPORTED(ncclLsaBarrierCreateRequirement, FROM_THE_HOST,
               (struct ncclTeam team, int nBarriers, void *handle, void *requirements))
TT_UNSUPPORTED(ncclGinBarrierCreateRequirement, FROM_THE_HOST,
               (ncclComm_t comm, struct ncclTeam team, int nBarriers, void *handle, void *requirements))
TT_UNSUPPORTED(ncclLLA2ACreateRequirement, FROM_THE_HOST, (int nBlocks, int nSlots, void *handle, void *requirements))
TT_UNSUPPORTED(ncclGinOutboxCreateRequirement, FROM_THE_HOST,
               (int nBlocks, int size_log2, void *handle, void *requirements))
TT_UNSUPPORTED(ncclGinInboxA2ACreateRequirement, FROM_THE_HOST,
               (struct ncclTeam peers, int nBlocks, int size_log2, void *handle, void *requirements))
TT_UNSUPPORTED(ncclGetLsaDevicePointer, NO_PEER_MEMORY,
               (ncclWindow_t window, size_t offset, int lsaRank, void **pointer))
TT_UNSUPPORTED(ncclGetPeerDevicePointer, NO_PEER_MEMORY, (ncclWindow_t window, size_t offset, int peer, void **pointer))
TT_UNSUPPORTED(ncclGetLsaMultimemDevicePointer, NO_PEER_MEMORY, (ncclWindow_t window, size_t offset, void **pointer))
TT_UNSUPPORTED(ncclGetMultimemDevicePointer, NO_PEER_MEMORY,
               (ncclWindow_t window, size_t offset, struct ncclMultimemHandle multimem, void **pointer))

/* These return no code; 0 ranks, rank -1 and 0 slots are what no caller can use by mistake. */
static struct ncclTeam no_team(const char *name)
{
  TT_WARN("%s is not supported by this version of Tutti; " FROM_THE_HOST, name);
  return (struct ncclTeam){0, -1, 0};
}

TT_EXPORT(struct ncclTeam, ncclTeamWorld, (ncclComm_t comm))
{
  return no_team("ncclTeamWorld");
}

TT_EXPORT(struct ncclTeam, ncclTeamLsa, (ncclComm_t comm))
{
  return no_team("ncclTeamLsa");
}

TT_EXPORT(struct ncclTeam, ncclTeamRail, (ncclComm_t comm))
{
  return no_team("ncclTeamRail");
}

TT_EXPORT(int, ncclTeamRankToWorld, (ncclComm_t comm, struct ncclTeam team, int rank))
{
  return no_team("ncclTeamRankToWorld").rank;
}

TT_EXPORT(int, ncclTeamRankToLsa, (ncclComm_t comm, struct ncclTeam team, int rank))
{
  return no_team("ncclTeamRankToLsa").rank;
}

TT_EXPORT(int, ncclLLA2ACalcSlots, (int maxElts, int maxEltSize))
{
  return no_team("ncclLLA2ACalcSlots").nRanks;
}

#pragma GCC diagnostic pop
