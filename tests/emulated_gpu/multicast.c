/* Multicast objects, for EMULATED_MULTICAST=1: devices are added, each binds a copy, and an address that the object is
 * mapped at stands for all copies. It has no memory of its own: only the instructions for it (multimem.cuh) know what
 * to do with it. An object is a memfd whose beginning says what is bound, so that all processes that have it see that.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "emulated.h"
#include "threads.h"

/* A device's copy: where the process that bound it has its memory open. */
struct copy {
  _Atomic bool added, bound;
  int pid, fd;
  size_t offset, bytes;
};
struct shared_team {
  uint32_t devices;
  _Atomic uint32_t added;
  struct copy copies[EMU_MAX_DEVICES]; /* by the machine's number of the device */
};

struct emu_team {
  struct shared_team *shared;
  char *views[EMU_MAX_DEVICES]; /* copies as far as they are mapped here */
  size_t bytes;
};

bool emu_has_multicast(void)
{
  const char *wanted = getenv("EMULATED_MULTICAST");
  if (wanted == NULL || strcmp(wanted, "0") == 0) return false;
  if (strcmp(wanted, "1") == 0) return true;
  fprintf(stderr, "emulated GPU: EMULATED_MULTICAST=\"%s\" is neither 0 nor 1\n", wanted);
  abort();
}

/* ---- Objects ---- */

bool emu_team_open(struct emu_physical *physical, uint32_t devices)
{
  void *mapped = mmap(NULL, sizeof(struct shared_team), PROT_READ | PROT_WRITE, MAP_SHARED, physical->fd, 0);
  if (mapped == MAP_FAILED) return false;
  physical->team = emu_calloc(1, sizeof(*physical->team));
  physical->team->shared = mapped;
  physical->team->bytes = physical->bytes;
  if (devices > 0) physical->team->shared->devices = devices;
  return true;
}

void emu_team_close(struct emu_physical *physical)
{
  struct emu_team *team = physical->team;
  for (int d = 0; d < EMU_MAX_DEVICES; d++)
    if (team->views[d] != NULL) munmap(team->views[d], team->shared->copies[d].bytes);
  munmap(team->shared, sizeof(*team->shared));
  free(team);
}

static CUresult check(const CUmulticastObjectProp *wanted)
{
  if (!emu_has_multicast()) return CUDA_ERROR_NOT_SUPPORTED;
  if (wanted->numDevices < 1 || wanted->numDevices > EMU_MAX_DEVICES || wanted->flags != 0 || wanted->size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  return wanted->handleTypes & ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_ERROR_NOT_SUPPORTED
                                                                                             : CUDA_SUCCESS;
}

static CUresult get_granularity(size_t *granularity, const CUmulticastObjectProp *wanted)
{
  CUresult result = check(wanted);
  if (result == CUDA_SUCCESS) *granularity = EMU_GRANULARITY;
  return result;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *wanted,
                                   CUmulticastGranularity_flags option)
{
  (void)option;
  if (granularity == NULL || wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_NO_CONTEXT, get_granularity(granularity, wanted));
}

static CUresult create(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *wanted)
{
  struct emu_physical *physical;
  CUresult result = check(wanted);
  if (result == CUDA_SUCCESS && wanted->size % EMU_GRANULARITY != 0) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = (CUresult)emu_physical_make_team(wanted->numDevices, wanted->size, &physical);
  if (result != CUDA_SUCCESS) return result;
  physical->exporting = wanted->handleTypes != 0;
  physical->handles = 1;
  *handle = (uintptr_t)physical;
  return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *wanted)
{
  if (handle == NULL || wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_NO_CONTEXT, create(handle, wanted));
}

/* ---- Devices and their copies ---- */

/* NULL: no such object, or device. */
static struct copy *copy_of(CUmemGenericAllocationHandle handle, int device, struct shared_team **shared)
{
  struct emu_physical *object = emu_physical_of(handle);
  if (object == NULL || object->team == NULL || emu_primary(device) == NULL) return NULL;
  *shared = object->team->shared;
  return &(*shared)->copies[emu_device_number(device)];
}

static CUresult add_device(CUmemGenericAllocationHandle handle, int device)
{
  struct shared_team *shared;
  struct copy *copy = copy_of(handle, device, &shared);
  if (copy == NULL || atomic_exchange(&copy->added, true)) return CUDA_ERROR_INVALID_VALUE;
  if (atomic_fetch_add(&shared->added, 1) >= shared->devices) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
  EMU_DRIVER(EMU_NO_CONTEXT, add_device(handle, device));
}

/* Only when all devices are there; the object has one copy of a device, which is all of it. */
static CUresult bind(CUmemGenericAllocationHandle handle, size_t at, CUmemGenericAllocationHandle memory, size_t offset,
                     size_t bytes)
{
  struct shared_team *shared;
  struct emu_physical *physical = emu_physical_of(memory);
  struct copy *copy = physical != NULL ? copy_of(handle, physical->device, &shared) : NULL;
  if (copy == NULL || physical->team != NULL || at != 0 || offset % EMU_GRANULARITY != 0 ||
      bytes != emu_physical_of(handle)->bytes || offset + bytes > physical->bytes || !copy->added || copy->bound)
    return CUDA_ERROR_INVALID_VALUE;
  if (shared->added < shared->devices) return CUDA_ERROR_NOT_READY;
  copy->pid = getpid();
  copy->fd = physical->fd;
  copy->offset = offset;
  copy->bytes = bytes;
  copy->bound = true;
  return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at, CUmemGenericAllocationHandle memory,
                            size_t offset, size_t bytes, unsigned long long flags)
{
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  EMU_DRIVER(EMU_NO_CONTEXT, bind(handle, at, memory, offset, bytes));
}

static CUresult unbind(CUmemGenericAllocationHandle handle, int device, size_t at, size_t bytes)
{
  struct shared_team *shared;
  struct copy *copy = copy_of(handle, device, &shared);
  if (copy == NULL || at != 0 || !copy->bound || bytes != copy->bytes) return CUDA_ERROR_INVALID_VALUE;
  copy->bound = false;
  return CUDA_SUCCESS;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at, size_t bytes)
{
  EMU_DRIVER(EMU_NO_CONTEXT, unbind(handle, device, at, bytes));
}

/* ---- What kernels reach ---- */

static char *view(struct emu_team *team, int number)
{
  const struct copy *copy = &team->shared->copies[number];
  char path[64];
  if (team->views[number] != NULL) return team->views[number];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", copy->pid, copy->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return NULL;
  void *mapped = mmap(NULL, copy->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)copy->offset);
  close(fd);
  return team->views[number] = mapped != MAP_FAILED ? mapped : NULL;
}

int emu_copies(const void *at, void **copies, int most)
{
  const char *wrong = NULL;
  int count = 0;
  pthread_mutex_lock(&emu_lock);
  struct emu_range *range = emu_range_find(at);
  struct emu_team *team = range != NULL && range->kind == EMU_MAPPED ? range->physical->team : NULL;
  if (team == NULL) wrong = "an instruction for multicast names an address that is none of multicast";
  for (int d = 0; wrong == NULL && d < EMU_MAX_DEVICES && count < most; d++) {
    if (!team->shared->copies[d].added) continue;
    char *copy = team->shared->copies[d].bound ? view(team, d) : NULL;
    if (copy == NULL) wrong = "a device of a multicast object has no copy";
    copies[count++] = copy + ((const char *)at - range->start);
  }
  pthread_mutex_unlock(&emu_lock);
  if (wrong != NULL) emu_die(wrong);
  return count;
}
