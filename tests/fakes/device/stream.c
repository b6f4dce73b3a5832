/* Streams: a thread each, which runs launches in their order; recording and repeating them. */
#include "internal.h"

#include <stdlib.h>
#include <time.h>

#define FAKE_API __attribute__((visibility("default")))

struct item {
  struct item *next;
  struct fake_launch *launch;
  uint64_t ticket; /* among the context's */
};

struct stream {
  int device;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct item *first, **end;
  bool busy, hold, quit;
  struct fake_graph *capture; /* what is recorded now */
};

struct fake_graph {
  int nlaunches;
  struct fake_launch **launches;
};

static _Thread_local int thread_device;
static pthread_mutex_t defaults_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *defaults[FAKE_DEVICES];

int fake_device_of_thread(void)
{
  return thread_device;
}

FAKE_API void fake_set_device(int device)
{
  thread_device = device;
}

/* The launches of a context follow each other, since they share its connections. */
static void run_item(const struct item *item)
{
  struct tt_device_context *context = item->launch->context;
  pthread_mutex_lock(&context->lock);
  while (context->finished != item->ticket) pthread_cond_wait(&context->changed, &context->lock);
  pthread_mutex_unlock(&context->lock);
  fake_run(item->launch);
  pthread_mutex_lock(&context->lock);
  context->finished++;
  pthread_cond_broadcast(&context->changed);
  pthread_mutex_unlock(&context->lock);
}

static void *run_stream(void *arg)
{
  struct stream *stream = arg;
  fake_in_stream = true;
  pthread_mutex_lock(&stream->lock);
  for (;;) {
    struct item *item = stream->hold ? NULL : stream->first;
    if (item == NULL) {
      if (stream->quit && stream->first == NULL) break;
      pthread_cond_wait(&stream->changed, &stream->lock);
      continue;
    }
    stream->first = item->next;
    if (stream->first == NULL) stream->end = &stream->first;
    stream->busy = true;
    pthread_mutex_unlock(&stream->lock);
    struct fake_launch *launch = item->launch;
    run_item(item);
    free(item);
    fake_launch_drop(launch);
    pthread_mutex_lock(&stream->lock);
    stream->busy = false;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->lock);
  return NULL;
}

FAKE_API void *fake_stream_create(int device)
{
  struct stream *stream = calloc(1, sizeof *stream);
  pthread_condattr_t attributes;
  if (stream == NULL) return NULL;
  stream->device = device;
  stream->end = &stream->first;
  pthread_mutex_init(&stream->lock, NULL);
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&stream->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  if (pthread_create(&stream->thread, NULL, run_stream, stream) != 0) abort();
  fake_totals.streams++;
  return stream;
}

FAKE_API void fake_stream_destroy(void *handle)
{
  struct stream *stream = handle;
  if (stream == NULL) return;
  pthread_mutex_lock(&stream->lock);
  stream->quit = true;
  stream->hold = false;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->lock);
  pthread_join(stream->thread, NULL);
  pthread_cond_destroy(&stream->changed);
  pthread_mutex_destroy(&stream->lock);
  free(stream);
  fake_totals.streams--;
}

/* Default streams are made when first used. */
static struct stream *find(void *handle, int device)
{
  if (handle != NULL) return handle;
  pthread_mutex_lock(&defaults_lock);
  if (defaults[device] == NULL) defaults[device] = fake_stream_create(device);
  struct stream *stream = defaults[device];
  pthread_mutex_unlock(&defaults_lock);
  return stream;
}

static struct stream *existing(int device)
{
  pthread_mutex_lock(&defaults_lock);
  struct stream *stream = defaults[device];
  pthread_mutex_unlock(&defaults_lock);
  return stream;
}

void fake_streams_end(int device)
{
  pthread_mutex_lock(&defaults_lock);
  struct stream *stream = defaults[device];
  defaults[device] = NULL;
  pthread_mutex_unlock(&defaults_lock);
  fake_stream_destroy(stream);
}

FAKE_API bool fake_stream_wait(void *handle, int timeout_ms)
{
  struct stream *stream = handle != NULL ? handle : existing(thread_device);
  if (stream == NULL) return true;
  uint64_t end = tt_timer_ns() + (uint64_t)timeout_ms * 1000000;
  struct timespec until = {.tv_sec = (time_t)(end / 1000000000u), .tv_nsec = (long)(end % 1000000000u)};
  int waited = 0;
  pthread_mutex_lock(&stream->lock);
  while ((stream->first != NULL || stream->busy) && waited == 0)
    waited = pthread_cond_timedwait(&stream->changed, &stream->lock, &until);
  bool idle = stream->first == NULL && !stream->busy;
  pthread_mutex_unlock(&stream->lock);
  return idle;
}

FAKE_API void fake_stream_hold(void *handle, bool hold)
{
  struct stream *stream = find(handle, thread_device);
  pthread_mutex_lock(&stream->lock);
  stream->hold = hold;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->lock);
}

/* Takes over a reference to the launch. Called with the stream's lock held: a context's launches have the order in
 * which they are issued on every stream, so that streams do not wait for each other in a circle. */
static ncclResult_t append(struct stream *stream, struct fake_launch *launch)
{
  struct tt_device_context *context = launch->context;
  struct item *item;
  ncclResult_t result = TT_CALLOC(&item, 1);
  if (result != ncclSuccess) {
    fake_launch_drop(launch);
    return result;
  }
  item->launch = launch;
  pthread_mutex_lock(&context->lock);
  item->ticket = context->issued++;
  pthread_mutex_unlock(&context->lock);
  *stream->end = item;
  stream->end = &item->next;
  pthread_cond_broadcast(&stream->changed);
  return ncclSuccess;
}

static ncclResult_t record(struct fake_graph *graph, struct fake_launch *launch)
{
  void *more = realloc(graph->launches, (size_t)(graph->nlaunches + 1) * sizeof *graph->launches);
  if (more == NULL) {
    fake_launch_drop(launch);
    return TT_FAIL(ncclSystemError, "no memory to record a launch");
  }
  graph->launches = more;
  graph->launches[graph->nlaunches++] = launch;
  return ncclSuccess;
}

ncclResult_t fake_launch_on(struct tt_work *const *works, int nworks, void *handle, struct tt_launch **out)
{
  struct fake_launch *launch;
  *out = NULL;
  if (nworks == 0) return ncclSuccess;
  TT_TRY(fake_launch_copy(works, nworks, &launch));
  struct stream *stream = find(handle, launch->context->device);
  if (stream->device != launch->context->device) {
    int device = launch->context->device;
    fake_launch_drop(launch);
    return TT_FAIL(ncclInvalidArgument, "the stream is of device %d, the communicator of device %d", stream->device,
                   device);
  }
  pthread_mutex_lock(&stream->lock);
  ncclResult_t result = stream->capture != NULL ? record(stream->capture, launch) : append(stream, launch);
  pthread_mutex_unlock(&stream->lock);
  return result;
}

FAKE_API void fake_capture_begin(void *handle)
{
  struct stream *stream = find(handle, thread_device);
  pthread_mutex_lock(&stream->lock);
  stream->capture = calloc(1, sizeof *stream->capture);
  if (stream->capture == NULL) abort();
  pthread_mutex_unlock(&stream->lock);
}

FAKE_API struct fake_graph *fake_capture_end(void *handle)
{
  struct stream *stream = find(handle, thread_device);
  pthread_mutex_lock(&stream->lock);
  struct fake_graph *graph = stream->capture;
  stream->capture = NULL;
  pthread_mutex_unlock(&stream->lock);
  return graph;
}

FAKE_API void fake_graph_replay(struct fake_graph *graph, void *handle)
{
  struct stream *stream = find(handle, thread_device);
  pthread_mutex_lock(&stream->lock);
  for (int l = 0; l < graph->nlaunches; l++)
    if (append(stream, fake_launch_hold(graph->launches[l])) != ncclSuccess) abort();
  pthread_mutex_unlock(&stream->lock);
}

FAKE_API void fake_graph_destroy(struct fake_graph *graph)
{
  for (int l = 0; l < graph->nlaunches; l++) fake_launch_drop(graph->launches[l]);
  free(graph->launches);
  free(graph);
}
