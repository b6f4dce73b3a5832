/* Captures: streams whose works become nodes of a graph. A stream is captured when a capture begins on it, or when it
 * waits for an event that was recorded in one. */
#include "gpu.h"

#include <stdlib.h>
#include "kernels/cuda/edges.h"

static struct emu_capture *captures; /* those that are going on */
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

struct emu_capture *emu_capture_by_id(unsigned long long id)
{
  struct emu_capture *capture = captures;
  while (capture != NULL && capture->id != id) capture = capture->next;
  return capture;
}

/* ---- What captures forbid ---- */

static bool forbids(const struct emu_capture *capture)
{
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  if (pthread_equal(capture->thread, pthread_self())) return capture->mode != cudaStreamCaptureModeRelaxed;
  return thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
}

cudaError_t emu_unsafe(void)
{
  bool forbidden = false;
  for (struct emu_capture *capture = captures; capture != NULL; capture = capture->next)
    if (forbids(capture)) capture->invalid = forbidden = true;
  return forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t emu_not_captured(struct CUstream_st *stream)
{
  if (stream->capture == NULL) return cudaSuccess;
  stream->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t emu_legacy_allowed(const struct CUstream_st *stream, bool invalidate)
{
  bool captured = false;
  for (struct CUstream_st *other = emu_streams; stream->legacy && other != NULL; other = other->next) {
    if (!other->blocking || other->device != stream->device || other->capture == NULL) continue;
    other->capture->invalid |= invalidate;
    captured = true;
  }
  return captured ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
  if (mode == NULL || (unsigned)*mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  enum cudaStreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return cudaSuccess;
}

/* ---- What becomes of works and events ---- */

cudaError_t emu_capture_work(struct CUstream_st *stream, struct emu_work *work)
{
  if (stream->capture->invalid) {
    emu_work_free(work);
    return cudaErrorStreamCaptureInvalidated;
  }
  struct CUgraphNode_st *node = emu_graph_add(stream->capture->graph, stream->last, stream->nlast, work);
  emu_nodes_set(&stream->last, &stream->nlast, &node, 1);
  return cudaSuccess;
}

void emu_capture_record(struct CUstream_st *stream, struct CUevent_st *event)
{
  emu_mark_drop(event->mark);
  event->mark = NULL;
  event->capture = stream->capture->id;
  emu_nodes_set(&event->nodes, &event->nnodes, stream->last, stream->nlast);
}

static cudaError_t invalidate(struct emu_capture *capture, cudaError_t error)
{
  if (capture != NULL) capture->invalid = true;
  return error;
}

cudaError_t emu_capture_join(struct CUstream_st *stream, const struct CUevent_st *event)
{
  struct emu_capture *capture = stream->capture, *theirs = emu_capture_by_id(event->capture);
  if (capture != NULL && capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (event->capture == 0) return invalidate(capture, cudaErrorStreamCaptureIsolation);
  if (theirs == NULL) return invalidate(capture, cudaErrorCapturedEvent); /* of a capture that is over */
  if (theirs->invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream->legacy) return invalidate(theirs, cudaErrorStreamCaptureImplicit);
  if (capture != NULL && capture != theirs) {
    theirs->invalid = true;
    return invalidate(capture, cudaErrorStreamCaptureMerge);
  }
  if (capture == NULL) stream->capture = theirs;
  emu_nodes_add(&stream->last, &stream->nlast, event->nodes, event->nnodes);
  return cudaSuccess;
}

static void detach(struct CUstream_st *stream)
{
  stream->capture = NULL;
  emu_nodes_set(&stream->last, &stream->nlast, NULL, 0);
}

static void end(struct emu_capture *capture)
{
  struct emu_capture **place = &captures;
  while (*place != capture) place = &(*place)->next;
  *place = capture->next;
  free(capture);
}

/* A capture whose first stream is destroyed has nobody who could end it. */
void emu_capture_leave(struct CUstream_st *stream)
{
  struct emu_capture *capture = stream->capture;
  if (capture == NULL) return;
  capture->invalid = true;
  detach(stream);
  if (capture->origin != stream) return;
  for (struct CUstream_st *other = emu_streams; other != NULL; other = other->next)
    if (other->capture == capture) detach(other);
  emu_graph_free(capture->graph);
  end(capture);
}

/* ---- Calls ---- */

static cudaError_t begin(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
  static unsigned long long last_id;
  struct CUstream_st *stream;
  EMU_TRY(emu_stream_find(handle, &stream));
  if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture != NULL) return cudaErrorIllegalState;
  struct emu_capture *capture = emu_calloc(1, sizeof(*capture));
  *capture = (struct emu_capture){.next = captures,
                                  .id = ++last_id,
                                  .mode = mode,
                                  .thread = pthread_self(),
                                  .origin = stream,
                                  .graph = emu_graph_make()};
  captures = stream->capture = capture;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
  if ((unsigned)mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, begin(stream, mode));
}

/* Whether what all other streams did last comes before what the first stream did last. Detaches all. */
static bool join_all(struct emu_capture *capture)
{
  struct CUstream_st *origin = capture->origin;
  bool joined = true;
  for (struct CUstream_st *stream = emu_streams; stream != NULL; stream = stream->next) {
    if (stream->capture != capture || stream == origin) continue;
    joined &= emu_nodes_reach(capture->graph, origin->last, origin->nlast, stream->last, stream->nlast);
    detach(stream);
  }
  detach(origin);
  return joined;
}

static cudaError_t end_capture(cudaStream_t handle, cudaGraph_t *out)
{
  struct CUstream_st *stream;
  EMU_TRY(emu_stream_find(handle, &stream));
  struct emu_capture *capture = stream->capture;
  if (capture == NULL) return cudaErrorIllegalState;
  if (capture->origin != stream) return invalidate(capture, cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(capture->thread, pthread_self()))
    return cudaErrorStreamCaptureWrongThread;
  cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  if (!join_all(capture) && error == cudaSuccess) error = cudaErrorStreamCaptureUnjoined;
  if (error == cudaSuccess)
    *out = capture->graph;
  else
    emu_graph_free(capture->graph);
  end(capture);
  return error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
  if (graph == NULL) return cudaErrorInvalidValue;
  *graph = NULL;
  EMU_RUNTIME(EMU_CONTEXT, end_capture(stream, graph));
}

static cudaError_t is_capturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status, struct CUstream_st **stream)
{
  EMU_TRY(emu_stream_find(handle, stream));
  EMU_TRY(emu_legacy_allowed(*stream, false));
  *status = (*stream)->capture == NULL    ? cudaStreamCaptureStatusNone
            : (*stream)->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                          : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
  struct CUstream_st *found;
  EMU_RUNTIME(EMU_CONTEXT, is_capturing(stream, status, &found));
}

static cudaError_t get_info(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                            cudaGraph_t *graph, const cudaGraphNode_t **nodes, size_t *count)
{
  struct CUstream_st *stream;
  EMU_TRY(is_capturing(handle, status, &stream));
  if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
  if (id != NULL) *id = stream->capture->id;
  if (graph != NULL) *graph = stream->capture->graph;
  if (nodes != NULL) *nodes = stream->last;
  if (count != NULL) *count = stream->nlast;
  return cudaSuccess;
}

/* Edges have no data here. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     TT_CUDA_EDGES(const cudaGraphEdgeData **edges, size_t *count))
{
  if (status == NULL || TT_CUDA_GIVEN(edges)) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, get_info(stream, status, id, graph, nodes, count));
}

static cudaError_t update(cudaStream_t handle, cudaGraphNode_t *nodes, size_t count, unsigned flags)
{
  struct CUstream_st *stream;
  EMU_TRY(emu_stream_find(handle, &stream));
  if (stream->capture == NULL) return cudaErrorIllegalState;
  if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  for (size_t i = 0; i < count; i++)
    if (!emu_graph_has(stream->capture->graph, nodes[i])) return cudaErrorInvalidValue;
  if (flags == cudaStreamSetCaptureDependencies)
    emu_nodes_set(&stream->last, &stream->nlast, nodes, count);
  else
    emu_nodes_add(&stream->last, &stream->nlast, nodes, count);
  return cudaSuccess;
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                TT_CUDA_EDGES(const cudaGraphEdgeData *edges, size_t count),
                                                unsigned flags)
{
  if (TT_CUDA_GIVEN(edges) || (count > 0 && nodes == NULL) ||
      (flags != cudaStreamSetCaptureDependencies && flags != cudaStreamAddCaptureDependencies))
    return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, update(stream, nodes, count, flags));
}
