/* CUDA without a GPU, see fake_cuda.h: the driver, with memory of cuMem, multicast objects, and what pointers point to.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fake_internal.h"
#include "kernels/cuda/driver.h"

static CUresult error_name(CUresult error, const char **text)
{
  *text = error == CUDA_ERROR_UNKNOWN ? "CUDA_ERROR_UNKNOWN" : NULL;
  return CUDA_SUCCESS;
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
  (void)device;
  MAY_FAIL_DRIVER;
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    *value = !fake.no_vmm;
    break;
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    *value = !fake.no_nics;
    break;
  case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
    *value = !fake.no_dmabuf;
    break;
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    if (fake.old_driver) return CUDA_ERROR_INVALID_VALUE;
    *value = fake.fabric;
    break;
  case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    *value = !fake.no_multicast;
    break;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

/* What must not fail where something is put back or released, does not. */
static CUresult get_current(CUcontext *context)
{
  *context = fake_current;
  return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
  fake_current = context;
  return CUDA_SUCCESS;
}

/* A handle is the descriptor of its file, plus one; mappings remember it too. */
struct mapping {
  CUdeviceptr at;
  size_t bytes;
  int file;
  uint64_t id;
  int device;
  unsigned long long access[DEVICES];
};
static struct mapping mappings[64];
/* Of each file, by its descriptor: the device that was asked for it. */
static int devices[1024];
static struct range {
  CUdeviceptr at;
  size_t bytes;
} ranges[64];

/* The entry of the table of ranges that has an address, or is free (0). */
static struct range *range_around(CUdeviceptr at)
{
  for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
    if (at == 0 ? ranges[i].at == 0 : at >= ranges[i].at && at < ranges[i].at + ranges[i].bytes) return &ranges[i];
  return NULL;
}

static struct mapping *mapping_at(CUdeviceptr at)
{
  for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
    if (mappings[i].at == at) return &mappings[i];
  return NULL;
}

static const struct mapping *mapping_around(CUdeviceptr at)
{
  for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
    if (at >= mappings[i].at && at < mappings[i].at + mappings[i].bytes) return &mappings[i];
  return NULL;
}

static CUresult granularity(size_t *bytes, const CUmemAllocationProp *properties,
                            CUmemAllocationGranularity_flags option)
{
  (void)option;
  MAY_FAIL_DRIVER;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  *bytes = GRANULARITY;
  return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                       unsigned long long flags)
{
  (void)flags;
  MAY_FAIL_DRIVER;
  if (bytes % GRANULARITY || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (!(properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) return CUDA_ERROR_INVALID_VALUE;
  if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) && !fake.imex) return CUDA_ERROR_NOT_PERMITTED;
  fake.nics += properties->allocFlags.gpuDirectRDMACapable;
  int file = memfd_create("fake", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)bytes) != 0 || pwrite(file, "dirt", 4, 0) != 4) abort();
  if (file >= (int)(sizeof(devices) / sizeof(devices[0]))) abort();
  devices[file] = properties->location.id;
  *handle = (CUmemGenericAllocationHandle)file + 1;
  fake.handles++;
  return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
  if (close((int)handle - 1) != 0) abort();
  fake.handles--;
  return CUDA_SUCCESS;
}

static CUresult duplicate(CUmemGenericAllocationHandle *handle, int file)
{
  int copy = dup(file);
  if (copy < 0 || copy >= (int)(sizeof(devices) / sizeof(devices[0]))) return CUDA_ERROR_INVALID_VALUE;
  devices[copy] = devices[file];
  *handle = (CUmemGenericAllocationHandle)copy + 1;
  fake.handles++;
  return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *handle, void *ptr)
{
  MAY_FAIL_DRIVER;
  struct mapping *mapping = mapping_at((CUdeviceptr)ptr);
  return mapping == NULL ? CUDA_ERROR_INVALID_VALUE : duplicate(handle, mapping->file);
}

static CUresult reserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags)
{
  (void)wish, (void)flags;
  MAY_FAIL_DRIVER;
  if (bytes % GRANULARITY || (alignment != 0 && alignment != GRANULARITY)) return CUDA_ERROR_INVALID_VALUE;
  *at = (CUdeviceptr)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *range_around(0) = (struct range){*at, bytes};
  fake.ranges++;
  return CUDA_SUCCESS;
}

static CUresult address_free(CUdeviceptr at, size_t bytes)
{
  if (mapping_at(at) != NULL || munmap((void *)at, bytes) != 0) abort();
  *range_around(at) = (struct range){0};
  fake.ranges--;
  return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags)
{
  (void)flags;
  MAY_FAIL_DRIVER;
  struct stat file;
  struct mapping *mapping = mapping_at(0);
  if (mapping == NULL || fstat((int)handle - 1, &file) != 0) abort();
  if (offset != 0 || (off_t)bytes > file.st_size) return CUDA_ERROR_INVALID_VALUE;
  *mapping = (struct mapping){
      .at = at, .bytes = bytes, .file = dup((int)handle - 1), .id = fake_next_id(), .device = devices[(int)handle - 1]};
  if (mmap((void *)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, mapping->file, 0) != (void *)at) abort();
  fake.mappings++;
  return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr at, size_t bytes)
{
  struct mapping *mapping = mapping_at(at);
  if (mapping == NULL || mapping->bytes != bytes) abort();
  if (mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != (void *)at) abort();
  close(mapping->file);
  *mapping = (struct mapping){0};
  fake.mappings--;
  return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
  MAY_FAIL_DRIVER;
  if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
  if (access->location.id < 0 || access->location.id >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
  fake.accesses += fake_current != &fake_primaries[access->location.id];
  fake.given = access->location.id;
  fake.given_at = (const void *)at;
  fake.given_bytes = bytes;
  for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
    if (mappings[i].at >= at && mappings[i].at < at + bytes) mappings[i].access[access->location.id] = access->flags;
  return mprotect((void *)at, bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at)
{
  RELAXED_ONLY;
  MAY_FAIL_DRIVER;
  const struct mapping *mapping = mapping_around(at);
  if (mapping == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  *flags = mapping->access[location->id];
  return CUDA_SUCCESS;
}

void fake_take_access(const void *ptr, int device, bool read)
{
  mapping_at((CUdeviceptr)ptr)->access[device] = read ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

static CUresult export_handle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                              unsigned long long flags)
{
  (void)flags;
  MAY_FAIL_DRIVER;
  int file = (int)handle - 1;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) { /* good as long as the handle is */
    memcpy(out, &file, sizeof(file));
    return CUDA_SUCCESS;
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  *(int *)out = dup(file);
  return CUDA_SUCCESS;
}

static CUresult import_handle(CUmemGenericAllocationHandle *handle, void *descriptor, CUmemAllocationHandleType type)
{
  MAY_FAIL_DRIVER;
  int file = (int)(intptr_t)descriptor;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) memcpy(&file, descriptor, sizeof(file));
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC)
    return CUDA_ERROR_INVALID_VALUE;
  return duplicate(handle, file);
}

/* A dma-buf is a descriptor of the file of the mapping, which must hold all of the range. */
static CUresult range_handle(void *out, CUdeviceptr at, size_t bytes, CUmemRangeHandleType type,
                             unsigned long long flags)
{
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  MAY_FAIL_DRIVER;
  const struct mapping *mapping = mapping_around(at);
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || mapping == NULL || at % page != 0 || bytes % page != 0 ||
      at + bytes > mapping->at + mapping->bytes)
    return CUDA_ERROR_INVALID_VALUE;
  fake.dmabuf_flags = flags;
  *(int *)out = dup(mapping->file);
  return CUDA_SUCCESS;
}

/* ---- Multicast: one object at a time, whose handles are of one file ---- */

static struct {
  ino_t file;
  unsigned devices, added;
} object;

static bool is_object(CUmemGenericAllocationHandle handle)
{
  struct stat file;
  return fstat((int)handle - 1, &file) == 0 && file.st_ino == object.file;
}

static CUresult multicast_granularity(size_t *bytes, const CUmulticastObjectProp *wanted,
                                      CUmulticastGranularity_flags option)
{
  MAY_FAIL_DRIVER;
  if (wanted->numDevices < 2 || option != CU_MULTICAST_GRANULARITY_RECOMMENDED) return CUDA_ERROR_INVALID_VALUE;
  *bytes = GRANULARITY;
  return CUDA_SUCCESS;
}

static CUresult multicast_create(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *wanted)
{
  struct stat file;
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
  CUresult result = create(handle, wanted->size, &properties, 0);
  if (result != CUDA_SUCCESS) return result;
  if (fstat((int)*handle - 1, &file) != 0) abort();
  object.file = file.st_ino;
  object.devices = wanted->numDevices;
  object.added = 0;
  return CUDA_SUCCESS;
}

static CUresult multicast_add(CUmemGenericAllocationHandle handle, CUdevice device)
{
  MAY_FAIL_DRIVER;
  if (!is_object(handle) || (object.added & 1u << device)) return CUDA_ERROR_INVALID_VALUE;
  object.added |= 1u << device;
  return CUDA_SUCCESS;
}

/* The driver would block until all devices are added. */
static CUresult multicast_bind(CUmemGenericAllocationHandle handle, size_t at, CUmemGenericAllocationHandle memory,
                               size_t offset, size_t bytes, unsigned long long flags)
{
  MAY_FAIL_DRIVER;
  if (!is_object(handle) || is_object(memory) || at != 0 || offset != 0 || bytes % GRANULARITY || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if ((unsigned)__builtin_popcount(object.added) != object.devices) return CUDA_ERROR_NOT_READY;
  fake.bound++;
  return CUDA_SUCCESS;
}

static CUresult multicast_unbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at, size_t bytes)
{
  if (!is_object(handle) || !(object.added & 1u << device) || at != 0 || bytes % GRANULARITY) abort();
  fake.bound--;
  return CUDA_SUCCESS;
}

/* ---- What a pointer points to ---- */

static uint64_t word_of(CUpointer_attribute attribute, CUdeviceptr ptr)
{
  const struct mapping *mapping = mapping_around(ptr);
  const struct range *range = range_around(ptr);
  const struct fake_allocation *a = fake_allocation_at((void *)ptr);
  switch ((int)attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    return mapping != NULL ? CU_MEMORYTYPE_DEVICE : a != NULL ? a->type : 0;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    return mapping != NULL ? (uint64_t)mapping->device : a != NULL ? (uint64_t)a->device : 0;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID: /* of cuMem: of the range, whatever lies in it */
    return range != NULL ? 1000 : a != NULL ? a->id : 0;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    return range != NULL ? range->at : a != NULL ? (uint64_t)a->ptr : 0;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    return range != NULL ? range->bytes : a != NULL ? a->bytes : 0;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    return a != NULL && a->managed;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    return a != NULL && a->pool ? (uint64_t)&fake : 0;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    return a != NULL && a->type == CU_MEMORYTYPE_DEVICE && !a->pool && !a->managed;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    return mapping != NULL || (a != NULL && a->pool) ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
  default:
    abort();
  }
}

static CUresult pointer_attributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
  RELAXED_ONLY;
  MAY_FAIL_DRIVER;
  for (unsigned i = 0; i < count; i++) {
    uint64_t word = word_of(attributes[i], ptr);
    bool wide = attributes[i] != CU_POINTER_ATTRIBUTE_MEMORY_TYPE && attributes[i] != CU_POINTER_ATTRIBUTE_IS_MANAGED &&
                attributes[i] != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    memcpy(data[i], &word, wide ? 8 : 4);
  }
  return CUDA_SUCCESS;
}

/* The id of physical memory; several allocations of cudaMalloc may have one. */
static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
  RELAXED_ONLY;
  MAY_FAIL_DRIVER;
  if ((int)attribute != 20 || fake.old_driver) return CUDA_ERROR_INVALID_VALUE;
  const struct mapping *mapping = mapping_around(ptr);
  uint64_t id = mapping != NULL ? mapping->id : 7;
  memcpy(data, &id, sizeof(id));
  return CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr *start, size_t *size, CUdeviceptr ptr)
{
  RELAXED_ONLY;
  MAY_FAIL_DRIVER;
  const struct mapping *mapping = mapping_around(ptr);
  const struct fake_allocation *a = fake_allocation_at((void *)ptr);
  if (mapping == NULL && a == NULL) return CUDA_ERROR_NOT_FOUND;
  *start = mapping != NULL ? mapping->at : (CUdeviceptr)a->ptr;
  *size = mapping != NULL ? mapping->bytes : a->bytes;
  return CUDA_SUCCESS;
}

void *fake_side_by_side(int count, size_t bytes_each)
{
  const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = fake_thread_device()};
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = here};
  CUmemAccessDesc access = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr at;
  if (reserve(&at, (size_t)count * bytes_each, GRANULARITY, 0, 0) != CUDA_SUCCESS) abort();
  for (int i = 0; i < count; i++) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr here = at + (size_t)i * bytes_each;
    if (create(&handle, bytes_each, &properties, 0) != CUDA_SUCCESS ||
        map(here, bytes_each, 0, handle, 0) != CUDA_SUCCESS)
      abort();
    if (set_access(here, bytes_each, &access, 1) != CUDA_SUCCESS || release(handle) != CUDA_SUCCESS) abort();
  }
  return (void *)at;
}

void fake_side_by_side_end(void *ptr, int count, size_t bytes_each)
{
  for (int i = 0; i < count; i++)
    if (unmap((CUdeviceptr)ptr + (size_t)i * bytes_each, bytes_each) != CUDA_SUCCESS) abort();
  if (address_free((CUdeviceptr)ptr, (size_t)count * bytes_each) != CUDA_SUCCESS) abort();
}

const struct tt_cuda_driver *tt_cuda_driver(void)
{
  static const struct tt_cuda_driver driver = {.cuGetErrorName = error_name,
                                               .cuGetErrorString = error_name,
                                               .cuDeviceGetAttribute = device_attribute,
                                               .cuCtxGetCurrent = get_current,
                                               .cuCtxSetCurrent = set_current,
                                               .cuPointerGetAttribute = pointer_attribute,
                                               .cuPointerGetAttributes = pointer_attributes,
                                               .cuMemGetAddressRange = address_range,
                                               .cuMemGetAllocationGranularity = granularity,
                                               .cuMemCreate = create,
                                               .cuMemRelease = release,
                                               .cuMemRetainAllocationHandle = retain,
                                               .cuMemAddressReserve = reserve,
                                               .cuMemAddressFree = address_free,
                                               .cuMemMap = map,
                                               .cuMemUnmap = unmap,
                                               .cuMemSetAccess = set_access,
                                               .cuMemGetAccess = get_access,
                                               .cuMemExportToShareableHandle = export_handle,
                                               .cuMemImportFromShareableHandle = import_handle,
                                               .cuMemGetHandleForAddressRange = range_handle,
                                               .cuMulticastCreate = multicast_create,
                                               .cuMulticastAddDevice = multicast_add,
                                               .cuMulticastBindMem = multicast_bind,
                                               .cuMulticastUnbind = multicast_unbind,
                                               .cuMulticastGetGranularity = multicast_granularity};
  static struct tt_cuda_driver old;
  if (!fake.no_multicast_functions) return &driver;
  old = driver;
  old.cuMulticastCreate = NULL;
  old.cuMemGetHandleForAddressRange = NULL;
  return &old;
}
