/* Functions that this version has only by name: each says so. They exist so that programs linked against NCCL load. */
#include "api/export.h"
#include "base/check.h"

#define UNSUPPORTED(name) TT_FAIL(ncclInvalidUsage, #name " is not supported by this version of Tutti")

#define TT_UNSUPPORTED(name, args)                                                                                     \
  TT_EXPORT(ncclResult_t, name, args)                                                                                  \
  {                                                                                                                    \
    return UNSUPPORTED(name);                                                                                          \
  }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* The device-side API, which NCCL declares in nccl_device.h. Layouts as there. */
struct ncclTeam {
  int nRanks, rank, stride;
};

TT_UNSUPPORTED(ncclDevCommCreate, (ncclComm_t comm, const void *requirements, void *devComm))
TT_UNSUPPORTED(ncclDevCommDestroy, (ncclComm_t comm, const void *devComm))
TT_UNSUPPORTED(ncclLsaBarrierCreateRequirement, (struct ncclTeam team, int nBarriers, void *handle, void *requirements))
TT_UNSUPPORTED(ncclGinBarrierCreateRequirement,
               (ncclComm_t comm, struct ncclTeam team, int nBarriers, void *handle, void *requirements))
TT_UNSUPPORTED(ncclLLA2ACreateRequirement, (int nBlocks, int nSlots, void *handle, void *requirements))

/* These return no code; 0 ranks, rank -1 and 0 slots are what no caller can use by mistake. */
static struct ncclTeam no_team(const char *name)
{
  TT_WARN("%s is not supported by this version of Tutti", name);
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
