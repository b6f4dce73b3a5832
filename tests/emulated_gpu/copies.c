/* Copies and memsets. Memory of CUDA has to be whole; other memory of the host is pageable, of which the bytes are
 * taken when the call is made, and which a call that writes there waits for. */
#include "gpu.h"

#include <stdlib.h>
#include <sys/mman.h>

enum place { BAD, DEVICE, PINNED, PAGEABLE };

/* Whether there is memory, of whatever sort, in all of its pages: freed memory is none. */
static bool has_memory(const void *at, size_t bytes)
{
  uintptr_t first = (uintptr_t)at / 4096 * 4096;
  return msync((void *)first, (uintptr_t)at + bytes - first, MS_ASYNC) == 0;
}

static enum place place_of(const void *at, size_t bytes)
{
  struct emu_range *range;
  bool whole = emu_range_covers(at, bytes, &range);
  if (range != NULL) return !whole ? BAD : emu_range_is_device(range) ? DEVICE : PINNED;
  range = emu_range_first(at);
  if (range != NULL && range->start < (const char *)at + bytes) return BAD; /* it runs into CUDA's */
  return has_memory(at, bytes) ? PAGEABLE : BAD;
}

/* What the direction says of one side. Managed memory may be either. */
static bool fits(enum place place, const void *at, bool device)
{
  const struct emu_range *range = emu_range_find(at);
  if (range != NULL && range->kind == EMU_MANAGED) return true;
  return (place == DEVICE) == device;
}

static cudaError_t check(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, enum place *to_place,
                         enum place *from_place)
{
  *to_place = place_of(to, bytes);
  *from_place = place_of(from, bytes);
  if (*to_place == BAD || *from_place == BAD) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return fits(*to_place, to, to_device) && fits(*from_place, from, from_device) ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t on, bool wait)
{
  struct CUstream_st *stream;
  enum place to_place, from_place;
  EMU_TRY(emu_stream_find(on, &stream));
  if (wait) EMU_TRY(emu_unsafe());
  if (bytes == 0) return cudaSuccess;
  EMU_TRY(check(to, from, bytes, kind, &to_place, &from_place));
  struct emu_work work = {.what = EMU_COPY, .copy = {.to = to, .from = from, .bytes = bytes}};
  if (from_place == PAGEABLE && stream->capture == NULL) work.copy.from = work.copy.staging = emu_copy_of(from, bytes);
  EMU_TRY(emu_submit(stream, emu_work_make(&work)));
  if (stream->capture == NULL && (wait || to_place == PAGEABLE)) emu_stream_wait(stream);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
  if ((unsigned)kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  EMU_RUNTIME(EMU_CONTEXT, copy(to, from, bytes, kind, stream, false));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
  if ((unsigned)kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  EMU_RUNTIME(EMU_CONTEXT, copy(to, from, bytes, kind, cudaStreamLegacy, true));
}

static cudaError_t set(void *to, int value, size_t bytes, cudaStream_t on)
{
  struct CUstream_st *stream;
  EMU_TRY(emu_stream_find(on, &stream));
  if (bytes == 0) return cudaSuccess;
  enum place place = place_of(to, bytes);
  if (place != DEVICE && place != PINNED) return cudaErrorInvalidValue;
  struct emu_work work = {.what = EMU_SET, .copy = {.to = to, .bytes = bytes, .value = value}};
  return emu_submit(stream, emu_work_make(&work));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
  EMU_RUNTIME(EMU_CONTEXT, set(to, value, bytes, stream));
}

/* Does not wait, as CUDA's does not where it is a device's memory. */
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
  EMU_RUNTIME(EMU_CONTEXT, set(to, value, bytes, cudaStreamLegacy));
}
