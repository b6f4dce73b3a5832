/* What captured graphs hold of users' memory, for as long as they can run: windows that are closed meanwhile, and what
 * was mapped for captured operations alone. Their ends are told on any thread, which may do nothing but note it; what
 * is not held any more is unmapped by the next call that may do so. */
#include <stdatomic.h>
#include <stdlib.h>
#include "base/check.h"
#include "transport/user_internal.h"

/* ---- Windows ---- */

static void let_go(void *window)
{
  tt_user_window_let_go(window);
}

ncclResult_t tt_user_window_keep(struct tt_user_buffers *buffers, struct tt_user_window *window, void *stream)
{
  const struct tt_device *device = buffers->env->device;
  struct tt_device_context *context = buffers->context->handle;
  uint64_t graph = 0;
  if (!(device->features & TT_DEVICE_GRAPHS)) return ncclSuccess;
  TT_TRY(device->capturing(context, stream, &graph));
  if (graph == 0 || window->graph == graph) return ncclSuccess;
  tt_user_window_hold(window);
  TT_TRY(device->at_graph_end(context, stream, let_go, window)); /* has let go if it failed */
  window->graph = graph;
  return ncclSuccess;
}

/* ---- What was mapped for captured operations ---- */

struct tt_user_graph {
  struct tt_user_graph *next;
  uint64_t graph;
  bool over;   /* it has ended; under graphs_lock, as the next */
  bool orphan; /* the communicator is gone, and who tells the end frees this */
  struct tt_user_import **imports;
  uint64_t *objects; /* descriptors that are shown */
  int nimports, nobjects;
};

static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;
/* Graphs of the process that have ended: so that a look for them costs next to nothing. */
static _Atomic uint64_t ended;

static void free_graph(struct tt_user_graph *graph)
{
  free(graph->imports);
  free(graph->objects);
  free(graph);
}

static void end_graph(void *argument)
{
  struct tt_user_graph *graph = argument;
  pthread_mutex_lock(&graphs_lock);
  graph->over = true;
  bool orphan = graph->orphan;
  pthread_mutex_unlock(&graphs_lock);
  if (orphan) free_graph(graph);
  atomic_fetch_add(&ended, 1);
}

static bool is_over(const struct tt_user_graph *graph)
{
  pthread_mutex_lock(&graphs_lock);
  bool over = graph->over;
  pthread_mutex_unlock(&graphs_lock);
  return over;
}

static void let_all_go(struct tt_user_buffers *buffers, struct tt_user_graph *graph)
{
  for (int i = 0; i < graph->nimports; i++) tt_user_import_end(buffers, graph->imports[i]);
  for (int o = 0; o < graph->nobjects; o++) tt_user_withdraw(buffers, graph->objects[o]);
  graph->nimports = graph->nobjects = 0;
}

static struct tt_user_graph *take_over(struct tt_user_buffers *buffers)
{
  pthread_mutex_lock(&buffers->lock);
  struct tt_user_graph **place = &buffers->graphs;
  while (*place != NULL && !is_over(*place)) place = &(*place)->next;
  struct tt_user_graph *graph = *place;
  if (graph != NULL) *place = graph->next;
  pthread_mutex_unlock(&buffers->lock);
  return graph;
}

void tt_user_graphs_reap(struct tt_user_buffers *buffers)
{
  uint64_t now = atomic_load(&ended);
  if (atomic_load(&buffers->ended_seen) == now) return;
  atomic_store(&buffers->ended_seen, now);
  for (struct tt_user_graph *graph; (graph = take_over(buffers)) != NULL;) {
    let_all_go(buffers, graph);
    free_graph(graph);
  }
}

void tt_user_graphs_destroy(struct tt_user_buffers *buffers)
{
  for (struct tt_user_graph *graph = buffers->graphs, *next; graph != NULL; graph = next) {
    next = graph->next;
    let_all_go(buffers, graph);
    pthread_mutex_lock(&graphs_lock);
    bool over = graph->over;
    graph->orphan = true;
    pthread_mutex_unlock(&graphs_lock);
    if (over) free_graph(graph);
  }
  buffers->graphs = NULL;
}

/* The entry of a graph that is being captured. */
static ncclResult_t find_graph(struct tt_user_buffers *buffers, void *stream, uint64_t number,
                               struct tt_user_graph **out)
{
  struct tt_user_graph *graph;
  pthread_mutex_lock(&buffers->lock);
  for (graph = buffers->graphs; graph != NULL && (graph->graph != number || is_over(graph));) graph = graph->next;
  pthread_mutex_unlock(&buffers->lock);
  *out = graph;
  if (graph != NULL) return ncclSuccess;
  TT_TRY(TT_CALLOC(&graph, 1));
  graph->graph = number;
  pthread_mutex_lock(&buffers->lock);
  graph->next = buffers->graphs;
  buffers->graphs = *out = graph;
  pthread_mutex_unlock(&buffers->lock);
  return buffers->env->device->at_graph_end(buffers->context->handle, stream, end_graph, graph);
}

/* Room for one more; that is a power of two. */
static ncclResult_t grow(void **array, int count, size_t size)
{
  if ((count & (count - 1)) != 0) return ncclSuccess;
  void *grown = realloc(*array, (size_t)TT_MAX(2 * count, 1) * size);
  if (grown == NULL) return TT_FAIL(ncclSystemError, "no memory for what a graph holds");
  *array = grown;
  return ncclSuccess;
}

static ncclResult_t add_import(struct tt_user_buffers *buffers, struct tt_user_graph *graph,
                               struct tt_user_import *import)
{
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < graph->nimports; i++)
    if (graph->imports[i] == import) goto has_it;
  result = grow((void **)&graph->imports, graph->nimports, sizeof(*graph->imports));
  if (result == ncclSuccess) {
    graph->imports[graph->nimports++] = import;
    return ncclSuccess;
  }
has_it:
  tt_user_import_end(buffers, import);
  return result;
}

static ncclResult_t add_object(struct tt_user_buffers *buffers, struct tt_user_graph *graph, uint64_t object)
{
  for (int o = 0; o < graph->nobjects; o++)
    if (graph->objects[o] == object) return ncclSuccess;
  TT_TRY(grow((void **)&graph->objects, graph->nobjects, sizeof(*graph->objects)));
  tt_user_show_longer(buffers, object);
  graph->objects[graph->nobjects++] = object;
  return ncclSuccess;
}

ncclResult_t tt_user_graph_hold(struct tt_user_buffers *buffers, void *stream, uint64_t number,
                                struct tt_user_import **imports, int nimports,
                                const struct tt_user_range *const ranges[2])
{
  struct tt_user_graph *graph = NULL;
  ncclResult_t result = find_graph(buffers, stream, number, &graph);
  for (int i = 0; i < nimports; i++) {
    ncclResult_t added = result;
    if (result == ncclSuccess)
      added = add_import(buffers, graph, imports[i]);
    else
      tt_user_import_end(buffers, imports[i]);
    result = added;
  }
  for (int side = 0; side < 2; side++)
    for (uint32_t p = 0; p < ranges[side]->nparts && result == ncclSuccess; p++)
      if (ranges[side]->parts[p].object != 0) result = add_object(buffers, graph, ranges[side]->parts[p].object);
  return result;
}
