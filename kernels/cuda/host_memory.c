/* Memory of the host that kernels use: made page-locked and mapped where it lies. CUDA has a range registered once a
 * process, for all devices, and refuses it a second time; so ranges are counted here, over all contexts.
 *
 * Nothing is registered while it can be that a device was reset under it: a context that has a range mapped holds the
 * device's primary context as well, and the core closes it after the range. */
#include "kernels/cuda/state.h"

#include <stdlib.h>
#include "base/check.h"

struct range {
  struct range *next;
  unsigned char *ptr;
  size_t bytes;
  unsigned references;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list, and of what is registered */
static struct range *ranges;

static bool overlap(const struct range *range, const unsigned char *ptr, size_t bytes)
{
  return ptr < range->ptr + range->bytes && range->ptr < ptr + bytes;
}

/* The range itself, or NULL where there is none. */
static ncclResult_t find(unsigned char *ptr, size_t bytes, struct range **out)
{
  *out = ranges;
  while (*out != NULL && !overlap(*out, ptr, bytes)) *out = (*out)->next;
  if (*out == NULL || ((*out)->ptr == ptr && (*out)->bytes == bytes)) return ncclSuccess;
  return TT_FAIL(ncclInternalError,
                 "%zu bytes of host memory at %p are to be mapped, of which a part is already: %zu at %p", bytes,
                 (void *)ptr, (*out)->bytes, (void *)(*out)->ptr);
}

static ncclResult_t begin(unsigned char *ptr, size_t bytes, struct range **out)
{
  struct range *range;
  TT_TRY(TT_CALLOC(&range, 1));
  ncclResult_t result = tt_cuda_check(cudaHostRegister(ptr, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable),
                                      "making host memory page-locked (cudaHostRegister)");
  if (result != ncclSuccess) {
    free(range);
    return TT_FAIL(result,
                   "%zu bytes of shared host memory cannot be used by GPUs: %s. The limit of locked memory "
                   "(ulimit -l) may be too low; NCCL_SHM_DISABLE=1 does without",
                   bytes, tt_log_thread_error());
  }
  *range = (struct range){.next = ranges, .ptr = ptr, .bytes = bytes};
  ranges = *out = range;
  return ncclSuccess;
}

static void end(struct range *range)
{
  struct range **link = &ranges;
  while (*link != range) link = &(*link)->next;
  *link = range->next;
  tt_cuda_check(cudaHostUnregister(range->ptr), "giving page-locked host memory back (cudaHostUnregister)");
  free(range);
}

static ncclResult_t map_entered(unsigned char *ptr, size_t bytes, void **at)
{
  struct range *range;
  TT_TRY(find(ptr, bytes, &range));
  if (range == NULL) TT_TRY(begin(ptr, bytes, &range));
  ncclResult_t result = tt_cuda_check(cudaHostGetDevicePointer(at, ptr, 0), "finding host memory on the GPU");
  if (result == ncclSuccess)
    range->references++;
  else if (range->references == 0)
    end(range);
  return result;
}

ncclResult_t tt_cuda_map_host(struct tt_device_context *context, void *ptr, size_t bytes, void **at)
{
  struct tt_cuda_enter enter;
  *at = NULL;
  TT_TRY(tt_cuda_enter(context, &enter));
  pthread_mutex_lock(&lock);
  ncclResult_t result = map_entered(ptr, bytes, at);
  pthread_mutex_unlock(&lock);
  tt_cuda_leave(&enter);
  return result;
}

void tt_cuda_unmap_host(struct tt_device_context *context, void *ptr, size_t bytes)
{
  struct tt_cuda_enter enter;
  struct range *range;
  if (tt_cuda_enter(context, &enter) != ncclSuccess) return;
  pthread_mutex_lock(&lock);
  if (find(ptr, bytes, &range) == ncclSuccess && range != NULL && --range->references == 0) end(range);
  pthread_mutex_unlock(&lock);
  tt_cuda_leave(&enter);
}
