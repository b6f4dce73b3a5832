/* The second stream, for copies beside those of the user's stream (engines.c). One that is captured belongs to the
 * capture until the user ends that, and takes nothing else meanwhile: so each capture that goes on has one of its own,
 * beside that of launches which are not captured. They serve again when their captures have ended. */
#include <stdlib.h>
#include "base/check.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/stream.h"

struct tt_cuda_second {
  struct tt_cuda_second *next;
  cudaStream_t stream;
  unsigned long long capture; /* the last one that it was used in; 0: in none */
};

static ncclResult_t is_free(const struct tt_cuda_second *second, bool *is)
{
  enum cudaStreamCaptureStatus status;
  TT_CUDA_TRY(cudaStreamIsCapturing(second->stream, &status), "asking whether a stream is captured");
  *is = status == cudaStreamCaptureStatusNone;
  return ncclSuccess;
}

static ncclResult_t add(struct tt_cuda_engines *engines, struct tt_cuda_second **out)
{
  struct tt_cuda_second *second;
  int least, greatest;
  /* See copies.c. */
  TT_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for the priorities of streams");
  TT_TRY(TT_CALLOC(&second, 1));
  ncclResult_t result =
      tt_cuda_check(cudaStreamCreateWithPriority(&second->stream, cudaStreamNonBlocking, greatest), "making a stream");
  if (result != ncclSuccess) {
    free(second);
    return result;
  }
  second->next = engines->seconds;
  engines->seconds = *out = second;
  return ncclSuccess;
}

/* One whose capture has ended; NULL: there is none. */
static ncclResult_t find_free(struct tt_cuda_engines *engines, struct tt_cuda_second **out)
{
  *out = NULL;
  for (struct tt_cuda_second *second = engines->seconds; second != NULL; second = second->next) {
    bool is = false;
    if (second->capture != 0) TT_TRY(is_free(second, &is));
    if (!is) continue;
    *out = second;
    break;
  }
  return ncclSuccess;
}

static ncclResult_t find(struct tt_cuda_engines *engines, unsigned long long capture, struct tt_cuda_second **out)
{
  struct tt_cuda_second *second = engines->seconds;
  while (second != NULL && second->capture != capture) second = second->next;
  if (second == NULL) TT_TRY(find_free(engines, &second));
  if (second == NULL) TT_TRY(add(engines, &second));
  second->capture = capture;
  *out = second;
  return ncclSuccess;
}

ncclResult_t tt_cuda_second_get(struct tt_device_context *context, const struct tt_cuda_graph *graph,
                                cudaStream_t *stream)
{
  struct tt_cuda_engines *engines = &context->state->engines;
  struct tt_cuda_second *second;
  if (engines->event == NULL)
    TT_CUDA_TRY(cudaEventCreateWithFlags(&engines->event, cudaEventDisableTiming), "making an event");
  TT_TRY(find(engines, graph != NULL ? graph->capture.id : 0, &second));
  *stream = second->stream;
  return ncclSuccess;
}

void tt_cuda_seconds_close(struct tt_device_context *context)
{
  struct tt_cuda_engines *engines = &context->state->engines;
  while (engines->seconds != NULL) {
    struct tt_cuda_second *second = engines->seconds;
    engines->seconds = second->next;
    cudaStreamDestroy(second->stream);
    free(second);
  }
  if (engines->event != NULL) cudaEventDestroy(engines->event);
}
