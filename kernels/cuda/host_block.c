/* Page-locked memory, kept when its context is closed and used again by the next one: to free it would wait for all
 * kernels of the device, those of other communicators too, and one of these may wait for a rank whose thread is here.
 */
#include "kernels/cuda/state.h"

#include <string.h>
#include "base/check.h"
#include "base/hash.h"
#include "base/timer.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tt_cuda_host_block *unused;
static uint64_t mark; /* of blocks in the list: what else might come to lie there does not have it */

/* cudaDeviceReset frees the blocks that were made under its device. */
static bool is_still_there(const struct tt_cuda_host_block *block)
{
  struct cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, block) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeHost && block->mark == mark;
}

ncclResult_t tt_cuda_host_block_take(struct tt_cuda_host_block **out)
{
  struct tt_cuda_host_block *block = NULL;
  pthread_mutex_lock(&lock);
  if (unused != NULL && is_still_there(unused)) {
    block = unused;
    unused = block->next;
  } else {
    unused = NULL; /* the blocks behind a lost one cannot be found */
  }
  pthread_mutex_unlock(&lock);
  if (block == NULL)
    TT_CUDA_TRY(cudaHostAlloc((void **)&block, sizeof(*block), cudaHostAllocMapped | cudaHostAllocPortable),
                "allocating page-locked memory");
  memset(&block->mapped, 0, sizeof(block->mapped));
  block->mark = 0;
  *out = block;
  return ncclSuccess;
}

void tt_cuda_host_block_put(struct tt_cuda_host_block *block)
{
  pthread_mutex_lock(&lock);
  if (mark == 0) {
    uint64_t seed[] = {tt_timer_ns(), (uint64_t)(uintptr_t)block};
    mark = tt_hash(seed, sizeof(seed)) | 1;
  }
  block->mark = mark;
  block->next = unused;
  unused = block;
  pthread_mutex_unlock(&lock);
}
