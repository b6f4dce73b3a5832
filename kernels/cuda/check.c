/* Whether kernels of a context's GPU can use a user's buffer where it lies, for NCCL_CHECK_POINTERS.
 *
 * Memory of a device has to be the context's own, as NCCL demands it; managed memory and registered memory of the host
 * are any GPU's. The memory has to reach to the buffer's end. Where several allocations of cuMem are mapped in one
 * range of addresses, or several ranges of the host's memory are registered, the buffer may go through all of them;
 * other allocations that happen to be neighbours are a mistake. */
#include <stdarg.h>
#include <stdio.h>
#include "base/check.h"
#include "base/maps.h"
#include "kernels/cuda/pointer.h"
#include "kernels/cuda/state.h"

/* All before `good` bytes can be used; the sentence says from where on it cannot. */
__attribute__((format(printf, 3, 4))) static void refuse(struct tt_device_check *check, size_t good, const char *format,
                                                         ...)
{
  int at = good > 0 ? snprintf(check->why, sizeof(check->why), "from byte %zu on ", good) : 0;
  va_list words;
  va_start(words, format);
  vsnprintf(check->why + at, sizeof(check->why) - (size_t)at, format, words);
  va_end(words);
}

/* What is no memory of CUDA may still be the host's. */
static ncclResult_t refuse_unknown(struct tt_device_check *check, const char *at, size_t good)
{
  const void *wrong;
  bool mapped;
  TT_TRY(tt_maps_check(at, 1, false, &wrong, &mapped));
  if (wrong == NULL)
    refuse(check, good,
           "CUDA does not know it, though the host has memory there; use cudaMalloc or ncclMemAlloc, or register it "
           "with cudaHostRegister");
  else if (good == 0)
    refuse(check, good,
           "CUDA knows no memory there: it was freed, or never allocated; use memory of cudaMalloc or ncclMemAlloc "
           "that lives until the operation is done");
  else
    refuse(check, good,
           "CUDA knows no memory: it was freed in part, or is shorter than the count says; allocate all "
           "of it, or lower the count");
  return ncclSuccess;
}

/* Of cuMem, as far as can be told: also without descriptors. Of cudaMalloc CUDA IPC takes it, where there is that. */
static bool has_pieces(const struct tt_cuda_pointer *pointer)
{
  return pointer->descriptors ||
         (pointer->type == CU_MEMORYTYPE_DEVICE && !pointer->managed && !pointer->pool && !pointer->ipc);
}

/* By cuMem each GPU needs a right to each mapping. Of other memory the driver has no answer. */
static bool may_use(const struct tt_device_context *context, const char *at, bool write)
{
  const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->device};
  const unsigned long long wanted = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  unsigned long long flags;
  return tt_cuda_driver()->cuMemGetAccess(&flags, &here, (CUdeviceptr)at) != CUDA_SUCCESS || (flags & wanted) == wanted;
}

/* Looks at what is `good` bytes on, and moves `good` behind it; or says what is wrong. */
static ncclResult_t look(const struct tt_device_context *context, struct tt_device_check *check, size_t *good)
{
  const char *at = (const char *)check->ptr + *good;
  struct tt_cuda_pointer pointer;
  TT_TRY(tt_cuda_pointer_ask(at, &pointer));
  if (pointer.type == 0) return refuse_unknown(check, at, *good);
  const bool pieces = has_pieces(&pointer), host = pointer.type == CU_MEMORYTYPE_HOST;
  const struct tt_cuda_pointer whole = pointer; /* of cuMem: the range of addresses */
  if (pieces) TT_TRY(tt_cuda_pointer_piece(at, &pointer));
  if (!host && !pointer.managed && pointer.device != context->device) {
    refuse(check, *good, "it is memory of GPU %d, and the communicator is GPU %d's; use memory of that one",
           pointer.device, context->device);
    return ncclSuccess;
  }
  if (pieces && !may_use(context, at, check->write != 0)) {
    refuse(check, *good, "it is memory of cuMem which GPU %d may not %s; call cuMemSetAccess for that GPU",
           context->device, check->write ? "write" : "read");
    return ncclSuccess;
  }
  const size_t before = (size_t)((CUdeviceptr)at - pointer.start), left = check->bytes - *good;
  /* Where the driver does not say how far the memory goes it is taken for good. */
  const size_t more = before < pointer.bytes ? TT_MIN(pointer.bytes - before, left) : left;
  *good += more;
  if (more < left && !host && (CUdeviceptr)at + more >= whole.start + whole.bytes)
    refuse(check, *good,
           "it is not of the allocation at %p of %zu bytes, which ends there; allocate all of it, or lower the count",
           (const void *)whole.start, whole.bytes);
  return ncclSuccess;
}

ncclResult_t tt_cuda_check_buffer(struct tt_device_context *context, struct tt_device_check *check)
{
  struct tt_cuda_enter enter;
  size_t good = 0;
  ncclResult_t result = ncclSuccess;
  check->why[0] = 0;
  TT_TRY(tt_cuda_enter(context, &enter));
  while (result == ncclSuccess && good < check->bytes && check->why[0] == 0) result = look(context, check, &good);
  tt_cuda_leave(&enter);
  return result;
}
