/* Streams: queues of works, and the order that the legacy stream makes among those of its device. Priorities say
 * nothing here. */
#include "gpu.h"

#include <stdlib.h>

/* About as many works as a stream of CUDA holds. */
enum { MOST_WORKS = 1024 };

struct CUstream_st *emu_streams;
static struct CUstream_st *legacy[EMU_MAX_DEVICES];

static struct CUstream_st *make(int device, bool blocking)
{
  struct CUstream_st *stream = emu_calloc(1, sizeof(*stream));
  *stream = (struct CUstream_st){.next = emu_streams, .device = device, .blocking = blocking};
  stream->end = &stream->first;
  return emu_streams = stream;
}

void emu_stream_end_if_empty(struct CUstream_st *stream)
{
  if (!stream->gone || stream->first != NULL || stream->references > 0) return;
  struct CUstream_st **place = &emu_streams;
  while (*place != stream) place = &(*place)->next;
  *place = stream->next;
  free(stream->last);
  free(stream);
}

/* What it has to do is still done. */
static void destroy(struct CUstream_st *stream)
{
  emu_capture_leave(stream);
  stream->gone = true;
  emu_stream_end_if_empty(stream);
}

/* ---- Handles ---- */

/* A thread has a default stream of its own on each device. */
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

static void end_own(void *streams)
{
  struct CUstream_st **own = streams;
  pthread_mutex_lock(&emu_lock);
  for (int d = 0; d < EMU_MAX_DEVICES; d++)
    if (own[d] != NULL) destroy(own[d]);
  pthread_mutex_unlock(&emu_lock);
  free(own);
}

static void make_own_key(void)
{
  pthread_key_create(&own_key, end_own);
}

static struct CUstream_st *find_own(int device)
{
  pthread_once(&own_once, make_own_key);
  struct CUstream_st **own = pthread_getspecific(own_key);
  if (own == NULL) {
    own = emu_calloc(EMU_MAX_DEVICES, sizeof(struct CUstream_st *));
    pthread_setspecific(own_key, own);
  }
  if (own[device] == NULL) own[device] = make(device, true);
  return own[device];
}

static struct CUstream_st *find_legacy(int device)
{
  if (legacy[device] == NULL) {
    legacy[device] = make(device, false);
    legacy[device]->legacy = true;
  }
  return legacy[device];
}

cudaError_t emu_stream_find(cudaStream_t handle, struct CUstream_st **out)
{
  struct CUstream_st *stream = emu_streams;
  if (handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    *out = handle == cudaStreamPerThread ? find_own(emu_device()) : find_legacy(emu_device());
    return cudaSuccess;
  }
  while (stream != NULL && (stream != handle || stream->gone)) stream = stream->next;
  *out = stream;
  return stream != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

/* ---- Works ---- */

static void append(struct CUstream_st *stream, struct emu_work *work)
{
  work->next = NULL;
  *stream->end = work;
  stream->end = &work->next;
  stream->queued++;
}

/* What comes next on one waits for what is on the other now. */
static void follow(struct CUstream_st *stream, struct CUstream_st *leader)
{
  if (leader->first == NULL) return;
  struct emu_mark *mark = emu_mark_make();
  append(leader, emu_work_make(&(struct emu_work){.what = EMU_RECORD, .mark = emu_mark_hold(mark)}));
  append(stream, emu_work_make(&(struct emu_work){.what = EMU_WAIT, .mark = mark}));
}

static void follow_blocking(struct CUstream_st *stream)
{
  for (struct CUstream_st *other = emu_streams; other != NULL; other = other->next)
    if (other->blocking && other->device == stream->device) follow(stream, other);
}

void emu_stream_push(struct CUstream_st *stream, struct emu_work *work)
{
  if (stream->legacy) follow_blocking(stream);
  if (stream->blocking && legacy[stream->device] != NULL) follow(stream, legacy[stream->device]);
  append(stream, work);
  emu_gpu_wake();
}

/* Who puts more on a stream than it can hold is stopped until there is room: it must not be the one for whom the works
 * wait. */
static void push_when_there_is_room(struct CUstream_st *stream, struct emu_work *work)
{
  stream->references++;
  while (stream->queued - stream->finished >= MOST_WORKS) emu_gpu_wait();
  emu_stream_push(stream, work);
  stream->references--;
}

cudaError_t emu_submit(struct CUstream_st *stream, struct emu_work *work)
{
  if (stream->capture != NULL) return emu_capture_work(stream, work);
  cudaError_t error = emu_legacy_allowed(stream, true);
  if (error == cudaSuccess)
    push_when_there_is_room(stream, work);
  else
    emu_work_free(work);
  return error;
}

/* ---- Waiting ---- */

static void wait_until(struct CUstream_st *stream, uint64_t finished)
{
  while (stream->finished < finished) emu_gpu_wait();
  stream->references--;
  emu_stream_end_if_empty(stream);
}

void emu_stream_wait(struct CUstream_st *stream)
{
  /* Waiting for the legacy stream is to wait for those that it waits for. */
  if (stream->legacy) emu_stream_push(stream, emu_work_make(&(struct emu_work){.what = EMU_EMPTY}));
  stream->references++;
  wait_until(stream, stream->queued);
}

void emu_device_wait(int device)
{
  struct {
    struct CUstream_st *stream;
    uint64_t queued;
  } * all;
  size_t count = 0, n = 0;
  for (struct CUstream_st *stream = emu_streams; stream != NULL; stream = stream->next) count++;
  all = emu_calloc(count, sizeof(*all));
  for (struct CUstream_st *stream = emu_streams; stream != NULL; stream = stream->next) {
    if ((device >= 0 && stream->device != device) || stream->first == NULL) continue;
    all[n].stream = stream;
    all[n++].queued = stream->queued;
    stream->references++;
  }
  for (size_t i = 0; i < n; i++) wait_until(all[i].stream, all[i].queued);
  free(all);
}

/* ---- Calls ---- */

static cudaError_t create(cudaStream_t *out, unsigned flags)
{
  *out = make(emu_device(), flags == cudaStreamDefault);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
  if (stream == NULL || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, create(stream, flags));
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
  (void)priority; /* CUDA, too, takes any */
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
  if (least != NULL) *least = 0;
  if (greatest != NULL) *greatest = -5;
  return cudaSuccess;
}

static cudaError_t destroy_handle(cudaStream_t handle)
{
  struct CUstream_st *stream;
  EMU_TRY(emu_stream_find(handle, &stream));
  if (stream != handle) return cudaErrorInvalidResourceHandle; /* a default stream */
  destroy(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
  EMU_RUNTIME(EMU_CONTEXT, destroy_handle(stream));
}

static bool is_done(const struct CUstream_st *stream)
{
  bool done = stream->first == NULL;
  for (struct CUstream_st *other = emu_streams; stream->legacy && other != NULL; other = other->next)
    if (other->blocking && other->device == stream->device) done &= other->first == NULL;
  return done;
}

static cudaError_t query(cudaStream_t handle)
{
  struct CUstream_st *stream;
  EMU_TRY(emu_stream_find(handle, &stream));
  EMU_TRY(emu_unsafe());
  EMU_TRY(emu_not_captured(stream));
  EMU_TRY(emu_legacy_allowed(stream, true));
  return is_done(stream) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
  EMU_RUNTIME(EMU_CONTEXT, query(stream));
}

static cudaError_t synchronize(cudaStream_t handle)
{
  struct CUstream_st *stream;
  EMU_TRY(emu_stream_find(handle, &stream));
  EMU_TRY(emu_unsafe());
  EMU_TRY(emu_not_captured(stream));
  EMU_TRY(emu_legacy_allowed(stream, true));
  emu_stream_wait(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
  EMU_RUNTIME(EMU_CONTEXT, synchronize(stream));
}

static cudaError_t synchronize_device(void)
{
  EMU_TRY(emu_unsafe());
  for (struct CUstream_st *stream = emu_streams; stream != NULL; stream = stream->next)
    if (stream->device == emu_device()) EMU_TRY(emu_not_captured(stream));
  emu_device_wait(emu_device());
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
  EMU_RUNTIME(EMU_CONTEXT, synchronize_device());
}
