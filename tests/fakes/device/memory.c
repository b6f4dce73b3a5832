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
  bool of_user; /* each import has an address of its own, so that the memory may be freed and come again meanwhile */
};

/* `at`: where it is to lie; NULL: anywhere. */
static ncclResult_t map_block(int fd, size_t bytes, void *at, struct tt_device_memory *memory)
{
  struct block *block;
  TT_TRY(TT_CALLOC(&block, 1));
  block->ptr = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at != NULL ? MAP_FIXED_NOREPLACE : 0), fd, 0);
  if (block->ptr == MAP_FAILED) {
    free(block);
    return TT_FAIL(ncclSystemError, "cannot map %zu bytes of a fake device", bytes);
  }
  if (fake_range_add(NULL, block->ptr, bytes) != ncclSuccess) {
    munmap(block->ptr, bytes);
    free(block);
    return ncclSystemError;
  }
  block->refs = 1;
  block->fd = fd;
  block->bytes = bytes;
  fake_totals.memories++;
  *memory = (struct tt_device_memory){.ptr = block->ptr, .bytes = bytes, .resource = block};
  return ncclSuccess;
}

static ncclResult_t make_block(int device, size_t bytes, void *at, struct tt_device_memory *memory)
{
  size_t rounded = (bytes + GRANULE - 1) / GRANULE * GRANULE;
  int fd = memfd_create("tutti-fake-device", MFD_CLOEXEC);
  memset(memory, 0, sizeof *memory);
  if (fd < 0 || bytes == 0 || ftruncate(fd, (off_t)rounded) != 0) {
    if (fd >= 0) close(fd);
    return TT_FAIL(ncclSystemError, "fake device %d has no memory for %zu bytes", device, bytes);
  }
  ncclResult_t result = map_block(fd, rounded, at, memory);
  if (result != ncclSuccess) close(fd);
  return result;
}

ncclResult_t fake_alloc(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory)
{
  if (fake_totals.launches > 0) fake_totals.late++;
  return make_block(context->device, bytes, NULL, memory);
}

ncclResult_t fake_alloc_user(int device, size_t bytes, void *at, struct tt_device_memory *memory)
{
  TT_TRY(make_block(device, bytes, at, memory));
  ((struct block *)memory->resource)->of_user = true;
  return ncclSuccess;
}

void fake_release(struct tt_device_context *context, struct tt_device_memory *memory)
{
  struct block *block = memory->resource;
  (void)context;
  if (block == NULL) return;
  memset(memory, 0, sizeof *memory);
  fake_totals.memories--;
  if (--block->refs > 0) return;
  fake_range_remove(NULL, block->ptr, block->bytes);
  munmap(block->ptr, block->bytes);
  if (block->fd >= 0) close(block->fd);
  free(block);
}

ncclResult_t fake_export(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                         struct tt_device_export *out)
{
  struct block *block = memory->resource;
  static const uint32_t kinds[] = {
      [TT_EXPORT_NEAR] = TT_EXPORT_FD, [TT_EXPORT_HERE] = TT_EXPORT_LOCAL, [TT_EXPORT_FAR] = TT_EXPORT_FABRIC};
  *out = (struct tt_device_export){.kind = kinds[local], .fd = -1, .bytes = block->bytes};
  if (out->kind == TT_EXPORT_FABRIC) return fake_fabric_name(block->fd, out->handle);
  if (out->kind == TT_EXPORT_LOCAL) {
    memcpy(out->handle, &block, sizeof block);
    return ncclSuccess;
  }
  out->fd = dup(block->fd);
  if (out->fd < 0) return TT_FAIL(ncclSystemError, "fake device %d cannot hand out its memory", context->device);
  return ncclSuccess;
}

ncclResult_t fake_export_dmabuf(struct tt_device_context *context, const void *ptr, size_t bytes, int pci, int *fd)
{
  const struct fake_dmabuf shown = {.kind = FAKE_DMABUF, .ptr = (uintptr_t)ptr, .bytes = bytes, .pci = pci};
  *fd = -1;
  if ((uintptr_t)ptr % GRANULE != 0 || bytes % GRANULE != 0 || bytes == 0 || !fake_range_covers(NULL, ptr, bytes))
    return TT_FAIL(ncclInvalidArgument, "fake device %d has no %zu bytes at %p that are whole pages of its memory",
                   context->device, bytes, ptr);
  if (getenv("FAKE_NO_DMABUF") != NULL)
    return TT_FAIL(ncclSystemError, "fake device %d makes no dma-bufs", context->device);
  int made = memfd_create("tutti-fake-dmabuf", MFD_CLOEXEC);
  if (made < 0 || pwrite(made, &shown, sizeof shown, 0) != sizeof shown) {
    if (made >= 0) close(made);
    return TT_FAIL(ncclSystemError, "fake device %d has no descriptor left", context->device);
  }
  *fd = made;
  return ncclSuccess;
}

static fake_flushed *_Atomic at_flush;

__attribute__((visibility("default"))) void fake_at_flush(fake_flushed *flushed)
{
  at_flush = flushed;
}

ncclResult_t fake_flush(struct tt_device_context *context)
{
  fake_flushed *flushed = at_flush;
  if (getenv("FAKE_NO_FLUSH") != NULL)
    return TT_FAIL(ncclSystemError, "fake device %d flushes nothing", context->device);
  if (flushed != NULL) flushed();
  return ncclSuccess;
}

/* Theirs stays theirs. */
static ncclResult_t import_file(const struct tt_device_context *context, int theirs, size_t bytes,
                                struct tt_device_memory *memory)
{
  int fd = dup(theirs);
  if (fd < 0) return TT_FAIL(ncclSystemError, "fake device %d has no descriptor left", context->device);
  ncclResult_t result = map_block(fd, bytes, NULL, memory);
  if (result != ncclSuccess) close(fd);
  return result;
}

ncclResult_t fake_import(struct tt_device_context *context, const struct tt_device_export *in,
                         struct tt_device_memory *memory)
{
  memset(memory, 0, sizeof *memory);
  if (in->kind == TT_EXPORT_LOCAL) {
    struct block *block;
    memcpy(&block, in->handle, sizeof block);
    if (block->of_user) return import_file(context, block->fd, block->bytes, memory);
    block->refs++;
    fake_totals.memories++;
    *memory = (struct tt_device_memory){.ptr = block->ptr, .bytes = block->bytes, .resource = block};
    return ncclSuccess;
  }
  if (in->kind == TT_EXPORT_FABRIC) {
    int fd = fake_fabric_open(in->handle);
    ncclResult_t result = import_file(context, fd, in->bytes, memory);
    if (fd >= 0) close(fd);
    return result;
  }
  if (in->kind != TT_EXPORT_FD || in->fd < 0)
    return TT_FAIL(ncclInternalError, "fake device %d cannot import memory of kind %u", context->device, in->kind);
  return import_file(context, in->fd, in->bytes, memory);
}

/* The file of an export, which stays its owner's. */
static int file_of(const struct tt_device_export *in)
{
  struct block *block;
  if (in->kind != TT_EXPORT_LOCAL) return in->fd;
  memcpy(&block, in->handle, sizeof block);
  return block->fd;
}

ncclResult_t fake_import_parts(struct tt_device_context *context, const struct tt_device_export *in, int count,
                               struct tt_device_memory *memory)
{
  struct block *block;
  size_t bytes = 0, at = 0;
  memset(memory, 0, sizeof *memory);
  for (int i = 0; i < count; i++) bytes += in[i].bytes;
  TT_TRY(TT_CALLOC(&block, 1));
  *block = (struct block){.refs = 1, .fd = -1, .bytes = bytes};
  block->ptr = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool good = block->ptr != MAP_FAILED;
  for (int i = 0; i < count && good; at += in[i++].bytes)
    good = mmap((char *)block->ptr + at, in[i].bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_of(&in[i]),
                0) != MAP_FAILED;
  if (!good || fake_range_add(NULL, block->ptr, bytes) != ncclSuccess) {
    if (block->ptr != MAP_FAILED) munmap(block->ptr, bytes);
    free(block);
    return TT_FAIL(ncclSystemError, "fake device %d cannot map %d allocations", context->device, count);
  }
  fake_totals.memories++;
  *memory = (struct tt_device_memory){.ptr = block->ptr, .bytes = bytes, .resource = block};
  return ncclSuccess;
}
