/* Graphs: works, and which come behind which. */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/edges.h"

static struct CUgraph_st *graphs;

/* ---- Lists of nodes ---- */

void emu_nodes_set(struct CUgraphNode_st ***nodes, size_t *count, struct CUgraphNode_st *const *from, size_t nfrom)
{
  struct CUgraphNode_st **copy = emu_copy_of(from, nfrom * sizeof(*from));
  free(*nodes);
  *nodes = copy;
  *count = nfrom;
}

static size_t find_in(struct CUgraphNode_st *const *nodes, size_t count, const struct CUgraphNode_st *node)
{
  size_t i = 0;
  while (i < count && nodes[i] != node) i++;
  return i;
}

/* Each node once. */
void emu_nodes_add(struct CUgraphNode_st ***nodes, size_t *count, struct CUgraphNode_st *const *from, size_t nfrom)
{
  struct CUgraphNode_st **all = emu_calloc(*count + nfrom, sizeof(struct CUgraphNode_st *));
  if (*count > 0) memcpy(all, *nodes, *count * sizeof(*all));
  for (size_t i = 0; i < nfrom; i++)
    if (find_in(all, *count, from[i]) == *count) all[(*count)++] = from[i];
  free(*nodes);
  *nodes = all;
}

/* ---- Graphs ---- */

struct CUgraph_st *emu_graph_make(void)
{
  struct CUgraph_st *graph = emu_calloc(1, sizeof(*graph));
  graph->end = &graph->first;
  graph->next = graphs;
  return graphs = graph;
}

bool emu_graph_is(const struct CUgraph_st *graph)
{
  const struct CUgraph_st *other = graphs;
  while (other != NULL && other != graph) other = other->next;
  return other != NULL;
}

void emu_graph_free(struct CUgraph_st *graph)
{
  struct CUgraph_st **place = &graphs;
  while (*place != graph) place = &(*place)->next;
  *place = graph->next;
  for (struct CUgraphNode_st *node = graph->first, *next; node != NULL; node = next) {
    next = node->next;
    emu_work_free(node->work);
    free(node->before);
    free(node);
  }
  emu_objects_free(graph->objects);
  free(graph);
}

bool emu_graph_has(const struct CUgraph_st *graph, const struct CUgraphNode_st *node)
{
  const struct CUgraphNode_st *other = graph->first;
  while (other != NULL && other != node) other = other->next;
  return other != NULL;
}

struct CUgraphNode_st *emu_graph_add(struct CUgraph_st *graph, struct CUgraphNode_st *const *before, size_t nbefore,
                                     struct emu_work *work)
{
  struct CUgraphNode_st *node = emu_calloc(1, sizeof(*node));
  node->graph = graph;
  node->work = work;
  emu_nodes_set(&node->before, &node->nbefore, before, nbefore);
  *graph->end = node;
  graph->end = &node->next;
  graph->nnodes++;
  return node;
}

/* Depth first, with a list of its own: graphs may be long. */
bool emu_nodes_reach(struct CUgraph_st *graph, struct CUgraphNode_st *const *from, size_t nfrom,
                     struct CUgraphNode_st *const *to, size_t nto)
{
  struct CUgraphNode_st **todo = emu_calloc(graph->nnodes, sizeof(struct CUgraphNode_st *));
  size_t count = 0;
  bool all = true;
  for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) node->seen = false;
  for (size_t i = 0; i < nfrom; i++) {
    if (!from[i]->seen) todo[count++] = from[i];
    from[i]->seen = true;
  }
  while (count > 0) {
    struct CUgraphNode_st *node = todo[--count];
    for (size_t i = 0; i < node->nbefore; i++) {
      if (!node->before[i]->seen) todo[count++] = node->before[i];
      node->before[i]->seen = true;
    }
  }
  for (size_t i = 0; i < nto; i++) all &= to[i]->seen;
  free(todo);
  return all;
}

/* ---- Calls ---- */

static cudaError_t create(cudaGraph_t *graph)
{
  *graph = emu_graph_make();
  return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags)
{
  if (graph == NULL || flags != 0) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, create(graph));
}

static cudaError_t destroy(cudaGraph_t graph)
{
  if (!emu_graph_is(graph)) return cudaErrorInvalidValue;
  emu_graph_free(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
  EMU_RUNTIME(EMU_CONTEXT, destroy(graph));
}

static cudaError_t get_nodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
  if (!emu_graph_is(graph)) return cudaErrorInvalidValue;
  size_t room = *count, n = 0;
  if (nodes == NULL) {
    *count = graph->nnodes;
    return cudaSuccess;
  }
  for (struct CUgraphNode_st *node = graph->first; node != NULL && n < room; node = node->next) nodes[n++] = node;
  for (size_t i = n; i < room; i++) nodes[i] = NULL;
  *count = n;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
  if (count == NULL) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, get_nodes(graph, nodes, count));
}

static bool has_all(const struct CUgraph_st *graph, const cudaGraphNode_t *nodes, size_t count)
{
  bool all = emu_graph_is(graph) && (count == 0 || nodes != NULL);
  for (size_t i = 0; all && i < count; i++) all = emu_graph_has(graph, nodes[i]);
  return all;
}

static cudaError_t add_record(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before, size_t nbefore,
                              cudaEvent_t handle)
{
  struct CUevent_st *event;
  EMU_TRY(emu_event_find(handle, &event));
  if (!has_all(graph, before, nbefore)) return cudaErrorInvalidValue;
  struct emu_work work = {.what = EMU_RECORD, .event = emu_event_hold(event)};
  *node = emu_graph_add(graph, before, nbefore, emu_work_make(&work));
  return cudaSuccess;
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before,
                                        size_t nbefore, cudaEvent_t event)
{
  if (node == NULL) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, add_record(node, graph, before, nbefore, event));
}

/* Of all pairs, before any is changed. */
static cudaError_t check_pairs(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to, size_t count,
                               bool there)
{
  if (!has_all(graph, from, count) || !has_all(graph, to, count)) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; i++)
    if (from[i] == to[i] || (find_in(to[i]->before, to[i]->nbefore, from[i]) < to[i]->nbefore) != there)
      return cudaErrorInvalidValue;
  return cudaSuccess;
}

static cudaError_t add_dependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                    size_t count)
{
  EMU_TRY(check_pairs(graph, from, to, count, false));
  for (size_t i = 0; i < count; i++) emu_nodes_add(&to[i]->before, &to[i]->nbefore, &from[i], 1);
  return cudaSuccess;
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     TT_CUDA_EDGES(const cudaGraphEdgeData *edges, size_t count))
{
  if (TT_CUDA_GIVEN(edges)) return cudaErrorNotSupported;
  EMU_RUNTIME(EMU_CONTEXT, add_dependencies(graph, from, to, count));
}

static cudaError_t remove_dependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                       size_t count)
{
  EMU_TRY(check_pairs(graph, from, to, count, true));
  for (size_t i = 0; i < count; i++) {
    size_t at = find_in(to[i]->before, to[i]->nbefore, from[i]);
    if (at < to[i]->nbefore) to[i]->before[at] = to[i]->before[--to[i]->nbefore];
  }
  return cudaSuccess;
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                        TT_CUDA_EDGES(const cudaGraphEdgeData *edges, size_t count))
{
  if (TT_CUDA_GIVEN(edges)) return cudaErrorNotSupported;
  EMU_RUNTIME(EMU_CONTEXT, remove_dependencies(graph, from, to, count));
}
