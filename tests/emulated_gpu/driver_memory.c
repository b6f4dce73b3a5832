/* cuMem: physical memory, ranges of addresses, and what is mapped in them. What no device has access to nobody reaches;
 * where one has it all do, and the host too, since there is one address space. */
#include "emulated.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

static struct emu_reserved *all_reserved;

static bool is_whole(size_t bytes)
{
  return bytes > 0 && bytes % EMU_GRANULARITY == 0;
}

static bool is_device(const CUmemLocation *location)
{
  return location->type == CU_MEM_LOCATION_TYPE_DEVICE && emu_primary(location->id) != NULL;
}

/* ---- Physical memory ---- */

static CUresult get_granularity(size_t *granularity, const CUmemAllocationProp *properties)
{
  if (granularity == NULL || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || !is_device(&properties->location))
    return CUDA_ERROR_INVALID_VALUE;
  *granularity = EMU_GRANULARITY;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option)
{
  (void)option;
  EMU_DRIVER(EMU_NO_CONTEXT, get_granularity(granularity, properties));
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties)
{
  struct emu_physical *physical;
  size_t granularity;
  if (get_granularity(&granularity, properties) != CUDA_SUCCESS || !is_whole(bytes)) return CUDA_ERROR_INVALID_VALUE;
  if ((properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 ||
      properties->allocFlags.gpuDirectRDMACapable)
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = (CUresult)emu_physical_make(properties->location.id, bytes, &physical);
  if (result != CUDA_SUCCESS) return result;
  physical->exporting = properties->requestedHandleTypes != 0;
  physical->handles = 1;
  *handle = (uintptr_t)physical;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags)
{
  if (handle == NULL || properties == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_NO_CONTEXT, create(handle, bytes, properties));
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
  struct emu_physical *physical = emu_physical_of(handle);
  if (physical == NULL) return CUDA_ERROR_INVALID_VALUE;
  physical->handles--;
  emu_physical_check(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
  EMU_DRIVER(EMU_NO_CONTEXT, release(handle));
}

static CUresult retain(CUmemGenericAllocationHandle *handle, const void *at)
{
  struct emu_range *range = emu_range_find(at);
  if (range == NULL || range->kind != EMU_MAPPED) return CUDA_ERROR_INVALID_VALUE;
  range->physical->handles++;
  *handle = (uintptr_t)range->physical;
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *at)
{
  EMU_DRIVER(EMU_NO_CONTEXT, retain(handle, at));
}

static CUresult export_fd(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type)
{
  struct emu_physical *physical = emu_physical_of(handle);
  if (physical == NULL || out == NULL) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (!physical->exporting) return CUDA_ERROR_INVALID_VALUE;
  int fd = fcntl(physical->fd, F_DUPFD, 0); /* CUDA's, too, are inherited */
  if (fd < 0) return CUDA_ERROR_UNKNOWN;
  *(int *)out = fd;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_NO_CONTEXT, export_fd(out, handle, type));
}

static CUresult import_fd(CUmemGenericAllocationHandle *handle, int theirs, CUmemAllocationHandleType type)
{
  struct emu_physical *physical;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  int fd = fcntl(theirs, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = (CUresult)emu_physical_open(fd, &physical);
  if (result != CUDA_SUCCESS) return result;
  physical->handles = 1;
  *handle = (uintptr_t)physical;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *theirs,
                                        CUmemAllocationHandleType type)
{
  EMU_DRIVER(EMU_NO_CONTEXT, import_fd(handle, (int)(intptr_t)theirs, type));
}

/* ---- Ranges of addresses ---- */

static CUresult reserve(CUdeviceptr *at, size_t bytes, size_t alignment)
{
  if (!is_whole(bytes) || (alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (alignment < EMU_GRANULARITY) alignment = EMU_GRANULARITY;
  /* One piece of the alignment before it, or a part of that, and one behind it stay unused: neighbours are none. */
  size_t area = bytes + 2 * alignment;
  char *mapped = mmap(NULL, area, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  char *start = (char *)(((uintptr_t)mapped + alignment) / alignment * alignment),
       *end = start + bytes + EMU_GRANULARITY;
  if (start > mapped) munmap(mapped, (size_t)(start - mapped));
  if (end < mapped + area) munmap(end, (size_t)(mapped + area - end));
  struct emu_reserved *reserved = emu_calloc(1, sizeof(*reserved));
  *reserved = (struct emu_reserved){.next = all_reserved, .start = start, .bytes = bytes, .id = emu_new_id()};
  all_reserved = reserved;
  *at = (CUdeviceptr)start;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
  (void)wish; /* no more than a wish */
  if (at == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_NO_CONTEXT, reserve(at, bytes, alignment));
}

/* What is mapped from `at` on begins before `end`. */
static struct emu_range *first_in(const char *at, const char *end)
{
  struct emu_range *range = emu_range_first(at);
  return range != NULL && range->start < end ? range : NULL;
}

static CUresult free_address(char *at, size_t bytes)
{
  struct emu_reserved **place = &all_reserved;
  while (*place != NULL && (*place)->start != at) place = &(*place)->next;
  struct emu_reserved *reserved = *place;
  if (reserved == NULL || reserved->bytes != bytes || first_in(at, at + bytes) != NULL) return CUDA_ERROR_INVALID_VALUE;
  munmap(at, bytes + EMU_GRANULARITY);
  *place = reserved->next;
  free(reserved);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
  EMU_DRIVER(EMU_NO_CONTEXT, free_address((char *)at, bytes));
}

/* ---- What is mapped ---- */

static CUresult map(char *at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle)
{
  struct emu_physical *physical = emu_physical_of(handle);
  struct emu_reserved *reserved = all_reserved;
  while (reserved != NULL && (at < reserved->start || at + bytes > reserved->start + reserved->bytes))
    reserved = reserved->next;
  if (physical == NULL || reserved == NULL || !is_whole(bytes) || (uintptr_t)at % EMU_GRANULARITY != 0 || offset != 0 ||
      bytes > physical->bytes || first_in(at, at + bytes) != NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd, 0) == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
  struct emu_range *range = emu_calloc(1, sizeof(*range));
  *range = (struct emu_range){.start = at,
                              .bytes = bytes,
                              .kind = EMU_MAPPED,
                              .device = physical->device,
                              .id = reserved->id,
                              .physical = physical,
                              .reserved = reserved};
  physical->mappings++;
  emu_range_add(range);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_NO_CONTEXT, map((char *)at, bytes, offset, handle));
}

/* Whether the range is full of whole mappings. */
static bool is_mapped(char *at, size_t bytes)
{
  for (char *next = at, *end = at + bytes; next < end;) {
    struct emu_range *range = emu_range_find(next);
    if (range == NULL || range->kind != EMU_MAPPED || range->start != next || next + range->bytes > end) return false;
    next += range->bytes;
  }
  return bytes > 0;
}

/* Waits for nothing, as CUDA does not: kernels that still use it fault. */
static CUresult unmap(char *at, size_t bytes)
{
  if (!is_mapped(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (char *next = at; next < at + bytes;) {
    struct emu_range *range = emu_range_find(next);
    struct emu_physical *physical = range->physical;
    size_t piece = range->bytes;
    if (mmap(next, piece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
      return CUDA_ERROR_UNKNOWN;
    emu_range_remove(range);
    physical->mappings--;
    emu_physical_check(physical);
    next += piece;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
  EMU_DRIVER(EMU_NO_CONTEXT, unmap((char *)at, bytes));
}

static int protection(const struct emu_range *range)
{
  unsigned long long all = 0;
  if (range->physical->team != NULL) return PROT_NONE; /* for the instructions of multicast alone */
  for (int d = 0; d < EMU_MAX_DEVICES; d++) all |= range->rights[d];
  return all == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
         : all == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                   : PROT_NONE;
}

static CUresult set_access(char *at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
  if (!is_mapped(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (!is_device(&access[i].location)) return CUDA_ERROR_INVALID_DEVICE;
  for (char *next = at; next < at + bytes;) {
    struct emu_range *range = emu_range_find(next);
    for (size_t i = 0; i < count; i++) range->rights[access[i].location.id] = access[i].flags;
    if (mprotect(next, range->bytes, protection(range)) != 0) return CUDA_ERROR_UNKNOWN;
    next += range->bytes;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
  if (access == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_NO_CONTEXT, set_access((char *)at, bytes, access, count));
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location, const void *at)
{
  const struct emu_range *range = emu_range_find(at);
  if (range == NULL || range->kind != EMU_MAPPED) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(location)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = range->rights[location->id];
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at)
{
  if (flags == NULL || location == NULL) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_NO_CONTEXT, get_access(flags, location, (const void *)at));
}
