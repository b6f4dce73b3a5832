/* Allocations of the runtime, on devices and on the host. A device's end where a page ends behind which nobody may
 * touch anything, so that who writes beyond is found out. To free memory waits, as CUDA does, for what is to be done.
 */
#include "gpu.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define ALIGN ((size_t)512) /* of what CUDA allocates */

static size_t round_up(size_t bytes, size_t to)
{
  return (bytes + to - 1) / to * to;
}

cudaError_t emu_map(struct emu_physical *physical, size_t offset, size_t bytes, struct emu_range **out)
{
  size_t pages = round_up(offset + bytes, PAGE), area_bytes = pages + 2 * PAGE;
  char *area = mmap(NULL, area_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return cudaErrorMemoryAllocation;
  int flags = MAP_FIXED | (physical != NULL ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
  if (mmap(area + PAGE, pages, PROT_READ | PROT_WRITE, flags, physical != NULL ? physical->fd : -1, 0) == MAP_FAILED) {
    munmap(area, area_bytes);
    return cudaErrorMemoryAllocation;
  }
  struct emu_range *range = *out = emu_calloc(1, sizeof(*range));
  *range = (struct emu_range){.start = area + PAGE + offset,
                              .bytes = bytes,
                              .device = emu_device(),
                              .id = emu_new_id(),
                              .physical = physical,
                              .offset = offset,
                              .area = area,
                              .area_bytes = area_bytes};
  if (physical != NULL) physical->mappings++;
  emu_range_add(range);
  return cudaSuccess;
}

void emu_unmap(struct emu_range *range)
{
  struct emu_physical *physical = range->physical;
  if (range->area != NULL) munmap(range->area, range->area_bytes);
  emu_range_remove(range);
  if (physical == NULL) return;
  physical->mappings--;
  emu_physical_check(physical);
}

/* Of a device's memory, so that it ends at a page's end. The host's begins with a page, as CUDA has it. */
static size_t offset_of(size_t bytes)
{
  return round_up(bytes, PAGE) - round_up(bytes, ALIGN);
}

/* ---- Devices ---- */

static cudaError_t allocate(void **at, size_t bytes)
{
  struct emu_physical *physical;
  struct emu_range *range;
  *at = NULL;
  EMU_TRY(emu_unsafe());
  if (bytes == 0) return cudaSuccess;
  if (bytes > EMU_DEVICE_BYTES) return cudaErrorMemoryAllocation;
  EMU_TRY(emu_physical_make(emu_device(), round_up(bytes, PAGE), &physical));
  cudaError_t error = emu_map(physical, offset_of(bytes), bytes, &range);
  if (error != cudaSuccess) {
    emu_physical_check(physical);
    return error;
  }
  range->kind = EMU_MALLOCED;
  *at = range->start;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **at, size_t bytes)
{
  if (at == NULL) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, allocate(at, bytes));
}

static struct emu_range *find_start(const void *at, enum emu_kind kind)
{
  struct emu_range *range = emu_range_find(at);
  return range != NULL && range->start == at && range->kind == kind ? range : NULL;
}

/* While it waits another thread may free the same. */
static cudaError_t free_waiting(void *at, enum emu_kind kind, int device, cudaError_t if_none)
{
  if (find_start(at, kind) == NULL) return if_none;
  emu_device_wait(device);
  struct emu_range *range = find_start(at, kind);
  if (range == NULL) return if_none;
  emu_unmap(range);
  return cudaSuccess;
}

static cudaError_t free_device(void *at)
{
  EMU_TRY(emu_unsafe());
  if (at == NULL) return cudaSuccess;
  struct emu_range *range = emu_range_find(at);
  if (range == NULL || (range->kind != EMU_MALLOCED && range->kind != EMU_MANAGED)) return cudaErrorInvalidValue;
  return free_waiting(at, range->kind, range->kind == EMU_MANAGED ? -1 : range->device, cudaErrorInvalidValue);
}

cudaError_t cudaFree(void *at)
{
  EMU_RUNTIME(EMU_CONTEXT, free_device(at));
}

static cudaError_t get_info(size_t *free_bytes, size_t *total)
{
  *total = EMU_DEVICE_BYTES;
  *free_bytes = EMU_DEVICE_BYTES - emu_physical_used(emu_device());
  return cudaSuccess;
}

/* Of this process alone: others' use of the device is not seen. */
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
  EMU_RUNTIME(EMU_CONTEXT, get_info(free_bytes, total));
}

/* ---- The host ---- */

static cudaError_t allocate_host(void **at, size_t bytes, enum emu_kind kind)
{
  struct emu_range *range;
  *at = NULL;
  EMU_TRY(emu_unsafe());
  if (bytes == 0) return kind == EMU_HOST ? cudaSuccess : cudaErrorInvalidValue;
  EMU_TRY(emu_map(NULL, 0, bytes, &range));
  range->kind = kind;
  *at = range->start;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned flags)
{
  if (at == NULL || (flags & ~(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)) != 0)
    return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, allocate_host(at, bytes, EMU_HOST));
}

cudaError_t cudaMallocHost(void **at, size_t bytes)
{
  return cudaHostAlloc(at, bytes, cudaHostAllocDefault);
}

/* One memory for the host and all devices. */
cudaError_t cudaMallocManaged(void **at, size_t bytes, unsigned flags)
{
  if (at == NULL || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, allocate_host(at, bytes, EMU_MANAGED));
}

static cudaError_t free_host(void *at)
{
  EMU_TRY(emu_unsafe());
  return at == NULL ? cudaSuccess : free_waiting(at, EMU_HOST, -1, cudaErrorInvalidValue);
}

cudaError_t cudaFreeHost(void *at)
{
  EMU_RUNTIME(EMU_CONTEXT, free_host(at));
}

/* Whether there is memory, of whatever sort, in all of its pages. */
static bool has_memory(const char *at, size_t bytes)
{
  char *page = (char *)((uintptr_t)at / PAGE * PAGE);
  return msync(page, (size_t)(at + bytes - page), MS_ASYNC) == 0;
}

static cudaError_t register_host(char *at, size_t bytes)
{
  EMU_TRY(emu_unsafe());
  struct emu_range *next = emu_range_first(at);
  if (next != NULL && next->start < at + bytes)
    return next->kind == EMU_REGISTERED || next->kind == EMU_HOST ? cudaErrorHostMemoryAlreadyRegistered
                                                                  : cudaErrorInvalidValue;
  if (!has_memory(at, bytes)) return cudaErrorInvalidValue;
  struct emu_range *range = emu_calloc(1, sizeof(*range));
  *range = (struct emu_range){
      .start = at, .bytes = bytes, .kind = EMU_REGISTERED, .device = emu_device(), .id = emu_new_id()};
  emu_range_add(range);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
  if (at == NULL || bytes == 0 || (flags & ~(cudaHostRegisterPortable | cudaHostRegisterMapped)) != 0)
    return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, register_host(at, bytes));
}

static cudaError_t unregister_host(void *at)
{
  EMU_TRY(emu_unsafe());
  return free_waiting(at, EMU_REGISTERED, -1, cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostUnregister(void *at)
{
  EMU_RUNTIME(EMU_CONTEXT, unregister_host(at));
}

static cudaError_t get_device_pointer(void **out, void *at)
{
  const struct emu_range *range = emu_range_find(at);
  if (range == NULL || (range->kind != EMU_HOST && range->kind != EMU_REGISTERED)) return cudaErrorInvalidValue;
  *out = at;
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *at, unsigned flags)
{
  if (out == NULL || flags != 0) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, get_device_pointer(out, at));
}
