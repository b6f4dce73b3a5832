/* Small pieces of device memory that live as long as their context, cut from chunks; and small copies to the device. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/state.h"

/* What an allocation of a GPU is rounded up to anyway, today. */
#define CHUNK_BYTES ((size_t)2 << 20)
#define ALIGN 256

struct tt_cuda_chunk {
  struct tt_cuda_chunk *next;
  struct tt_device_memory memory;
  size_t used;
};

static ncclResult_t add_chunk(struct tt_device_context *context, size_t bytes, struct tt_cuda_chunk **out)
{
  struct tt_cuda_chunk *chunk;
  TT_TRY(TT_CALLOC(&chunk, 1));
  ncclResult_t result = tt_cuda_alloc(context, TT_MAX(bytes, CHUNK_BYTES), &chunk->memory);
  if (result != ncclSuccess) {
    free(chunk);
    return result;
  }
  chunk->next = context->state->chunks;
  context->state->chunks = chunk;
  *out = chunk;
  return ncclSuccess;
}

ncclResult_t tt_cuda_small_alloc(struct tt_device_context *context, size_t bytes, void **ptr)
{
  ncclResult_t result = ncclSuccess;
  bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
  *ptr = NULL;
  pthread_mutex_lock(&context->lock);
  struct tt_cuda_chunk *chunk = context->state->chunks;
  while (chunk != NULL && chunk->memory.bytes - chunk->used < bytes) chunk = chunk->next;
  if (chunk == NULL) result = add_chunk(context, bytes, &chunk);
  if (result == ncclSuccess) {
    *ptr = (char *)chunk->memory.ptr + chunk->used;
    chunk->used += bytes;
  }
  pthread_mutex_unlock(&context->lock);
  return result;
}

void tt_cuda_small_free_all(struct tt_device_context *context)
{
  while (context->state->chunks != NULL) {
    struct tt_cuda_chunk *chunk = context->state->chunks;
    context->state->chunks = chunk->next;
    tt_cuda_release(context, &chunk->memory);
    free(chunk);
  }
}

ncclResult_t tt_cuda_upload(struct tt_device_context *context, void *to, const void *from, size_t bytes)
{
  unsigned char *staging = context->state->block->staging;
  struct tt_cuda_enter enter;
  ncclResult_t result;
  TT_TRY(tt_cuda_enter(context, &enter));
  pthread_mutex_lock(&context->lock);
  result = context->state->side_stuck ? TT_FAIL(ncclSystemError, "rank %d: GPU %d has not done an earlier copy",
                                                context->rank, context->device)
                                      : ncclSuccess;
  for (size_t at = 0; result == ncclSuccess && at < bytes; at += TT_CUDA_STAGING_BYTES) {
    size_t piece = TT_MIN(bytes - at, (size_t)TT_CUDA_STAGING_BYTES);
    memcpy(staging, (const char *)from + at, piece);
    cudaError_t started = cudaMemcpyAsync((char *)to + at, staging, piece, cudaMemcpyDefault, context->side);
    result = tt_cuda_side_wait(context, started, "copying to a GPU");
  }
  pthread_mutex_unlock(&context->lock);
  tt_cuda_leave(&enter);
  return result;
}
