/* The user's streams, and graphs that streams are captured into. */
#ifndef TT_KERNELS_CUDA_STREAM_H
#define TT_KERNELS_CUDA_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include "kernels/cuda/context.h"

/* stream.c: see tt_device. */
ncclResult_t tt_cuda_check_stream(struct tt_device_context *context, void *stream);
ncclResult_t tt_cuda_follow(struct tt_device_context *context, void *stream, void *leader);
ncclResult_t tt_cuda_capturing(struct tt_device_context *context, void *stream, uint64_t *graph);
ncclResult_t tt_cuda_at_graph_end(struct tt_device_context *context, void *stream, void (*done)(void *argument),
                                  void *argument);

/* What a stream is captured into; id 0: it is not. */
struct tt_cuda_capture {
  unsigned long long id; /* never used again in this process */
  cudaGraph_t graph;
  cudaGraphNode_t last; /* that the stream's next node comes behind; NULL: none, or several */
};
/* The rest is called between enter and leave. */
ncclResult_t tt_cuda_capture_find(cudaStream_t stream, struct tt_cuda_capture *capture);
/* Has `done` called when the graph and all that was made of it is gone; at once if it fails. */
ncclResult_t tt_cuda_capture_at_end(const struct tt_cuda_capture *capture, void (*done)(void *argument),
                                    void *argument);

/* graph.c: launches that are captured. A graph that a context has launches in. */
enum { TT_CUDA_LAST_NODES = 2 };
struct tt_cuda_graph {
  struct tt_cuda_graph *next;
  struct tt_cuda_capture capture;
  _Atomic int references;
  _Atomic bool over;                        /* it is gone: nothing that it was given is used any more */
  cudaStream_t stream;                      /* of the last launch */
  cudaGraphNode_t last[TT_CUDA_LAST_NODES]; /* that launch: its kernel, and what is copied beside it */
  size_t nlast;                             /* 0: none yet */
  cudaGraphNode_t record;                   /* the node behind them that records the context's event, or NULL */
};

/* Before a launch: what has to come first comes first. *graph: what the stream is captured into, or NULL. One thread at
 * a time for a context, as for launches. */
ncclResult_t tt_cuda_order_begin(struct tt_device_context *context, cudaStream_t stream, struct tt_cuda_graph **graph);
/* After it. */
ncclResult_t tt_cuda_order_end(struct tt_device_context *context, cudaStream_t stream, struct tt_cuda_graph *graph);
/* Instead of it where a launch failed: kernels before the failure run, and what comes later waits for them. */
void tt_cuda_order_failed(struct tt_device_context *context, cudaStream_t stream, struct tt_cuda_graph *graph);
void tt_cuda_graph_hold(struct tt_cuda_graph *graph);
void tt_cuda_graph_drop(struct tt_cuda_graph *graph);
/* Forgets all, at the context's end. */
void tt_cuda_graphs_forget(struct tt_device_context *context);

#endif
