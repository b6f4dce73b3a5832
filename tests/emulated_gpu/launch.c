/* Kernels and functions of the host on streams. */
#include "gpu.h"

enum { WARP = 32, MAX_THREADS = 1024, MAX_CLUSTER = 8, CLUSTER_PROCESSORS = 120 };

static bool is_line(dim3 dim)
{
  return dim.x > 0 && dim.y == 1 && dim.z == 1;
}

/* Blocks of a cluster; 1: none; 0: one that cannot be. */
static unsigned cluster_of(const cudaLaunchConfig_t *config)
{
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; i++)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      unsigned y = config->attrs[i].val.clusterDim.y, z = config->attrs[i].val.clusterDim.z;
      cluster = y == 1 && z == 1 ? config->attrs[i].val.clusterDim.x : 0;
    }
  return cluster <= MAX_CLUSTER && (cluster == 0 || config->gridDim.x % cluster == 0) ? cluster : 0;
}

/* Grids and blocks of one dimension, of whole warps, and kernels without dynamic shared memory are all that there is
 * here. */
static cudaError_t check(const cudaLaunchConfig_t *config, const struct emu_kernel *kernel)
{
  if (kernel == NULL) return cudaErrorInvalidDeviceFunction;
  if (config->gridDim.x == 0 || config->gridDim.y == 0 || config->gridDim.z == 0 || config->blockDim.x == 0 ||
      config->blockDim.y == 0 || config->blockDim.z == 0 || config->blockDim.x > MAX_THREADS)
    return cudaErrorInvalidConfiguration;
  if (!is_line(config->gridDim) || !is_line(config->blockDim) || config->blockDim.x % WARP != 0 ||
      config->dynamicSmemBytes != 0)
    return cudaErrorNotSupported;
  if ((int)config->blockDim.x > kernel->most_threads) return cudaErrorLaunchOutOfResources;
  return cluster_of(config) != 0 ? cudaSuccess : cudaErrorInvalidClusterSize;
}

/* Outside of graphs it always waits, as CUDA allows. */
static bool begins_early(const cudaLaunchConfig_t *config)
{
  for (unsigned i = 0; i < config->numAttrs; i++)
    if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
      return config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
  return false;
}

static cudaError_t launch(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
  const struct emu_kernel *kernel = emu_kernel_find(function);
  struct CUstream_st *stream;
  EMU_TRY(emu_stream_find(config->stream, &stream));
  EMU_TRY(check(config, kernel));
  if (stream->device != emu_device()) return cudaErrorInvalidResourceHandle;
  if (kernel->bytes > 0 && (arguments == NULL || arguments[0] == NULL)) return cudaErrorInvalidValue;
  struct emu_work work = {.what = EMU_KERNEL,
                          .launch = {.kernel = kernel,
                                     .blocks = config->gridDim.x,
                                     .threads = config->blockDim.x,
                                     .device = emu_device(),
                                     .early = begins_early(config)}};
  work.launch.arguments = emu_copy_of(kernel->bytes > 0 ? arguments[0] : NULL, kernel->bytes);
  return emu_submit(stream, emu_work_make(&work));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
  if (config == NULL) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, launch(config, function, arguments));
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
  const cudaLaunchConfig_t config = {.gridDim = grid, .blockDim = block, .dynamicSmemBytes = shared, .stream = stream};
  return cudaLaunchKernelExC(&config, function, arguments);
}

static cudaError_t get_attributes(struct cudaFuncAttributes *attributes, const void *function)
{
  const struct emu_kernel *kernel = emu_kernel_find(function);
  if (kernel == NULL) return cudaErrorInvalidDeviceFunction;
  *attributes = (struct cudaFuncAttributes){.sharedSizeBytes = kernel->shared_bytes,
                                            .maxThreadsPerBlock = kernel->most_threads,
                                            .numRegs = 65536 / kernel->most_threads,
                                            .ptxVersion = 10 * EMU_MAJOR + EMU_MINOR,
                                            .binaryVersion = 10 * EMU_MAJOR + EMU_MINOR};
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
  if (attributes == NULL) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, get_attributes(attributes, function));
}

/* One block a processor, and as with an H100 a few processors that are no part of a cluster. */
static cudaError_t count_clusters(int *clusters, const void *function, const cudaLaunchConfig_t *config)
{
  EMU_TRY(check(config, emu_kernel_find(function)));
  unsigned cluster = cluster_of(config);
  *clusters = (cluster == 1 ? EMU_PROCESSORS : CLUSTER_PROCESSORS) / (int)cluster;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const cudaLaunchConfig_t *config)
{
  if (clusters == NULL || config == NULL) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, count_clusters(clusters, function, config));
}

static cudaError_t launch_host(cudaStream_t on, cudaHostFn_t function, void *argument)
{
  struct CUstream_st *stream;
  EMU_TRY(emu_stream_find(on, &stream));
  return emu_submit(stream, emu_work_make(&(struct emu_work){
                                .what = EMU_CALL, .call = function, .argument = argument, .mark = emu_mark_make()}));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
  if (function == NULL) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, launch_host(stream, function, argument));
}
