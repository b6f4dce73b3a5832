/* CUDA IPC: a handle says in which process which descriptor has the memory, and where in it. It can be opened while the
 * owner lives and has not freed it, by processes that may look at the owner's descriptors. */
#include "emulated.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "gpu.h"

struct handle {
  uint64_t id;
  uint64_t offset, bytes;
  int32_t pid, fd;
};
_Static_assert(sizeof(struct handle) <= sizeof(cudaIpcMemHandle_t), "it fits");

static cudaError_t get_handle(cudaIpcMemHandle_t *out, const void *at)
{
  const struct emu_range *range = emu_range_find(at);
  EMU_TRY(emu_unsafe());
  if (range == NULL || range->kind != EMU_MALLOCED) return cudaErrorInvalidValue;
  struct handle handle = {.id = range->physical->id,
                          .offset = range->offset,
                          .bytes = range->bytes,
                          .pid = getpid(),
                          .fd = range->physical->fd};
  memset(out, 0, sizeof(*out));
  memcpy(out, &handle, sizeof(handle));
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at)
{
  if (handle == NULL) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, get_handle(handle, at));
}

/* What the device has opened already. */
static struct emu_range *find_opened(uint64_t id)
{
  const char *at = NULL;
  for (struct emu_range *range; (range = emu_range_first(at)) != NULL; at = range->start + range->bytes)
    if (range->kind == EMU_OPENED && range->physical->id == id && range->device == emu_device()) return range;
  return NULL;
}

static cudaError_t open_descriptor(const struct handle *handle, struct emu_physical **physical)
{
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    fprintf(stderr, "emulated GPU: memory of process %d cannot be opened as %s: %m\n", handle->pid, path);
    return cudaErrorMapBufferObjectFailed;
  }
  EMU_TRY(emu_physical_open(fd, physical));
  if ((*physical)->id == handle->id) return cudaSuccess;
  emu_physical_check(*physical);
  fprintf(stderr, "emulated GPU: memory of process %d was freed: %s is of another one\n", handle->pid, path);
  return cudaErrorInvalidResourceHandle;
}

static cudaError_t open_handle(void **at, const cudaIpcMemHandle_t *in)
{
  struct handle handle;
  struct emu_physical *physical;
  memcpy(&handle, in, sizeof(handle));
  EMU_TRY(emu_unsafe());
  if (handle.pid == getpid()) return cudaErrorDeviceUninitialized; /* the error that CUDA has for that */
  struct emu_range *range = find_opened(handle.id);
  if (range == NULL) {
    EMU_TRY(open_descriptor(&handle, &physical));
    cudaError_t error = handle.offset + handle.bytes <= physical->bytes
                            ? emu_map(physical, handle.offset, handle.bytes, &range)
                            : cudaErrorInvalidValue;
    if (error != cudaSuccess) {
      emu_physical_check(physical);
      return error;
    }
    range->kind = EMU_OPENED;
  }
  range->references++;
  *at = range->start;
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **at, cudaIpcMemHandle_t handle, unsigned flags)
{
  if (at == NULL || flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, open_handle(at, &handle));
}

static cudaError_t close_handle(const void *at)
{
  EMU_TRY(emu_unsafe());
  struct emu_range *range = emu_range_find(at);
  if (range == NULL || range->kind != EMU_OPENED || range->start != at) return cudaErrorInvalidValue;
  if (range->references == 1) emu_device_wait(range->device);
  range = emu_range_find(at);
  if (range == NULL || range->kind != EMU_OPENED || range->start != at) return cudaErrorInvalidValue;
  if (--range->references == 0) emu_unmap(range);
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *at)
{
  EMU_RUNTIME(EMU_CONTEXT, close_handle(at));
}
