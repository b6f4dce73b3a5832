/* Scratch memory: a list, of which the newest and largest piece is given out. */
#include "plan/scratch.h"

#include <stdlib.h>
#include "base/check.h"
#include "device/context.h"
#include "plan/comm.h"

#define ALIGN 64

struct tt_scratch {
  struct tt_scratch *older;
  struct tt_device_memory memory; /* resource: the device's, or NULL for the host's memory */
};

static void free_one(struct ncclComm *comm, struct tt_scratch *scratch)
{
  atomic_fetch_sub(&comm->scratch_bytes, scratch->memory.bytes);
  if (comm->device->features & TT_DEVICE_MEMORY)
    comm->device->release(comm->context->handle, &scratch->memory);
  else
    free(scratch->memory.ptr);
  free(scratch);
}

static ncclResult_t allocate(struct ncclComm *comm, size_t bytes, struct tt_device_memory *memory)
{
  if (comm->device->features & TT_DEVICE_MEMORY) return comm->device->alloc(comm->context->handle, bytes, memory);
  memory->bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
  memory->ptr = aligned_alloc(ALIGN, memory->bytes);
  if (memory->ptr == NULL)
    return TT_FAIL(ncclSystemError, "rank %d: no memory for %zu bytes of scratch", comm->rank, bytes);
  return ncclSuccess;
}

ncclResult_t tt_scratch_get(struct ncclComm *comm, size_t bytes, unsigned char **ptr)
{
  struct tt_scratch *newest = comm->scratch;
  if (bytes > 0 && (newest == NULL || newest->memory.bytes < bytes)) {
    struct tt_scratch *scratch;
    if (newest != NULL && !(comm->device->features & TT_DEVICE_STREAMS)) { /* nothing runs between two calls */
      comm->scratch = newest->older;
      free_one(comm, newest);
    }
    TT_TRY(TT_CALLOC(&scratch, 1));
    ncclResult_t result = allocate(comm, bytes, &scratch->memory);
    if (result != ncclSuccess) {
      free(scratch);
      return result;
    }
    atomic_fetch_add(&comm->scratch_bytes, scratch->memory.bytes);
    scratch->older = comm->scratch;
    comm->scratch = scratch;
  }
  *ptr = comm->scratch == NULL ? NULL : comm->scratch->memory.ptr;
  return ncclSuccess;
}

void tt_scratch_free(struct ncclComm *comm)
{
  while (comm->scratch != NULL) {
    struct tt_scratch *scratch = comm->scratch;
    comm->scratch = scratch->older;
    free_one(comm, scratch);
  }
}
