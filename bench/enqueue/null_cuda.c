/* A CUDA that does nothing, at once: what is left of a call's time is the library's own. Memory is the host's, launches
 * and events are forgotten, and everything is always done. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "bench/enqueue/null_cuda.h"
#include "kernels/cuda/describe.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/edges.h"
#include "kernels/cuda/executor.h"

enum { DEVICES = 4, PROCESSORS = 132 };

/* A device's context is the address of one of these; a stream is the address of its device's number. */
static char primaries[DEVICES];
static _Thread_local CUcontext current;

/* ---- Counting ---- */

/* Calls, and what launches were asked for with. */
#define COUNTED(X)                                                                                                     \
  X(cudaLaunchKernel)                                                                                                  \
  X(cudaLaunchKernelExC)                                                                                               \
  X(with_remote_domain)                                                                                                \
  X(with_clusters_of_two)                                                                                              \
  X(cudaEventRecord)                                                                                                   \
  X(cudaStreamWaitEvent)                                                                                               \
  X(cudaStreamGetCaptureInfo)                                                                                          \
  X(cuStreamIsCapturing)                                                                                               \
  X(cuStreamGetCtx)                                                                                                    \
  X(cudaThreadExchangeStreamCaptureMode)                                                                               \
  X(cuCtxGetCurrent)                                                                                                   \
  X(cuCtxSetCurrent)                                                                                                   \
  X(cuCtxGetDevice)                                                                                                    \
  X(cudaSetDevice)                                                                                                     \
  X(cudaGetLastError)                                                                                                  \
  X(cudaPointerGetAttributes)                                                                                          \
  X(cudaMemcpyAsync)                                                                                                   \
  X(cudaMemsetAsync)                                                                                                   \
  X(cudaStreamQuery)                                                                                                   \
  X(cudaEventQuery)                                                                                                    \
  X(cudaEventCreateWithFlags)                                                                                          \
  X(cudaMalloc)                                                                                                        \
  X(cudaHostAlloc)                                                                                                     \
  X(cudaFree)
#define CALL_OF(function) CALL_##function,
#define NAMED(function) {.name = #function},
enum { COUNTED(CALL_OF) CALLS };
static _Thread_local struct tt_null_call calls[CALLS + 1] = {COUNTED(NAMED){0}};
#define CALLED(name) (calls[CALL_##name].count++)

tt_null_calls_fn tt_null_calls;
const struct tt_null_call *tt_null_calls(void)
{
  return calls;
}

/* ---- The runtime ---- */

cudaError_t cudaGetLastError(void)
{
  CALLED(cudaGetLastError);
  return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error)
{
  return error == cudaSuccess ? "no error" : "an error";
}
const char *cudaGetErrorName(cudaError_t error)
{
  return error == cudaSuccess ? "cudaSuccess" : "an error";
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
  CALLED(cudaThreadExchangeStreamCaptureMode);
  static _Thread_local enum cudaStreamCaptureMode set = cudaStreamCaptureModeGlobal;
  enum cudaStreamCaptureMode previous = set;
  set = *mode;
  *mode = previous;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
  CALLED(cudaSetDevice);
  current = (CUcontext)(void *)&primaries[device];
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count)
{
  *count = DEVICES;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
  (void)device;
  *value = attribute == cudaDevAttrMultiProcessorCount      ? PROCESSORS
           : attribute == cudaDevAttrComputeCapabilityMajor ? 9
                                                            : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
  *properties = (struct cudaDeviceProp){
      .name = "null", .major = 9, .multiProcessorCount = PROCESSORS, .totalGlobalMem = (size_t)80 << 30};
  properties->uuid.bytes[0] = (char)(device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device)
{
  snprintf(id, (size_t)size, "0000:%02X:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
  (void)peer, (void)flags;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
  *least = *greatest = 0;
  return cudaSuccess;
}

static cudaError_t take(void **ptr, size_t bytes)
{
  *ptr = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*ptr != NULL) memset(*ptr, 0, bytes);
  return *ptr != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaMalloc(void **ptr, size_t bytes)
{
  CALLED(cudaMalloc);
  return take(ptr, bytes);
}
cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
  CALLED(cudaHostAlloc);
  (void)flags;
  return take(ptr, bytes);
}
cudaError_t cudaFree(void *ptr)
{
  CALLED(cudaFree);
  free(ptr);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
  (void)flags;
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned flags)
{
  (void)ptr, (void)bytes, (void)flags;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *ptr)
{
  (void)ptr;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
  CALLED(cudaPointerGetAttributes);
  *attributes = (struct cudaPointerAttributes){.type = cudaMemoryTypeDevice, .devicePointer = (void *)ptr};
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t stream)
{
  CALLED(cudaMemsetAsync);
  (void)stream;
  memset(ptr, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
  CALLED(cudaMemcpyAsync);
  (void)kind, (void)stream;
  memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
  (void)handle, (void)ptr;
  return cudaErrorNotSupported;
}
cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t handle, unsigned flags)
{
  (void)ptr, (void)handle, (void)flags;
  return cudaErrorNotSupported;
}
cudaError_t cudaIpcCloseMemHandle(void *ptr)
{
  (void)ptr;
  return cudaErrorNotSupported;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
  int *device = malloc(sizeof(*device));
  (void)flags, (void)priority;
  if (device != NULL) *device = (int)((char *)(void *)current - primaries);
  *stream = (cudaStream_t)(void *)device;
  return device != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
  free(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
  CALLED(cudaStreamQuery);
  (void)stream;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
  CALLED(cudaStreamWaitEvent);
  (void)stream, (void)event, (void)flags;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
  CALLED(cudaEventCreateWithFlags);
  (void)flags;
  *event = malloc(1);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  free(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
  CALLED(cudaEventRecord);
  (void)event, (void)stream;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
  CALLED(cudaEventQuery);
  (void)event;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
  CALLED(cudaLaunchKernel);
  (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments)
{
  CALLED(cudaLaunchKernelExC);
  (void)kernel, (void)arguments;
  for (unsigned a = 0; a < config->numAttrs; a++) {
    const cudaLaunchAttribute *attribute = &config->attrs[a];
    if (attribute->id == cudaLaunchAttributeMemSyncDomain &&
        attribute->val.memSyncDomain == cudaLaunchMemSyncDomainRemote)
      CALLED(with_remote_domain);
    if (attribute->id == cudaLaunchAttributeClusterDimension && attribute->val.clusterDim.x == 2)
      CALLED(with_clusters_of_two);
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *kernel, const cudaLaunchConfig_t *config)
{
  (void)kernel;
  *clusters = PROCESSORS / (int)config->attrs[0].val.clusterDim.x;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
  (void)kernel;
  *attributes = (struct cudaFuncAttributes){0};
  return cudaSuccess;
}

/* Nothing is ever captured. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     TT_CUDA_EDGES(const cudaGraphEdgeData **edges, size_t *count))
{
  CALLED(cudaStreamGetCaptureInfo);
  (void)stream, (void)id, (void)graph, (void)nodes, (void)count;
  if (TT_CUDA_GIVEN(edges)) return cudaErrorNotSupported;
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
#define NEVER(name, ...)                                                                                               \
  cudaError_t name(__VA_ARGS__)                                                                                        \
  {                                                                                                                    \
    return cudaErrorNotSupported;                                                                                      \
  }
#pragma GCC diagnostic ignored "-Wunused-parameter"
NEVER(cudaStreamIsCapturing, cudaStream_t stream, enum cudaStreamCaptureStatus *status)
NEVER(cudaStreamUpdateCaptureDependencies, cudaStream_t stream, cudaGraphNode_t *nodes,
      TT_CUDA_EDGES(const cudaGraphEdgeData *edges, size_t count), unsigned flags)
NEVER(cudaUserObjectCreate, cudaUserObject_t *object, void *ptr, cudaHostFn_t destroy, unsigned count, unsigned flags)
NEVER(cudaUserObjectRelease, cudaUserObject_t object, unsigned count)
NEVER(cudaGraphRetainUserObject, cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags)
NEVER(cudaGraphAddEventRecordNode, cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count,
      cudaEvent_t event)
NEVER(cudaGraphAddDependencies, cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
      TT_CUDA_EDGES(const cudaGraphEdgeData *edges, size_t count))
NEVER(cudaGraphRemoveDependencies, cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
      TT_CUDA_EDGES(const cudaGraphEdgeData *edges, size_t count))

/* ---- The driver: threads' contexts, and streams; all else is not supported ---- */

static CUresult not_supported(void)
{
  return CUDA_ERROR_NOT_SUPPORTED;
}
static CUresult ctx_get(CUcontext *context)
{
  CALLED(cuCtxGetCurrent);
  *context = current;
  return CUDA_SUCCESS;
}
static CUresult ctx_set(CUcontext context)
{
  CALLED(cuCtxSetCurrent);
  current = context;
  return CUDA_SUCCESS;
}
static CUresult ctx_device(CUdevice *device)
{
  CALLED(cuCtxGetDevice);
  *device = (int)((char *)(void *)current - primaries);
  return CUDA_SUCCESS;
}
static CUresult attribute_of(int *value, CUdevice_attribute attribute, CUdevice device)
{
  (void)attribute, (void)device;
  *value = 0;
  return CUDA_SUCCESS;
}
static CUresult stream_context(CUstream stream, CUcontext *context)
{
  CALLED(cuStreamGetCtx);
  *context = (CUcontext)(void *)&primaries[*(const int *)(const void *)stream];
  return CUDA_SUCCESS;
}
static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
  CALLED(cuStreamIsCapturing);
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

static struct tt_cuda_driver driver;

bool tt_cuda_driver_load(char *why, size_t why_size)
{
  (void)why, (void)why_size;
#define NOT_SUPPORTED(name) driver.name = (__typeof__(driver.name))(void (*)(void))not_supported;
  TT_CUDA_DRIVER_FUNCTIONS(NOT_SUPPORTED)
  driver.cuCtxGetCurrent = ctx_get;
  driver.cuCtxSetCurrent = ctx_set;
  driver.cuCtxGetDevice = ctx_device;
  driver.cuDeviceGetAttribute = attribute_of;
  driver.cuStreamGetCtx = stream_context;
  driver.cuStreamIsCapturing = is_capturing;
  return true;
}
const struct tt_cuda_driver *tt_cuda_driver(void)
{
  return &driver;
}

/* ---- Kernels ---- */

static char kernels[12];
#define KERNEL(type)                                                                                                   \
  const void *tt_cuda_kernel_##type(int protocol, int form);                                                           \
  const void *tt_cuda_kernel_##type(int protocol, int form)                                                            \
  {                                                                                                                    \
    (void)protocol, (void)form;                                                                                        \
    return &kernels[type];                                                                                             \
  }
KERNEL(0)
KERNEL(1)
KERNEL(2)
KERNEL(3)
KERNEL(4)
KERNEL(5)
KERNEL(6)
KERNEL(7)
KERNEL(8)
KERNEL(9)
KERNEL(10)
KERNEL(11)
