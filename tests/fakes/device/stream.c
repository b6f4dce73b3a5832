/* Streams: a thread each, which runs launches and calls in their order, and streams that wait for each other. */
#include "stream.h"

#include <stdlib.h>
#include <time.h>

pthread_mutex_t fake_all_lock = PTHREAD_MUTEX_INITIALIZER;
struct stream *fake_all_streams;
static pthread_mutex_t marks_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t marks_changed = PTHREAD_COND_INITIALIZER;
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

/* ---- Items ---- */

static void drop_mark(struct mark *mark)
{
  pthread_mutex_lock(&marks_lock);
  bool last = mark != NULL && --mark->refs == 0;
  pthread_mutex_unlock(&marks_lock);
  if (last) free(mark);
}

static void reach_mark(struct mark *mark)
{
  pthread_mutex_lock(&marks_lock);
  mark->reached = true;
  pthread_cond_broadcast(&marks_changed);
  pthread_mutex_unlock(&marks_lock);
}

static void await_mark(const struct mark *mark)
{
  pthread_mutex_lock(&marks_lock);
  while (!mark->reached) pthread_cond_wait(&marks_changed, &marks_lock);
  pthread_mutex_unlock(&marks_lock);
}

void fake_item_free(struct item *item)
{
  if (item->launch != NULL) fake_launch_drop(item->launch);
  drop_mark(item->reach);
  drop_mark(item->await);
  if (item->graph != NULL) fake_graph_drop(item->graph);
  free(item);
}

/* The launches of a context follow each other, since they share its connections. */
static void run_launch(const struct item *item)
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

static void run_item(const struct item *item)
{
  if (item->await != NULL) await_mark(item->await);
  if (item->launch != NULL) run_launch(item);
  if (item->call != NULL) item->call(item->argument);
  if (item->reach != NULL) reach_mark(item->reach);
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
    run_item(item);
    fake_item_free(item);
    pthread_mutex_lock(&stream->lock);
    stream->busy = false;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->lock);
  return NULL;
}

/* ---- Life ---- */

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
  pthread_mutex_lock(&fake_all_lock);
  stream->next = fake_all_streams;
  fake_all_streams = stream;
  pthread_mutex_unlock(&fake_all_lock);
  return stream;
}

static void forget(const struct stream *stream)
{
  pthread_mutex_lock(&fake_all_lock);
  struct stream **place = &fake_all_streams;
  while (*place != stream) place = &(*place)->next;
  *place = stream->next;
  pthread_mutex_unlock(&fake_all_lock);
}

FAKE_API void fake_stream_destroy(void *handle)
{
  struct stream *stream = handle;
  if (stream == NULL) return;
  forget(stream);
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
struct stream *fake_stream_find(void *handle, int device)
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
  struct stream *stream = fake_stream_find(handle, thread_device);
  pthread_mutex_lock(&stream->lock);
  stream->hold = hold;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->lock);
}

/* ---- What is put on streams ---- */

/* Takes the item. Called with the stream's lock held: a context's launches have the order in which they are issued on
 * every stream, so that streams do not wait for each other in a circle. */
void fake_stream_append(struct stream *stream, struct item *item)
{
  if (item->launch != NULL) {
    struct tt_device_context *context = item->launch->context;
    pthread_mutex_lock(&context->lock);
    item->ticket = context->issued++;
    pthread_mutex_unlock(&context->lock);
  }
  *stream->end = item;
  stream->end = &item->next;
  pthread_cond_broadcast(&stream->changed);
}

/* To be run, or recorded. */
static void put(struct stream *stream, struct item *item)
{
  pthread_mutex_lock(&stream->lock);
  if (stream->capture == NULL) {
    fake_stream_append(stream, item);
  } else {
    pthread_mutex_lock(&fake_graphs_lock);
    *stream->capture->end = item;
    stream->capture->end = &item->next;
    pthread_mutex_unlock(&fake_graphs_lock);
  }
  pthread_mutex_unlock(&stream->lock);
}

struct item *fake_item_new(void)
{
  struct item *item = calloc(1, sizeof *item);
  if (item == NULL) abort();
  return item;
}

ncclResult_t fake_launch_on(struct tt_work *const *works, int nworks, void *handle, struct tt_launch **out)
{
  struct fake_launch *launch;
  *out = NULL;
  if (nworks == 0) return ncclSuccess;
  for (int w = 0; w < nworks; w++) TT_TRY(fake_check_peers(works[w]));
  TT_TRY(fake_launch_copy(works, nworks, &launch));
  struct item *item = fake_item_new();
  item->launch = launch;
  put(fake_stream_find(handle, launch->context->device), item);
  return ncclSuccess;
}

FAKE_API void fake_stream_call(void *handle, void (*call)(void *argument), void *argument)
{
  struct item *item = fake_item_new();
  item->call = call;
  item->argument = argument;
  put(fake_stream_find(handle, thread_device), item);
}

static _Atomic int checks;

__attribute__((visibility("default"))) int fake_stream_checks(void)
{
  return atomic_load(&checks);
}

ncclResult_t fake_stream_check(struct tt_device_context *context, void *handle)
{
  int device = -1;
  atomic_fetch_add(&checks, 1);
  if (handle == NULL) return ncclSuccess;
  pthread_mutex_lock(&fake_all_lock);
  for (const struct stream *stream = fake_all_streams; stream != NULL; stream = stream->next)
    if (stream == handle) device = stream->device;
  pthread_mutex_unlock(&fake_all_lock);
  if (device == context->device) return ncclSuccess;
  if (device < 0) return TT_FAIL(ncclInvalidArgument, "it is no stream of a device, or was destroyed");
  return TT_FAIL(ncclInvalidArgument, "it is of device %d, the communicator of device %d", device, context->device);
}

/* A stream that follows a captured one is captured with it. What both record has one order, so that a mark is needed
 * only outside of captures. */
static void follow(struct stream *stream, struct stream *leader)
{
  struct fake_graph *graph;
  pthread_mutex_lock(&leader->lock);
  graph = leader->capture;
  pthread_mutex_unlock(&leader->lock);
  if (graph != NULL) {
    pthread_mutex_lock(&stream->lock);
    stream->capture = graph;
    pthread_mutex_unlock(&stream->lock);
    return;
  }
  struct item *reach = fake_item_new(), *await = fake_item_new();
  struct mark *mark = calloc(1, sizeof *mark);
  if (mark == NULL) abort();
  mark->refs = 2;
  reach->reach = await->await = mark;
  put(leader, reach);
  put(stream, await);
}

ncclResult_t fake_stream_follow(struct tt_device_context *context, void *stream, void *leader)
{
  follow(fake_stream_find(stream, context->device), fake_stream_find(leader, context->device));
  return ncclSuccess;
}

FAKE_API void fake_stream_join(void *stream, void *leader)
{
  follow(fake_stream_find(stream, thread_device), fake_stream_find(leader, thread_device));
}
