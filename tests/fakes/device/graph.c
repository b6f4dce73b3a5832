/* Graphs: recording what is put on streams, and repeating it. */
#include "stream.h"

#include <stdlib.h>

pthread_mutex_t fake_graphs_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_graph;

void fake_graph_drop(struct fake_graph *graph)
{
  if (--graph->refs > 0) return;
  for (struct item *item = graph->first, *next; item != NULL; item = next) {
    next = item->next;
    fake_item_free(item);
  }
  for (struct fake_graph_end *end = graph->ends, *next; end != NULL; end = next) {
    next = end->next;
    end->done(end->argument);
    free(end);
  }
  free(graph);
}

ncclResult_t fake_stream_capturing(struct tt_device_context *context, void *handle, uint64_t *graph)
{
  struct stream *stream = fake_stream_find(handle, context->device);
  pthread_mutex_lock(&stream->lock);
  *graph = stream->capture != NULL ? stream->capture->id : 0;
  pthread_mutex_unlock(&stream->lock);
  return ncclSuccess;
}

ncclResult_t fake_graph_end(struct tt_device_context *context, void *handle, void (*done)(void *argument),
                            void *argument)
{
  struct stream *stream = fake_stream_find(handle, context->device);
  struct fake_graph_end *end = calloc(1, sizeof *end);
  if (end == NULL) abort();
  *end = (struct fake_graph_end){.done = done, .argument = argument};
  pthread_mutex_lock(&stream->lock);
  bool captured = stream->capture != NULL;
  if (captured) {
    pthread_mutex_lock(&fake_graphs_lock);
    end->next = stream->capture->ends;
    stream->capture->ends = end;
    pthread_mutex_unlock(&fake_graphs_lock);
  }
  pthread_mutex_unlock(&stream->lock);
  if (captured) return ncclSuccess;
  free(end);
  done(argument);
  return TT_FAIL(ncclInvalidUsage, "the stream is not captured");
}

FAKE_API void fake_capture_begin(void *handle)
{
  struct stream *stream = fake_stream_find(handle, fake_device_of_thread());
  struct fake_graph *graph = calloc(1, sizeof *graph);
  if (graph == NULL) abort();
  graph->refs = 1;
  graph->end = &graph->first;
  pthread_mutex_lock(&fake_graphs_lock);
  graph->id = ++last_graph;
  pthread_mutex_unlock(&fake_graphs_lock);
  pthread_mutex_lock(&stream->lock);
  stream->capture = graph;
  pthread_mutex_unlock(&stream->lock);
}

FAKE_API struct fake_graph *fake_capture_end(void *handle)
{
  const struct stream *captured = fake_stream_find(handle, fake_device_of_thread());
  struct fake_graph *graph = captured->capture;
  pthread_mutex_lock(&fake_all_lock);
  for (struct stream *stream = fake_all_streams; stream != NULL; stream = stream->next) {
    pthread_mutex_lock(&stream->lock);
    if (stream->capture == graph) stream->capture = NULL;
    pthread_mutex_unlock(&stream->lock);
  }
  pthread_mutex_unlock(&fake_all_lock);
  return graph;
}

FAKE_API void fake_graph_replay(struct fake_graph *graph, void *handle)
{
  struct stream *stream = fake_stream_find(handle, fake_device_of_thread());
  pthread_mutex_lock(&stream->lock);
  for (const struct item *recorded = graph->first; recorded != NULL; recorded = recorded->next) {
    struct item *item = fake_item_new();
    item->launch = recorded->launch != NULL ? fake_launch_hold(recorded->launch) : NULL;
    item->call = recorded->call;
    item->argument = recorded->argument;
    item->graph = graph;
    graph->refs++;
    fake_stream_append(stream, item);
  }
  pthread_mutex_unlock(&stream->lock);
}

FAKE_API void fake_graph_destroy(struct fake_graph *graph)
{
  fake_graph_drop(graph);
}
