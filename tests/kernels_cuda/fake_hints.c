/* See fake_hints.h. */
#include "fake_hints.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "kernels/cuda/descriptor.h"

static const struct fake_hints usual = {
    .capability = 90, .ptx = 90, .driver = 13000, .at_once = {0, 132, 132, 132, 128, 125, 132, 126, 120}};
struct fake_hints fake_hints = usual;
char kept_lines[4096];

void fake_hints_reset(void)
{
  fake_hints = usual;
}

cudaError_t fake_capability(int *value, enum cudaDeviceAttr attribute)
{
  if (attribute == cudaDevAttrComputeCapabilityMajor)
    *value = fake_hints.capability / 10;
  else if (attribute == cudaDevAttrComputeCapabilityMinor)
    *value = fake_hints.capability % 10;
  else
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

bool fake_links_are_on(const cudaLaunchAttribute *attribute)
{
#if CUDART_VERSION >= 13000
  _Static_assert((int)cudaLaunchAttributeNvlinkUtilCentricScheduling == FAKE_LINKS_ID, "CUDA's number");
  return attribute->val.nvlinkUtilCentricScheduling == 1;
#else
  ck_abort_msg("attribute %d", (int)attribute->id);
#endif
}

cudaError_t cudaDriverGetVersion(int *version)
{
  *version = fake_hints.driver;
  return cudaSuccess;
}

/* What is asked for is a whole cluster of blocks with all threads. */
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *kernel, const cudaLaunchConfig_t *config)
{
  ck_assert(config->numAttrs == 1 && config->attrs[0].id == cudaLaunchAttributeClusterDimension);
  unsigned size = config->attrs[0].val.clusterDim.x;
  ck_assert(config->attrs[0].val.clusterDim.y == 1 && config->attrs[0].val.clusterDim.z == 1);
  ck_assert(size >= 2 && size <= 8 && config->gridDim.x % size == 0 && config->blockDim.x == TT_CUDA_MAX_THREADS);
  fake_hints.asked++;
  bool narrow = fake_hints.narrow == NULL || kernel == fake_hints.narrow;
  if (narrow && fake_hints.at_once[size] < 0) return cudaErrorInvalidClusterSize;
  *clusters = narrow ? fake_hints.at_once[size] / (int)size : 1000;
  return cudaSuccess;
}

static void keep(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                 const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  size_t at = strlen(kept_lines);
  if (level == TT_LOG_INFO) snprintf(kept_lines + at, sizeof(kept_lines) - at, "%s\n", text);
}

void keep_lines(void)
{
  setenv("NCCL_DEBUG", "INFO", 1);
  tt_param_reset();
  tt_log_reset();
  kept_lines[0] = 0;
  tt_log_redirect(keep);
}
