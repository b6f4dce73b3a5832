/* The user's streams: whether they can be used, waiting for each other, and whether they are captured. */
#include "kernels/cuda/stream.h"

#include "base/check.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/edges.h"
#include "kernels/cuda/state.h"

/* Handles that name the default streams of whatever GPU is the thread's. */
static bool is_default(const void *stream)
{
  return stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

/* A context is not the primary one of the communicator's GPU: of which GPU it is. */
static ncclResult_t check_owner(const struct tt_device_context *context, CUcontext owner)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUcontext previous;
  CUdevice device;
  TT_TRY(tt_cuda_driver_check(driver->cuCtxGetCurrent(&previous), "asking for the thread's context"));
  TT_TRY(tt_cuda_driver_check(driver->cuCtxSetCurrent(owner), "asking for a stream's context"));
  ncclResult_t result = tt_cuda_driver_check(driver->cuCtxGetDevice(&device), "asking for a stream's GPU");
  driver->cuCtxSetCurrent(previous);
  if (result != ncclSuccess || device == context->device) return result;
  return TT_FAIL(ncclInvalidArgument, "it is of GPU %d, the communicator of GPU %d", device, context->device);
}

/* A dead handle is the driver's to find out, which reads what it points to: of a stream that was destroyed it knows the
 * state until the memory is used for another one. A handle that was good before is not taken on trust, since streams
 * come again at old addresses, perhaps on another GPU; the question costs some tens of nanoseconds. */
ncclResult_t tt_cuda_check_stream(struct tt_device_context *context, void *stream)
{
  CUcontext owner;
  if (is_default(stream)) return ncclSuccess;
  CUresult error = tt_cuda_driver()->cuStreamGetCtx(stream, &owner);
  if (error == CUDA_SUCCESS && owner == context->state->primary) return ncclSuccess;
  if (error == CUDA_SUCCESS) return check_owner(context, owner);
  const char *name = NULL;
  tt_cuda_driver()->cuGetErrorName(error, &name);
  return TT_FAIL(ncclInvalidArgument, "it is no stream, or was destroyed (%s)", name != NULL ? name : "no name");
}

static ncclResult_t follow(const struct tt_device_context *context, cudaStream_t stream, cudaStream_t leader)
{
  TT_CUDA_TRY(cudaEventRecord(context->state->joined, leader), "recording an event to join streams");
  TT_CUDA_TRY(cudaStreamWaitEvent(stream, context->state->joined, 0), "joining streams");
  return ncclSuccess;
}

/* The event serves again at once: who waits for it waits for what it meant then. */
ncclResult_t tt_cuda_follow(struct tt_device_context *context, void *stream, void *leader)
{
  struct tt_cuda_enter enter;
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result = follow(context, stream, leader);
  tt_cuda_leave(&enter);
  return result;
}

ncclResult_t tt_cuda_capture_find(cudaStream_t stream, struct tt_cuda_capture *capture)
{
  enum cudaStreamCaptureStatus status;
  const cudaGraphNode_t *nodes = NULL;
  size_t count = 0;
  *capture = (struct tt_cuda_capture){0};
  cudaError_t error =
      cudaStreamGetCaptureInfo(stream, &status, &capture->id, &capture->graph, &nodes, TT_CUDA_EDGES(NULL, &count));
#if CUDART_VERSION >= 12030
  if (error == cudaErrorLossyQuery) { /* what comes next has edges of another kind: no operation is right before it */
    cudaGetLastError();
    count = 0;
    error = cudaStreamGetCaptureInfo(stream, &status, &capture->id, &capture->graph, NULL, TT_CUDA_EDGES(NULL, NULL));
  }
#endif
  if (error == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    return TT_FAIL(ncclInvalidUsage,
                   "the default stream cannot be used while a stream that waits for it is captured: use a stream of "
                   "its own, or capture one made with cudaStreamNonBlocking");
  }
  if (error == cudaErrorInvalidResourceHandle || error == cudaErrorContextIsDestroyed) {
    cudaGetLastError();
    return TT_FAIL(ncclInvalidArgument, "stream %p is no stream, or was destroyed (%s)", (void *)stream,
                   cudaGetErrorName(error));
  }
  TT_TRY(tt_cuda_check(error, "asking whether a stream is captured"));
  if (status == cudaStreamCaptureStatusInvalidated)
    return TT_FAIL(ncclInvalidUsage,
                   "stream %p is captured, and an earlier call made the capture invalid: end it, and "
                   "capture again",
                   (void *)stream);
  if (status == cudaStreamCaptureStatusNone)
    capture->id = 0;
  else if (count == 1)
    capture->last = nodes[0];
  return ncclSuccess;
}

/* Asked before each launch, so that the common answer takes one call, and is remembered for the launch. */
ncclResult_t tt_cuda_capturing(struct tt_device_context *context, void *stream, uint64_t *graph)
{
  struct tt_cuda_capture capture = {0};
  struct tt_cuda_enter enter;
  CUstreamCaptureStatus status;
  *graph = 0;
  context->state->asked = NULL;
  if (!is_default(stream) && tt_cuda_driver()->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_NONE) {
    context->state->asked = stream;
    return ncclSuccess;
  }
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result = tt_cuda_capture_find(stream, &capture);
  tt_cuda_leave(&enter);
  *graph = capture.id;
  return result;
}

/* CUDA calls `done` when the last reference is given up: the graph's, its copies', and those of what was instantiated
 * from it, while it may run. */
ncclResult_t tt_cuda_capture_at_end(const struct tt_cuda_capture *capture, void (*done)(void *argument), void *argument)
{
  cudaUserObject_t object;
  ncclResult_t result = tt_cuda_check(cudaUserObjectCreate(&object, argument, done, 1, cudaUserObjectNoDestructorSync),
                                      "asking to be told of a graph's end");
  if (result != ncclSuccess) {
    done(argument);
    return result;
  }
  result = tt_cuda_check(cudaGraphRetainUserObject(capture->graph, object, 1, cudaGraphUserObjectMove),
                         "asking to be told of a graph's end");
  if (result != ncclSuccess) cudaUserObjectRelease(object, 1); /* which calls it */
  return result;
}

static ncclResult_t at_graph_end(cudaStream_t stream, void (*done)(void *argument), void *argument)
{
  struct tt_cuda_capture capture;
  ncclResult_t result = tt_cuda_capture_find(stream, &capture);
  if (result == ncclSuccess && capture.id == 0)
    result = TT_FAIL(ncclInternalError, "stream %p is not captured", (void *)stream);
  if (result == ncclSuccess) return tt_cuda_capture_at_end(&capture, done, argument);
  done(argument);
  return result;
}

ncclResult_t tt_cuda_at_graph_end(struct tt_device_context *context, void *stream, void (*done)(void *argument),
                                  void *argument)
{
  struct tt_cuda_enter enter;
  ncclResult_t result = tt_cuda_enter(context, &enter);
  if (result != ncclSuccess) {
    done(argument);
    return result;
  }
  result = at_graph_end(stream, done, argument);
  tt_cuda_leave(&enter);
  return result;
}
