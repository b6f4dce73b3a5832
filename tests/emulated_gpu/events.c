/* Events: an event stands for what it was last recorded behind, be that on a stream or in a capture. */
#include "gpu.h"

#include <stdlib.h>

static struct CUevent_st *all;

struct CUevent_st *emu_event_hold(struct CUevent_st *event)
{
  event->references++;
  return event;
}

void emu_event_drop(struct CUevent_st *event)
{
  if (--event->references > 0) return;
  emu_mark_drop(event->mark);
  free(event->nodes);
  free(event);
}

struct emu_mark *emu_event_record(struct CUevent_st *event)
{
  emu_mark_drop(event->mark);
  event->capture = 0;
  event->mark = emu_mark_make();
  return emu_mark_hold(event->mark);
}

cudaError_t emu_event_find(cudaEvent_t handle, struct CUevent_st **out)
{
  struct CUevent_st *event = all;
  while (event != NULL && event != handle) event = event->next;
  *out = event;
  return event != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

static cudaError_t create(cudaEvent_t *out)
{
  struct CUevent_st *event = emu_calloc(1, sizeof(*event));
  *event = (struct CUevent_st){.next = all, .device = emu_device(), .references = 1};
  *out = all = event;
  return cudaSuccess;
}

/* They take no times. */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
  if (event == NULL || (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) != 0) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, create(event));
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

static cudaError_t destroy(cudaEvent_t handle)
{
  struct CUevent_st **place = &all;
  while (*place != NULL && *place != handle) place = &(*place)->next;
  if (*place == NULL) return cudaErrorInvalidResourceHandle;
  *place = handle->next;
  emu_event_drop(handle);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  EMU_RUNTIME(EMU_CONTEXT, destroy(event));
}

/* ---- On streams ---- */

static cudaError_t record(cudaEvent_t handle, cudaStream_t on)
{
  struct CUevent_st *event;
  struct CUstream_st *stream;
  EMU_TRY(emu_event_find(handle, &event));
  EMU_TRY(emu_stream_find(on, &stream));
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  if (stream->capture != NULL) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    emu_capture_record(stream, event);
    return cudaSuccess;
  }
  EMU_TRY(emu_legacy_allowed(stream, true));
  return emu_submit(stream, emu_work_make(&(struct emu_work){.what = EMU_RECORD, .mark = emu_event_record(event)}));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
  EMU_RUNTIME(EMU_CONTEXT, record(event, stream));
}

/* In a graph: for what it is recorded behind when the graph is launched. */
static cudaError_t wait_external(struct CUstream_st *stream, struct CUevent_st *event)
{
  if (stream->capture == NULL) return cudaErrorIllegalState;
  return emu_submit(stream, emu_work_make(&(struct emu_work){.what = EMU_WAIT, .event = emu_event_hold(event)}));
}

static cudaError_t wait(cudaStream_t on, cudaEvent_t handle, unsigned flags)
{
  struct CUevent_st *event;
  struct CUstream_st *stream;
  EMU_TRY(emu_event_find(handle, &event));
  EMU_TRY(emu_stream_find(on, &stream));
  if (flags == cudaEventWaitExternal) return wait_external(stream, event);
  if (stream->capture != NULL || event->capture != 0) return emu_capture_join(stream, event);
  EMU_TRY(emu_legacy_allowed(stream, true));
  if (event->mark == NULL || event->mark->done) return cudaSuccess;
  return emu_submit(stream, emu_work_make(&(struct emu_work){.what = EMU_WAIT, .mark = emu_mark_hold(event->mark)}));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
  if (flags != cudaEventWaitDefault && flags != cudaEventWaitExternal) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, wait(stream, event, flags));
}

/* ---- By the host ---- */

static cudaError_t query(cudaEvent_t handle)
{
  struct CUevent_st *event;
  EMU_TRY(emu_event_find(handle, &event));
  if (event->capture != 0) return cudaErrorCapturedEvent;
  EMU_TRY(emu_unsafe());
  return event->mark == NULL || event->mark->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
  EMU_RUNTIME(EMU_CONTEXT, query(event));
}

static cudaError_t synchronize(cudaEvent_t handle)
{
  struct CUevent_st *event;
  EMU_TRY(emu_event_find(handle, &event));
  if (event->capture != 0) return cudaErrorCapturedEvent;
  EMU_TRY(emu_unsafe());
  if (event->mark == NULL) return cudaSuccess;
  struct emu_mark *mark = emu_mark_hold(event->mark);
  while (!mark->done) emu_gpu_wait();
  emu_mark_drop(mark);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
  EMU_RUNTIME(EMU_CONTEXT, synchronize(event));
}
