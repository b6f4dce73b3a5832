/* Choosing launch attributes: see attributes.h. */
#include "kernels/cuda/attributes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/multicast.h"

/* Compute capabilities, as tt_device_properties has them, from which on there is what. */
enum { HAS_CLUSTERS = 90, HAS_DOMAINS = 90, HAS_LINKS = 100 };
/* Of CUDA, likewise; 12.0, which all others came with, is needed anyway. EARLY: edges of graphs say what kind they are.
 */
enum { CUDA_HAS_EARLY = 12030, CUDA_HAS_LINKS = 13000 };

/* How the variables are called that users know. */
#define CLUSTER_NAME "cgaClusterSize (NCCL_CGA_CLUSTER_SIZE)"
#define LINKS_NAME "nvlinkCentricSched (NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE)"

struct wishes {
  unsigned cluster;
  bool links, apart;
};

/* A core that knows of one hint knows of all. */
static struct wishes read_wishes(const struct tt_device_config *config)
{
  if (config->size < offsetof(struct tt_device_config, apart) + sizeof(config->apart)) return (struct wishes){0};
  return (struct wishes){.cluster = TT_MIN(config->cluster, TT_CUDA_MAX_CLUSTER),
                         .links = config->links != 0,
                         .apart = config->apart != 0};
}

static ncclResult_t find_capability(int device, int *capability)
{
  int major, minor;
  TT_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
              "asking for a GPU's compute capability");
  TT_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
              "asking for a GPU's compute capability");
  *capability = 10 * major + minor;
  return ncclSuccess;
}

static cudaLaunchAttribute *add(struct tt_cuda_attribute_list *list, enum cudaLaunchAttributeID id)
{
  cudaLaunchAttribute *attribute = &list->attributes[list->count++];
  attribute->id = id;
  return attribute;
}

/* ---- Links ---- */

/* Or says why not. */
static void add_links(const struct tt_device_context *context, int capability, struct tt_cuda_attribute_list *list)
{
  if (capability < HAS_LINKS) {
    TT_INFO(TT_INIT,
            "rank %d: " LINKS_NAME " has no effect on GPU %d, whose compute capability is %d.%d and not 10.0 or later",
            context->rank, context->device, capability / 10, capability % 10);
    return;
  }
#if CUDART_VERSION >= 13000
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver >= CUDA_HAS_LINKS) {
    add(list, cudaLaunchAttributeNvlinkUtilCentricScheduling)->val.nvlinkUtilCentricScheduling = 1;
    return;
  }
  TT_INFO(TT_INIT,
          "rank %d: " LINKS_NAME " has no effect: the CUDA driver is made for CUDA %d.%d, and not 13.0 or later",
          context->rank, driver / 1000, driver % 1000 / 10);
#else
  (void)list;
  TT_INFO(TT_INIT,
          "rank %d: " LINKS_NAME " has no effect: this library was built with CUDA %d.%d, and not 13.0 or later",
          context->rank, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#endif
}

/* ---- Clusters ---- */

/* How many blocks of a kernel, with all threads that it may have, run at the same time in clusters of a size. */
static unsigned blocks_at_once(const void *kernel, unsigned cluster)
{
  cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeClusterDimension};
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  const cudaLaunchConfig_t config = {
      .gridDim = {cluster, 1, 1}, .blockDim = {TT_CUDA_MAX_THREADS, 1, 1}, .attrs = &attribute, .numAttrs = 1};
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess) return (unsigned)clusters * cluster;
  cudaGetLastError(); /* no such clusters here */
  return 0;
}

/* The same of any kernel. */
static unsigned fewest_at_once(unsigned cluster)
{
  const void *kernel, *last = NULL;
  unsigned fewest = UINT32_MAX;
  for (int type = 0; type < (int)TT_COUNT(tt_cuda_kernels); type++) {
    for (int k = 0; k < TT_CUDA_FORMS * TT_NUM_PROTOCOLS; k++) {
      kernel = tt_cuda_kernels[type](k / TT_CUDA_FORMS, k % TT_CUDA_FORMS);
      if (kernel != last) fewest = TT_MIN(fewest, blocks_at_once(kernel, cluster));
      last = kernel;
    }
    kernel = tt_cuda_nvls_kernel(type);
    if (kernel != NULL) fewest = TT_MIN(fewest, blocks_at_once(kernel, cluster));
  }
  return fewest;
}

/* False: there will be none. A cluster needs processors near each other, of which the last few may be too few for one:
 * then less blocks than processors run at the same time. All blocks of a grid must, since they wait for peers' that
 * wait for others here. */
static bool choose_clusters(const struct tt_device_context *context, unsigned wanted,
                            struct tt_cuda_attributes *attributes)
{
  unsigned at_once[TT_CUDA_MAX_CLUSTER + 1] = {0}, largest = 1, left = 0;
  for (unsigned size = 2; size <= wanted; size++) at_once[size] = fewest_at_once(size);
  for (unsigned grid = 2; grid < attributes->ngrids; grid++)
    for (unsigned size = TT_MIN(wanted, grid); size > 1 && attributes->clusters[grid] == 1; size--) {
      if (grid % size != 0) continue;
      if (grid <= at_once[size]) {
        attributes->clusters[grid] = (uint8_t)size;
        largest = TT_MAX(largest, size);
      } else {
        left = TT_MAX(left, size);
      }
    }
  if (largest > 1)
    TT_INFO(TT_INIT, "rank %d: kernels run in clusters of %u blocks on GPU %d, or of fewer that divide theirs",
            context->rank, largest, context->device);
  else
    TT_INFO(TT_INIT,
            "rank %d: " CLUSTER_NAME
            " is %u, and has no effect on GPU %d: not two blocks of a kernel run there in clusters",
            context->rank, wanted, context->device);
  if (largest > 1 && left > 0)
    TT_INFO(TT_INIT,
            "rank %d: GPU %d runs %u blocks at a time in clusters of %u, and must run all of a kernel: with more they "
            "are smaller, or there are none",
            context->rank, context->device, at_once[left], left);
  return largest > 1;
}

static void add_clusters(struct tt_cuda_attributes *attributes)
{
  const struct tt_cuda_attribute_list all = attributes->of_cluster[1];
  for (unsigned size = 2; size <= TT_CUDA_MAX_CLUSTER; size++) {
    struct tt_cuda_attribute_list *list = &attributes->of_cluster[size];
    *list = all;
    cudaLaunchAttribute *dimension = add(list, cudaLaunchAttributeClusterDimension);
    dimension->val.clusterDim.x = size;
    dimension->val.clusterDim.y = dimension->val.clusterDim.z = 1;
    /* Blocks of few threads would else share a processor. */
    add(list, cudaLaunchAttributeClusterSchedulingPolicyPreference)->val.clusterSchedulingPolicyPreference =
        cudaClusterSchedulingPolicySpread;
  }
}

/* ---- Launches that begin early ---- */

static void choose_early(const struct tt_device_context *context, int capability)
{
  int driver = 0;
  if (tt_param_int(TT_PARAM_TUTTI_PROGRAMMATIC_LAUNCH) == 0 || capability < TT_CUDA_EARLY_CAPABILITY ||
      cudaDriverGetVersion(&driver) != cudaSuccess || driver < CUDA_HAS_EARLY)
    context->executor->can_begin_early = false;
}

/* ---- All ---- */

ncclResult_t tt_cuda_attributes_choose(struct tt_device_context *context, const struct tt_device_config *config)
{
  struct wishes wishes = read_wishes(config);
  struct tt_cuda_attribute_list *all;
  struct tt_cuda_attributes *attributes;
  int capability;
  bool clusters = false;
  TT_TRY(find_capability(context->device, &capability));
  choose_early(context, capability);
  if (wishes.cluster < 2 && !wishes.links && !wishes.apart) return ncclSuccess;
  unsigned ngrids = (unsigned)context->processors + 1;
  attributes = calloc(1, sizeof(*attributes) + ngrids * sizeof(*attributes->clusters));
  if (attributes == NULL) return TT_FAIL(ncclSystemError, "rank %d: no memory for launch attributes", context->rank);
  attributes->ngrids = ngrids;
  memset(attributes->clusters, 1, ngrids * sizeof(*attributes->clusters));
  all = &attributes->of_cluster[1];
  if (wishes.apart && capability >= HAS_DOMAINS)
    add(all, cudaLaunchAttributeMemSyncDomain)->val.memSyncDomain = cudaLaunchMemSyncDomainRemote;
  if (wishes.links) add_links(context, capability, all);
  if (wishes.cluster > 1 && capability < HAS_CLUSTERS)
    TT_INFO(TT_INIT,
            "rank %d: " CLUSTER_NAME " has no effect on GPU %d, whose compute capability is %d.%d and not 9.0 or later",
            context->rank, context->device, capability / 10, capability % 10);
  else if (wishes.cluster > 1)
    clusters = choose_clusters(context, wishes.cluster, attributes);
  if (clusters) add_clusters(attributes);
  if (clusters || all->count > 0)
    context->attributes = attributes;
  else
    free(attributes);
  return ncclSuccess;
}
