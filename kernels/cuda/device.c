/* The table of the CUDA backend, and what is asked of devices rather than of contexts. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/describe.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/multicast.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/traits.h"

static ncclResult_t count(int *devices)
{
  TT_CUDA_TRY(cudaGetDeviceCount(devices), "counting GPUs");
  return ncclSuccess;
}

/* A thread that has not chosen has no context, and uses device 0. The runtime here is not asked, since it does not know
 * what the one of the application was told. */
static ncclResult_t current(int *index)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUcontext context;
  CUdevice device = 0;
  TT_TRY(tt_cuda_driver_check(driver->cuCtxGetCurrent(&context), "asking for the thread's context"));
  if (context != NULL) TT_TRY(tt_cuda_driver_check(driver->cuCtxGetDevice(&device), "asking for the thread's GPU"));
  *index = device;
  return ncclSuccess;
}

static ncclResult_t properties(int index, struct tt_device_properties *out)
{
  struct tt_device_properties properties = {.size = out->size};
  struct cudaDeviceProp cuda;
  TT_CUDA_TRY(cudaGetDeviceProperties(&cuda, index), "asking for a GPU's properties");
  TT_CUDA_TRY(cudaDeviceGetPCIBusId(properties.pci, sizeof(properties.pci), index), "asking for a GPU's place");
  for (char *c = properties.pci; *c; c++) *c = (char)tolower((unsigned char)*c); /* as in /sys */
  snprintf(properties.name, sizeof(properties.name), "%.*s", (int)sizeof(properties.name) - 1, cuda.name);
  _Static_assert(sizeof(properties.id) == sizeof(cuda.uuid), "an id is a UUID");
  memcpy(properties.id, &cuda.uuid, sizeof(properties.id));
  properties.capability = 10 * cuda.major + cuda.minor;
  properties.processors = cuda.multiProcessorCount;
  properties.memory = cuda.totalGlobalMem;
  memcpy(out, &properties, TT_MIN(out->size, sizeof(properties)));
  return ncclSuccess;
}

static ncclResult_t can_map(int from, int to, int *can)
{
  *can = from == to;
  if (from != to) TT_CUDA_TRY(cudaDeviceCanAccessPeer(can, from, to), "asking whether a GPU reaches another");
  return ncclSuccess;
}

const struct tt_device *tt_cuda_device(void)
{
  static const struct tt_device device = {
      .size = sizeof(struct tt_device),
      .name = "cuda",
      .protocols = TT_CUDA_PROTOCOLS,
      .default_buffer = TT_CUDA_BUFFERS,
      .count = count,
      .launch = tt_cuda_launch,
      .version = TT_DEVICE_VERSION,
      .features = TT_DEVICE_FP8 | TT_DEVICE_STREAMS | TT_DEVICE_MEMORY | TT_DEVICE_HOST_MEMORY | TT_DEVICE_DESCRIBED |
                  TT_DEVICE_USER_MEMORY | TT_DEVICE_SCALARS | TT_DEVICE_MULTICAST | TT_DEVICE_FABRIC | TT_DEVICE_JOIN |
                  TT_DEVICE_GRAPHS | TT_DEVICE_COPY | TT_DEVICE_DMABUF | TT_DEVICE_LINES | TT_DEVICE_REACH |
                  TT_DEVICE_ENGINES | TT_DEVICE_POOLED | TT_DEVICE_PARTS | TT_DEVICE_FLUSH | TT_DEVICE_HINTS |
                  TT_DEVICE_CHECK | TT_DEVICE_PEERS,
      .channels = TT_CUDA_CHANNELS,
      .peers = TT_CUDA_PEERS,
      .current = current,
      .properties = properties,
      .can_map = can_map,
      .open = tt_cuda_open,
      .close = tt_cuda_close,
      .alloc = tt_cuda_alloc,
      .release = tt_cuda_release,
      .export_memory = tt_cuda_export,
      .import_memory = tt_cuda_import,
      .conn_open = tt_cuda_conn_open,
      .conn_close = tt_cuda_conn_close,
      .stop = tt_cuda_stop,
      .drain = tt_cuda_drain,
      .status = tt_cuda_status,
      .team_check = tt_cuda_team_check,
      .team_create = tt_cuda_team_create,
      .team_import = tt_cuda_team_import,
      .team_add = tt_cuda_team_add,
      .team_bind = tt_cuda_team_bind,
      .team_leave = tt_cuda_team_leave,
      .describe = tt_cuda_describe,
      .peer_status = tt_cuda_peer_status,
      .check_stream = tt_cuda_check_stream,
      .follow = tt_cuda_follow,
      .capturing = tt_cuda_capturing,
      .at_graph_end = tt_cuda_at_graph_end,
      .user_alloc = tt_cuda_user_alloc,
      .user_free = tt_cuda_user_free,
      .find_buffer = tt_cuda_find_buffer,
      .export_buffer = tt_cuda_export_buffer,
      .map_host = tt_cuda_map_host,
      .unmap_host = tt_cuda_unmap_host,
      .copy = tt_cuda_copy,
      .copied = tt_cuda_copied,
      .reach_buffer = tt_cuda_reach_buffer,
      .export_dmabuf = tt_cuda_export_dmabuf,
      .flush = tt_cuda_flush,
      .import_parts = tt_cuda_import_parts,
      .check_buffer = tt_cuda_check_buffer,
  };
  return &device;
}
