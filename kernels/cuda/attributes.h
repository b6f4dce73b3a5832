/* Launch attributes: what is asked for of how a context's kernels run, beside what they do. They are worked out when
 * the context is opened, for each size of a grid, so that a launch only looks them up; but for one that a single launch
 * has, since it follows another (graph.c). */
#ifndef TT_KERNELS_CUDA_ATTRIBUTES_H
#define TT_KERNELS_CUDA_ATTRIBUTES_H

#include "kernels/cuda/context.h"

/* Blocks of a cluster at most: more are not portable. */
enum { TT_CUDA_MAX_CLUSTER = 8 };
/* The domain, the links, two of clusters, and the one of a launch that begins early. */
enum { TT_CUDA_MAX_ATTRIBUTES = 5 };

/* As cudaLaunchKernelExC takes them. */
struct tt_cuda_attribute_list {
  unsigned count;
  cudaLaunchAttribute attributes[TT_CUDA_MAX_ATTRIBUTES];
};

struct tt_cuda_attributes {
  struct tt_cuda_attribute_list of_cluster[TT_CUDA_MAX_CLUSTER + 1]; /* by the blocks of a cluster; 1: no clusters */
  unsigned ngrids;                                                   /* of which the clusters are known */
  uint8_t clusters[]; /* by the blocks of a grid: of a cluster, which divide it */
};

/* Makes context->attributes of what the configuration asks for and the device can do; leaves it NULL where that is
 * nothing. Finds out, too, whether launches can begin early. Says what is left, and why. The context is entered, its
 * kernels are loaded. */
ncclResult_t tt_cuda_attributes_choose(struct tt_device_context *context, const struct tt_device_config *config);

/* Of a launch; NULL or empty: it has none. */
static inline struct tt_cuda_attribute_list *tt_cuda_attributes_of(const struct tt_device_context *context,
                                                                   unsigned nblocks)
{
  struct tt_cuda_attributes *attributes = context->attributes;
  if (attributes == NULL) return NULL;
  return &attributes->of_cluster[nblocks < attributes->ngrids ? attributes->clusters[nblocks] : 1];
}

/* Adds to a launch's own that it may begin while the kernel before it ends: programmatic dependent launch. */
static inline void tt_cuda_attributes_add_early(struct tt_cuda_attribute_list *list)
{
  cudaLaunchAttribute *attribute = &list->attributes[list->count++];
  attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute->val.programmaticStreamSerializationAllowed = 1;
}

#endif
