/* The order of a context's launches, whatever their streams, and also where graphs repeat them. They use the same ends
 * of connections, so one has to be done before the next begins.
 *
 * Outside of captures there is one event behind the last launch, and a launch on another stream waits for it. A graph
 * is launched without a call of the library: so it has two nodes of its own, one before its first launch that waits for
 * the event, and one behind its last that records it. Each replay thereby waits for what was launched before it, and
 * what is launched after waits for the replay. Which launch is the graph's last is known only when the capture is over,
 * so the node is moved behind each new one; it is beside the stream's own line, and delays nothing in the graph.
 * NCCL_GRAPH_MIXING_SUPPORT=0 leaves both out, for programs that do not mix.
 *
 * Launches of one graph on several captured streams follow each other by edges (NCCL_GRAPH_STREAM_ORDERING).
 *
 * A launch right behind another one of its graph may begin while that ends: its blocks come to their processors, and
 * wait there (programmatic dependent launch). On two H200 that takes 0.3 to 0.4 us from each of small operations in a
 * row. Behind a kernel of the user's, which does not let the next one begin, it would cost 0.1 us. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "kernels/cuda/edges.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/stream.h"

void tt_cuda_graph_hold(struct tt_cuda_graph *graph)
{
  graph->references++;
}

void tt_cuda_graph_drop(struct tt_cuda_graph *graph)
{
  if (--graph->references == 0) free(graph);
}

/* Called by CUDA, when the graph is gone. */
static void CUDART_CB end_graph(void *argument)
{
  struct tt_cuda_graph *graph = argument;
  atomic_store(&graph->over, true);
  tt_cuda_graph_drop(graph);
}

/* A replay of a graph that is gone may have been launched on any stream. */
static void forget_over(struct tt_device_context *context)
{
  struct tt_cuda_executor *executor = context->executor;
  for (struct tt_cuda_graph **place = &executor->graphs; *place != NULL;) {
    struct tt_cuda_graph *graph = *place;
    if (!atomic_load(&graph->over)) {
      place = &graph->next;
      continue;
    }
    *place = graph->next;
    executor->replayed = true;
    tt_cuda_graph_drop(graph);
  }
}

void tt_cuda_graphs_forget(struct tt_device_context *context)
{
  struct tt_cuda_executor *executor = context->executor;
  while (executor->graphs != NULL) {
    struct tt_cuda_graph *graph = executor->graphs;
    executor->graphs = graph->next;
    tt_cuda_graph_drop(graph);
  }
}

static ncclResult_t find_graph(struct tt_device_context *context, const struct tt_cuda_capture *capture,
                               struct tt_cuda_graph **out)
{
  struct tt_cuda_executor *executor = context->executor;
  struct tt_cuda_graph *graph = executor->graphs;
  while (graph != NULL && graph->capture.id != capture->id) graph = graph->next;
  if (graph == NULL) {
    TT_TRY(TT_CALLOC(&graph, 1));
    graph->capture = *capture;
    graph->references = 2;
    ncclResult_t result = tt_cuda_capture_at_end(capture, end_graph, graph);
    if (result != ncclSuccess) {
      tt_cuda_graph_drop(graph);
      return result;
    }
    graph->next = executor->graphs;
    executor->graphs = graph;
  }
  *out = graph;
  return ncclSuccess;
}

/* Conditional nodes are one place where these cannot be. */
static ncclResult_t check_node(cudaError_t error)
{
  if (error == cudaSuccess) return ncclSuccess;
  ncclResult_t result = tt_cuda_check(error, "ordering a graph with other launches");
  TT_WARN("NCCL_GRAPH_MIXING_SUPPORT=0 does without, where no graph runs beside other operations of its communicator");
  return result;
}

static ncclResult_t begin_captured(struct tt_device_context *context, struct tt_cuda_graph *graph, cudaStream_t stream,
                                   cudaGraphNode_t before)
{
  if (graph->nlast == 0) {
    if (!tt_param_int(TT_PARAM_NCCL_GRAPH_MIXING_SUPPORT)) return ncclSuccess;
    return check_node(cudaStreamWaitEvent(stream, context->state->launched, cudaEventWaitExternal));
  }
  context->executor->begins_early = context->executor->can_begin_early && graph->nlast == 1 && before == graph->last[0];
  const bool same = stream == graph->stream && stream != cudaStreamPerThread;
  if (same || !tt_param_int(TT_PARAM_NCCL_GRAPH_STREAM_ORDERING)) return ncclSuccess;
  TT_CUDA_TRY(cudaStreamUpdateCaptureDependencies(stream, graph->last, TT_CUDA_EDGES(NULL, graph->nlast),
                                                  cudaStreamAddCaptureDependencies),
              "ordering launches of a graph");
  return ncclSuccess;
}

static ncclResult_t move_record(struct tt_device_context *context, struct tt_cuda_graph *graph,
                                const cudaGraphNode_t *nodes, size_t count)
{
  cudaGraph_t in = graph->capture.graph;
  if (graph->record == NULL)
    return check_node(cudaGraphAddEventRecordNode(&graph->record, in, nodes, count, context->state->launched));
  const cudaGraphNode_t records[TT_CUDA_LAST_NODES] = {graph->record, graph->record};
  TT_TRY(check_node(cudaGraphRemoveDependencies(in, graph->last, records, TT_CUDA_EDGES(NULL, graph->nlast))));
  return check_node(cudaGraphAddDependencies(in, nodes, records, TT_CUDA_EDGES(NULL, count)));
}

/* `nodes` is CUDA's, until the next call. */
static ncclResult_t keep_last(struct tt_device_context *context, struct tt_cuda_graph *graph, cudaStream_t stream,
                              const cudaGraphNode_t *nodes, size_t count)
{
  cudaGraphNode_t last[TT_CUDA_LAST_NODES] = {nodes[0], nodes[count - 1]};
  if (tt_param_int(TT_PARAM_NCCL_GRAPH_MIXING_SUPPORT)) {
    TT_TRY(move_record(context, graph, last, count));
    context->state->any_launch = true;
  }
  memcpy(graph->last, last, sizeof(last));
  graph->nlast = count;
  graph->stream = stream;
  return ncclSuccess;
}

/* What the stream's next node would come behind is the launch: a kernel, or that and copies beside it. */
static ncclResult_t end_captured(struct tt_device_context *context, struct tt_cuda_graph *graph, cudaStream_t stream)
{
  enum cudaStreamCaptureStatus status;
  const cudaGraphNode_t *nodes;
  size_t count = 0;
  TT_CUDA_TRY(cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &nodes, TT_CUDA_EDGES(NULL, &count)),
              "asking for the node of a launch");
  if (status != cudaStreamCaptureStatusActive || count < 1 || count > TT_CUDA_LAST_NODES)
    return TT_FAIL(ncclInternalError, "a kernel was captured, and %zu nodes are the last of its stream", count);
  return keep_last(context, graph, stream, nodes, count);
}

/* The result does not count: the launch's own error is what the caller gets. */
static void end_failed(struct tt_device_context *context, struct tt_cuda_graph *graph, cudaStream_t stream)
{
  enum cudaStreamCaptureStatus status;
  const cudaGraphNode_t *nodes;
  size_t count = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &nodes, TT_CUDA_EDGES(NULL, &count)) != cudaSuccess)
    cudaGetLastError();
  else if (status == cudaStreamCaptureStatusActive && count >= 1 && count <= TT_CUDA_LAST_NODES)
    keep_last(context, graph, stream, nodes, count);
}

/* Whether the last launch may have been on another stream. Replays are on any, and cudaStreamPerThread names another
 * one on each thread. */
static bool is_elsewhere(struct tt_device_context *context, cudaStream_t stream)
{
  struct tt_cuda_executor *executor = context->executor;
  if (!context->state->any_launch) return false;
  return stream != executor->last_stream || stream == cudaStreamPerThread || executor->graphs != NULL ||
         executor->replayed;
}

/* The core has asked for the stream, in the same call of the user's; the answer serves once. */
static ncclResult_t find_capture(struct tt_device_context *context, cudaStream_t stream,
                                 struct tt_cuda_capture *capture)
{
  bool asked = stream != NULL && context->state->asked == stream;
  context->state->asked = NULL;
  *capture = (struct tt_cuda_capture){0};
  return asked ? ncclSuccess : tt_cuda_capture_find(stream, capture);
}

ncclResult_t tt_cuda_order_begin(struct tt_device_context *context, cudaStream_t stream, struct tt_cuda_graph **graph)
{
  struct tt_cuda_capture capture;
  *graph = NULL;
  context->executor->begins_early = false;
  TT_TRY(find_capture(context, stream, &capture));
  forget_over(context);
  if (capture.id != 0) {
    TT_TRY(find_graph(context, &capture, graph));
    return begin_captured(context, *graph, stream, capture.last);
  }
  if (is_elsewhere(context, stream))
    TT_CUDA_TRY(cudaStreamWaitEvent(stream, context->state->launched, 0), "waiting for the last launch's stream");
  context->executor->last_stream = stream;
  context->executor->replayed = false;
  return ncclSuccess;
}

ncclResult_t tt_cuda_order_end(struct tt_device_context *context, cudaStream_t stream, struct tt_cuda_graph *graph)
{
  return graph != NULL ? end_captured(context, graph, stream) : tt_cuda_launched(context, stream);
}

void tt_cuda_order_failed(struct tt_device_context *context, cudaStream_t stream, struct tt_cuda_graph *graph)
{
  if (graph != NULL)
    end_failed(context, graph, stream);
  else
    tt_cuda_launched(context, stream);
}
