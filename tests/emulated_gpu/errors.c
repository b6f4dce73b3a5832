/* Names of errors, and what they mean. The driver's have the runtime's numbers. */
#include "emulated.h"

#define ERRORS(X)                                                                                                      \
  X(cudaSuccess, CUDA_SUCCESS, "no error")                                                                             \
  X(cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE, "an argument is not valid")                                       \
  X(cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                              \
  X(cudaErrorInitializationError, CUDA_ERROR_NOT_INITIALIZED, "CUDA could not start, or has not yet")                  \
  X(cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE, "there is no GPU")                                                        \
  X(cudaErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE, "there is no such GPU")                                         \
  X(cudaErrorDeviceUninitialized, CUDA_ERROR_INVALID_CONTEXT, "the context is none, or not for that")                  \
  X(cudaErrorMapBufferObjectFailed, CUDA_ERROR_MAP_FAILED, "memory could not be mapped")                               \
  X(cudaErrorInvalidResourceHandle, CUDA_ERROR_INVALID_HANDLE, "a handle is none, or of another GPU")                  \
  X(cudaErrorIllegalState, CUDA_ERROR_ILLEGAL_STATE, "what it is asked for does not go with its state")                \
  X(cudaErrorNotReady, CUDA_ERROR_NOT_READY, "it is not done yet")                                                     \
  X(cudaErrorPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "the GPU has access already")           \
  X(cudaErrorPeerAccessNotEnabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "the GPU has no access")                        \
  X(cudaErrorLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,                                                 \
    "a block has more threads than the kernel takes")                                                                  \
  X(cudaErrorHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,                                   \
    "the memory is registered already")                                                                                \
  X(cudaErrorHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the memory is not registered")           \
  X(cudaErrorNotPermitted, CUDA_ERROR_NOT_PERMITTED, "it is not permitted")                                            \
  X(cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED, "the emulated GPUs cannot do that")                               \
  X(cudaErrorInvalidClusterSize, CUDA_ERROR_INVALID_CLUSTER_SIZE, "the clusters do not fit the grid or the GPU")       \
  X(cudaErrorStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a capture forbids it")                  \
  X(cudaErrorStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,                                          \
    "an earlier call made the capture invalid")                                                                        \
  X(cudaErrorStreamCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE, "it would make one of two captures")                 \
  X(cudaErrorStreamCaptureUnmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture was begun on another stream")   \
  X(cudaErrorStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a captured stream has not joined the first")  \
  X(cudaErrorStreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a capture would wait for what is outside")  \
  X(cudaErrorStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                                \
    "the legacy stream would wait for a stream that is captured")                                                      \
  X(cudaErrorCapturedEvent, CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a capture")                          \
  X(cudaErrorStreamCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "another thread began the capture")     \
  X(cudaErrorUnknown, CUDA_ERROR_UNKNOWN, "unknown error")
#define ONLY_RUNTIME(X)                                                                                                \
  X(cudaErrorInvalidConfiguration, "a kernel cannot be launched with such blocks or threads")                          \
  X(cudaErrorInvalidDevicePointer, "the pointer is not one of a GPU")                                                  \
  X(cudaErrorInvalidMemcpyDirection, "there is no such direction of a copy")                                           \
  X(cudaErrorInvalidDeviceFunction, "it is no kernel")

const char *cudaGetErrorName(cudaError_t error)
{
  switch (error) {
#define NAME(runtime, driver, text)                                                                                    \
  case runtime:                                                                                                        \
    return #runtime;
    ERRORS(NAME)
#undef NAME
#define NAME(runtime, text)                                                                                            \
  case runtime:                                                                                                        \
    return #runtime;
    ONLY_RUNTIME(NAME)
#undef NAME
  default:
    return "unrecognized error code";
  }
}

const char *cudaGetErrorString(cudaError_t error)
{
  switch (error) {
#define TEXT(runtime, driver, text)                                                                                    \
  case runtime:                                                                                                        \
    return text;
    ERRORS(TEXT)
#undef TEXT
#define TEXT(runtime, text)                                                                                            \
  case runtime:                                                                                                        \
    return text;
    ONLY_RUNTIME(TEXT)
#undef TEXT
  default:
    return "unrecognized error code";
  }
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
  switch (error) {
#define NAME(runtime, driver, text)                                                                                    \
  case driver:                                                                                                         \
    *name = #driver;                                                                                                   \
    return CUDA_SUCCESS;
    ERRORS(NAME)
#undef NAME
  default:
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
  const char *name;
  if (cuGetErrorName(error, &name) != CUDA_SUCCESS) {
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
  }
  *text = cudaGetErrorString((cudaError_t)error);
  return CUDA_SUCCESS;
}

#define SAME(runtime, driver, text)                                                                                    \
  _Static_assert((int)runtime == (int)driver, "the driver's errors have the runtime's numbers");
ERRORS(SAME)
