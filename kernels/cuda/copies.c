/* Copies by copy engines, on a stream of their own, beside all works: data on its way to peers, where
 * NCCL_P2P_USE_CUDA_MEMCPY asks for it. A ring of events tells how far they are. */
#include <sched.h>
#include "base/check.h"
#include "base/timer.h"
#include "kernels/cuda/state.h"

/* Copies whose ends can be told apart at a time. */
#define EVENTS TT_CUDA_COPY_EVENTS
/* Far longer than any copy takes. */
#define ROOM_MS 10000

static ncclResult_t open_copies(struct tt_device_context *context)
{
  struct tt_cuda_copies *copies = &context->state->copies;
  int least, greatest;
  if (copies->stream != NULL) return ncclSuccess;
  for (int i = 0; i < EVENTS; i++)
    if (copies->events[i] == NULL)
      TT_CUDA_TRY(cudaEventCreateWithFlags(&copies->events[i], cudaEventDisableTiming), "making an event");
  /* Not of the users' priority, whose streams may share a queue of the hardware: a copy must not stand behind a kernel
   * that waits for what it brings. */
  TT_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for the priorities of streams");
  TT_CUDA_TRY(cudaStreamCreateWithPriority(&copies->stream, cudaStreamNonBlocking, greatest), "making a stream");
  return ncclSuccess;
}

/* Who began copies has waited for them. */
void tt_cuda_copies_close(struct tt_device_context *context)
{
  struct tt_cuda_copies *copies = &context->state->copies;
  if (copies->stream != NULL) cudaStreamDestroy(copies->stream);
  for (int i = 0; i < EVENTS; i++)
    if (copies->events[i] != NULL) cudaEventDestroy(copies->events[i]);
}

/* Looks which of the copies are done, in their order. */
static ncclResult_t look(struct tt_cuda_copies *copies)
{
  while (copies->done != copies->begun) {
    cudaError_t error = cudaEventQuery(copies->events[(copies->done + 1) % EVENTS]);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();
      return ncclSuccess;
    }
    TT_CUDA_TRY(error, "a copy to a peer");
    copies->done++;
  }
  return ncclSuccess;
}

/* Only where nobody asks what is done is the ring ever full. Copies wait for nothing, so there is room soon. */
static ncclResult_t make_room(struct tt_device_context *context)
{
  struct tt_cuda_copies *copies = &context->state->copies;
  for (tt_deadline end = tt_deadline_in_ms(ROOM_MS); copies->begun - copies->done == EVENTS; sched_yield()) {
    if (tt_deadline_passed(end))
      return TT_FAIL(ncclUnhandledCudaError, "rank %d: GPU %d has not done a copy within %d ms", context->rank,
                     context->device, ROOM_MS);
    TT_TRY(look(copies));
  }
  return ncclSuccess;
}

static ncclResult_t begin(struct tt_device_context *context, void *to, const void *from, size_t bytes)
{
  struct tt_cuda_copies *copies = &context->state->copies;
  TT_TRY(open_copies(context));
  TT_TRY(make_room(context));
  TT_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, copies->stream), "beginning a copy to a peer");
  TT_CUDA_TRY(cudaEventRecord(copies->events[(copies->begun + 1) % EVENTS], copies->stream),
              "recording an event behind a copy");
  copies->begun++;
  return ncclSuccess;
}

ncclResult_t tt_cuda_copy(struct tt_device_context *context, void *to, const void *from, size_t bytes, uint64_t *ticket)
{
  struct tt_cuda_enter enter;
  TT_TRY(tt_cuda_enter(context, &enter));
  pthread_mutex_lock(&context->lock);
  ncclResult_t result = begin(context, to, from, bytes);
  *ticket = context->state->copies.begun;
  pthread_mutex_unlock(&context->lock);
  tt_cuda_leave(&enter);
  return result;
}

ncclResult_t tt_cuda_copied(struct tt_device_context *context, uint64_t *ticket)
{
  struct tt_cuda_enter enter;
  TT_TRY(tt_cuda_enter(context, &enter));
  pthread_mutex_lock(&context->lock);
  ncclResult_t result = look(&context->state->copies);
  *ticket = context->state->copies.done;
  pthread_mutex_unlock(&context->lock);
  tt_cuda_leave(&enter);
  return result;
}
