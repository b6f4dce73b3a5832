/* Reading ncclConfig_t. The user's struct may be older and shorter than ours, or newer and longer. */
#include "api/config.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"

#define CONFIG_MAGIC 0xcafebeefu
#define SMALLEST_CONFIG 24 /* the struct's size in NCCL 2.14, its first release */

static const ncclConfig_t undefined = NCCL_CONFIG_INITIALIZER;

/* Since an older struct is padded, its size alone does not tell which members it has: its version does. */
static void drop_newer_members(ncclConfig_t *config)
{
  unsigned version = config->version;
  if (version < NCCL_VERSION(2, 14, 0)) config->blocking = undefined.blocking;
  if (version < NCCL_VERSION(2, 17, 0)) {
    config->cgaClusterSize = undefined.cgaClusterSize;
    config->minCTAs = undefined.minCTAs;
    config->maxCTAs = undefined.maxCTAs;
    config->netName = undefined.netName;
  }
  if (version < NCCL_VERSION(2, 18, 0)) config->splitShare = undefined.splitShare;
  if (version < NCCL_VERSION(2, 25, 0)) config->trafficClass = undefined.trafficClass;
  if (version < NCCL_VERSION(2, 27, 0)) {
    config->commName = undefined.commName;
    config->collnetEnable = undefined.collnetEnable;
    config->CTAPolicy = undefined.CTAPolicy;
    config->shrinkShare = undefined.shrinkShare;
    config->nvlsCTAs = undefined.nvlsCTAs;
  }
  if (version < NCCL_VERSION(2, 28, 0)) {
    config->nChannelsPerNetPeer = undefined.nChannelsPerNetPeer;
    config->nvlinkCentricSched = undefined.nvlinkCentricSched;
  }
}

static ncclResult_t check_range(const char *member, int *value, int low, int high, int fallback)
{
  if (*value == NCCL_CONFIG_UNDEF_INT) {
    *value = fallback;
    return ncclSuccess;
  }
  if (*value < low || *value > high)
    return TT_FAIL(ncclInvalidArgument, "config member %s is %d; allowed are %d to %d", member, *value, low, high);
  return ncclSuccess;
}

static ncclResult_t check_members(ncclConfig_t *config)
{
  /* As in NCCL, a lower bound without an upper one is refused: which channels there are at most is not known here. */
  if (config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs > config->maxCTAs)
    return TT_FAIL(ncclInvalidArgument,
                   "config member minCTAs is %d but maxCTAs is %s: set maxCTAs to at least minCTAs", config->minCTAs,
                   config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? "not set" : "smaller");
  TT_TRY(check_range("blocking", &config->blocking, 0, 1, 1));
  TT_TRY(check_range("cgaClusterSize", &config->cgaClusterSize, 0, 8, 0));
  TT_TRY(check_range("minCTAs", &config->minCTAs, 1, INT_MAX, 1));
  TT_TRY(check_range("maxCTAs", &config->maxCTAs, 1, INT_MAX, 64));
  TT_TRY(check_range("splitShare", &config->splitShare, 0, 1, 0));
  TT_TRY(check_range("collnetEnable", &config->collnetEnable, 0, 1, 0));
  TT_TRY(check_range("CTAPolicy", &config->CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO, 0));
  TT_TRY(check_range("shrinkShare", &config->shrinkShare, 0, 1, 0));
  TT_TRY(check_range("nvlsCTAs", &config->nvlsCTAs, 1, INT_MAX, NCCL_CONFIG_UNDEF_INT));
  TT_TRY(check_range("nChannelsPerNetPeer", &config->nChannelsPerNetPeer, 1, 64, NCCL_CONFIG_UNDEF_INT));
  TT_TRY(check_range("nvlinkCentricSched", &config->nvlinkCentricSched, 0, 1, 0));
  return ncclSuccess;
}

ncclResult_t tt_config_read(const ncclConfig_t *user, ncclConfig_t *config)
{
  *config = undefined;
  if (user != NULL) {
    /* A size that is no multiple of the alignment is no struct's, and could end in the middle of a pointer. */
    if (user->size < SMALLEST_CONFIG || user->size > 4096 || user->size % _Alignof(ncclConfig_t) != 0)
      return TT_FAIL(ncclInvalidArgument, "config member size is %zu: start from NCCL_CONFIG_INITIALIZER", user->size);
    memcpy(config, user, TT_MIN(user->size, sizeof *config));
    if (config->magic != CONFIG_MAGIC)
      return TT_FAIL(ncclInvalidArgument, "config member magic is 0x%x, not 0x%x: start from NCCL_CONFIG_INITIALIZER",
                     config->magic, CONFIG_MAGIC);
    drop_newer_members(config);
  }
  TT_TRY(check_members(config));
  if (tt_param_text(TT_PARAM_NCCL_COMM_SPLIT_SHARE_RESOURCES) != NULL)
    config->splitShare = (int)tt_param_int(TT_PARAM_NCCL_COMM_SPLIT_SHARE_RESOURCES);
  if (tt_param_text(TT_PARAM_NCCL_COMM_SHRINK_SHARE_RESOURCES) != NULL)
    config->shrinkShare = (int)tt_param_int(TT_PARAM_NCCL_COMM_SHRINK_SHARE_RESOURCES);
  if (tt_param_text(TT_PARAM_NCCL_CTA_POLICY) != NULL) config->CTAPolicy = (int)tt_param_int(TT_PARAM_NCCL_CTA_POLICY);
  if (tt_param_text(TT_PARAM_NCCL_CGA_CLUSTER_SIZE) != NULL)
    config->cgaClusterSize = (int)tt_param_int(TT_PARAM_NCCL_CGA_CLUSTER_SIZE);
  if (tt_param_text(TT_PARAM_NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE) != NULL)
    config->nvlinkCentricSched = (int)tt_param_int(TT_PARAM_NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE);
  if (tt_param_text(TT_PARAM_NCCL_COMM_BLOCKING) != NULL)
    config->blocking = (int)tt_param_int(TT_PARAM_NCCL_COMM_BLOCKING) != 0;
  return ncclSuccess;
}

static ncclResult_t own(const char **name)
{
  if (*name == NULL) return ncclSuccess;
  if ((*name = strdup(*name)) != NULL) return ncclSuccess;
  return TT_FAIL(ncclSystemError, "no memory for a communicator's configuration");
}

ncclResult_t tt_config_own_names(ncclConfig_t *config)
{
  const char *net = config->netName;
  config->netName = NULL;
  TT_TRY(own(&config->commName));
  config->netName = net;
  ncclResult_t result = own(&config->netName);
  if (result != ncclSuccess) tt_config_free_names(config);
  return result;
}

void tt_config_free_names(ncclConfig_t *config)
{
  free((char *)config->commName);
  free((char *)config->netName);
  config->commName = config->netName = NULL;
}
