/* Launches that are too long for a kernel's parameters: their words lie in pieces of device memory, which are used
 * again in the order in which launches end. A launch waits for none: where all pieces are in use there is one more. How
 * many there can be is bounded by what CUDA lets a stream hold before it stops the caller. Pieces that graphs use are
 * theirs until these are gone. */
#include <stdlib.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/stream.h"

/* A piece has room for a group of some hundred sends and receives, or for a power of two times as much. */
#define PIECE_BYTES ((size_t)16 << 10)

struct tt_cuda_blob {
  struct tt_cuda_blob *next;
  void *on_device;
  size_t bytes;
  cudaEvent_t done;            /* behind the launch that uses it */
  struct tt_cuda_graph *graph; /* that uses it, or NULL */
};

static void put_idle(struct tt_cuda_executor *executor, struct tt_cuda_blob *blob)
{
  blob->next = executor->idle;
  executor->idle = blob;
}

/* Launches of a context end in their order: the first that runs is the last to ask. */
static void reclaim_launched(struct tt_cuda_executor *executor)
{
  while (executor->launched != NULL && cudaEventQuery(executor->launched->done) == cudaSuccess) {
    struct tt_cuda_blob *blob = executor->launched;
    executor->launched = blob->next;
    if (executor->launched == NULL) executor->launched_end = &executor->launched;
    put_idle(executor, blob);
  }
  if (executor->launched != NULL) cudaGetLastError();
}

static void reclaim_captured(struct tt_cuda_executor *executor)
{
  for (struct tt_cuda_blob **place = &executor->captured; *place != NULL;) {
    struct tt_cuda_blob *blob = *place;
    if (!atomic_load(&blob->graph->over)) {
      place = &blob->next;
      continue;
    }
    *place = blob->next;
    tt_cuda_graph_drop(blob->graph);
    blob->graph = NULL;
    put_idle(executor, blob);
  }
}

static struct tt_cuda_blob *take_idle(struct tt_cuda_executor *executor, size_t bytes)
{
  struct tt_cuda_blob **place = &executor->idle;
  while (*place != NULL && (*place)->bytes < bytes) place = &(*place)->next;
  struct tt_cuda_blob *blob = *place;
  if (blob != NULL) *place = blob->next;
  return blob;
}

static ncclResult_t make(struct tt_device_context *context, size_t bytes, struct tt_cuda_blob **out)
{
  struct tt_cuda_blob *blob;
  TT_TRY(TT_CALLOC(&blob, 1));
  for (blob->bytes = PIECE_BYTES; blob->bytes < bytes;) blob->bytes *= 2;
  ncclResult_t result = tt_cuda_check(cudaEventCreateWithFlags(&blob->done, cudaEventDisableTiming), "making an event");
  if (result == ncclSuccess) result = tt_cuda_small_alloc(context, blob->bytes, &blob->on_device);
  if (result == ncclSuccess) {
    *out = blob;
    return ncclSuccess;
  }
  if (blob->done != NULL) cudaEventDestroy(blob->done);
  free(blob);
  return result;
}

ncclResult_t tt_cuda_blob_take(struct tt_device_context *context, const uint32_t *words, size_t bytes,
                               struct tt_cuda_blob **out, const uint32_t **on_device)
{
  struct tt_cuda_executor *executor = context->executor;
  reclaim_launched(executor);
  reclaim_captured(executor);
  struct tt_cuda_blob *blob = take_idle(executor, bytes);
  if (blob == NULL) TT_TRY(make(context, bytes, &blob));
  ncclResult_t result = tt_cuda_upload(context, blob->on_device, words, bytes);
  if (result != ncclSuccess) {
    put_idle(executor, blob);
    return result;
  }
  *on_device = blob->on_device;
  *out = blob;
  return ncclSuccess;
}

ncclResult_t tt_cuda_blob_launched(struct tt_device_context *context, struct tt_cuda_blob *blob, cudaStream_t stream,
                                   struct tt_cuda_graph *graph)
{
  struct tt_cuda_executor *executor = context->executor;
  if (graph != NULL) {
    tt_cuda_graph_hold(graph);
    blob->graph = graph;
    blob->next = executor->captured;
    executor->captured = blob;
    return ncclSuccess;
  }
  blob->next = NULL;
  *executor->launched_end = blob;
  executor->launched_end = &blob->next;
  TT_CUDA_TRY(cudaEventRecord(blob->done, stream), "recording an event behind a launch");
  return ncclSuccess;
}

static void free_list(struct tt_cuda_blob *first)
{
  for (struct tt_cuda_blob *blob = first, *next; blob != NULL; blob = next) {
    next = blob->next;
    if (blob->graph != NULL) tt_cuda_graph_drop(blob->graph);
    cudaEventDestroy(blob->done);
    free(blob);
  }
}

void tt_cuda_blobs_free(struct tt_device_context *context)
{
  struct tt_cuda_executor *executor = context->executor;
  free_list(executor->launched);
  free_list(executor->captured);
  free_list(executor->idle);
}
