/* Memory: an unnamed file, mapped shared. Another process maps the same file; in this one the memory itself is used. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULE 4096

/* A mapping, shared by who allocated it and those of this process that imported it. */
struct block {
  _Atomic int refs;
  int fd;
  void *ptr;
  size_t bytes;
};

static ncclResult_t map_block(int fd, size_t bytes, struct tt_device_memory *memory)
{
  struct block *block;
  TT_TRY(TT_CALLOC(&block, 1));
  block->ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (block->ptr == MAP_FAILED) {
    free(block);
    return TT_FAIL(ncclSystemError, "cannot map %zu bytes of a fake device", bytes);
  }
  block->refs = 1;
  block->fd = fd;
  block->bytes = bytes;
  fake_totals.memories++;
  *memory = (struct tt_device_memory){.ptr = block->ptr, .bytes = bytes, .resource = block};
  return ncclSuccess;
}

ncclResult_t fake_alloc(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory)
{
  size_t rounded = (bytes + GRANULE - 1) / GRANULE * GRANULE;
  int fd = memfd_create("tutti-fake-device", MFD_CLOEXEC);
  memset(memory, 0, sizeof *memory);
  if (fake_totals.launches > 0) fake_totals.late++;
  if (fd < 0 || bytes == 0 || ftruncate(fd, (off_t)rounded) != 0) {
    if (fd >= 0) close(fd);
    return TT_FAIL(ncclSystemError, "fake device %d has no memory for %zu bytes", context->device, bytes);
  }
  ncclResult_t result = map_block(fd, rounded, memory);
  if (result != ncclSuccess) close(fd);
  return result;
}

void fake_release(struct tt_device_context *context, struct tt_device_memory *memory)
{
  struct block *block = memory->resource;
  (void)context;
  if (block == NULL) return;
  memset(memory, 0, sizeof *memory);
  fake_totals.memories--;
  if (--block->refs > 0) return;
  munmap(block->ptr, block->bytes);
  close(block->fd);
  free(block);
}

ncclResult_t fake_export(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                         struct tt_device_export *out)
{
  struct block *block = memory->resource;
  *out = (struct tt_device_export){.kind = local ? TT_EXPORT_LOCAL : TT_EXPORT_FD, .fd = -1, .bytes = block->bytes};
  memcpy(out->handle, &block, sizeof block);
  if (local) return ncclSuccess;
  memset(out->handle, 0, sizeof out->handle);
  out->fd = dup(block->fd);
  if (out->fd < 0) return TT_FAIL(ncclSystemError, "fake device %d cannot hand out its memory", context->device);
  return ncclSuccess;
}

ncclResult_t fake_import(struct tt_device_context *context, const struct tt_device_export *in,
                         struct tt_device_memory *memory)
{
  memset(memory, 0, sizeof *memory);
  if (in->kind == TT_EXPORT_LOCAL) {
    struct block *block;
    memcpy(&block, in->handle, sizeof block);
    block->refs++;
    fake_totals.memories++;
    *memory = (struct tt_device_memory){.ptr = block->ptr, .bytes = block->bytes, .resource = block};
    return ncclSuccess;
  }
  if (in->kind != TT_EXPORT_FD || in->fd < 0)
    return TT_FAIL(ncclInternalError, "fake device %d cannot import memory of kind %u", context->device, in->kind);
  int fd = dup(in->fd); /* theirs belongs to who has the struct */
  if (fd < 0) return TT_FAIL(ncclSystemError, "fake device %d has no descriptor left", context->device);
  ncclResult_t result = map_block(fd, in->bytes, memory);
  if (result != ncclSuccess) close(fd);
  return result;
}
