/* A rank's shared memory: a memfd with a first-fit allocator of pages. */
#include "base/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/host.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif

/* The allocated blocks, by offset, and address space that is used up. */
struct block {
  struct block *next;
  size_t offset, bytes;
  bool used_up;
};

struct tt_shm {
  int fd;
  char *base;
  size_t size;
  bool limited; /* smaller than wanted, by ulimit -f */
  pthread_mutex_t mutex;
  struct block *blocks; /* under `mutex` */
  size_t used;          /* under `mutex` */
  size_t used_up;       /* under `mutex` */
  bool once;            /* under `mutex` */
};

static size_t page_bytes(void)
{
  return (size_t)sysconf(_SC_PAGESIZE);
}

/* False on overflow. A block has at least one page, so that each has a place of its own. */
static bool whole_pages(size_t bytes, size_t *rounded)
{
  size_t page = page_bytes();
  if (bytes == 0) bytes = 1;
  if (bytes > SIZE_MAX - page) return false;
  *rounded = (bytes + page - 1) / page * page;
  return true;
}

/* How large a file may be. Beyond that calls do not only fail: SIGXFSZ comes, which by default ends the process. */
static size_t largest_file(void)
{
  struct rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur > SIZE_MAX ? SIZE_MAX : (size_t)limit.rlim_cur;
}

static ncclResult_t make_file(size_t size, int *fd)
{
  char hint[100];
  /* Some systems demand the no-exec flag, and kernels before 6.3 do not know it. */
  *fd = memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (*fd < 0 && errno == EINVAL) *fd = memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0)
    return TT_FAIL(ncclSystemError, "no shared memory: memfd_create: %s%s", strerror(errno),
                   tt_host_file_hint(errno, hint, sizeof(hint)));
  if (ftruncate(*fd, (off_t)size) != 0)
    return TT_FAIL(ncclSystemError, "no shared memory: cannot reserve %zu bytes: %s; lower TUTTI_SHM_ARENA_BYTES", size,
                   strerror(errno));
  /* With these, what a peer maps can neither vanish under it nor be grown by it. */
  if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return TT_FAIL(ncclSystemError, "shared memory cannot be sealed: %s", strerror(errno));
  return ncclSuccess;
}

ncclResult_t tt_shm_create(size_t address_space, struct tt_shm **out)
{
  ncclResult_t result;
  struct tt_shm *shm = NULL;
  size_t size;
  *out = NULL;
  if (address_space == 0 || !whole_pages(address_space, &size) || size > (size_t)INT64_MAX)
    return TT_FAIL(ncclInvalidArgument, "shared memory of %zu bytes is impossible", address_space);
  size_t largest = largest_file() / page_bytes() * page_bytes();
  if (largest == 0)
    return TT_FAIL(ncclSystemError,
                   "no shared memory: no file may have as much as a page of %zu bytes; raise ulimit -f", page_bytes());
  TT_TRY(TT_CALLOC(&shm, 1));
  shm->fd = -1;
  shm->base = MAP_FAILED;
  shm->size = TT_MIN(size, largest);
  shm->limited = size > largest;
  pthread_mutex_init(&shm->mutex, NULL);
  TT_TRY_GOTO(make_file(shm->size, &shm->fd), result, out);
  shm->base = mmap(NULL, shm->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, shm->fd, 0);
  if (shm->base == MAP_FAILED) {
    result = TT_FAIL(ncclSystemError,
                     "%zu bytes of address space for shared memory cannot be mapped: %s; raise ulimit -v, or lower "
                     "TUTTI_SHM_ARENA_BYTES",
                     shm->size, strerror(errno));
    goto out;
  }
  *out = shm;
  return ncclSuccess;
out:
  tt_shm_destroy(shm);
  return result;
}

void tt_shm_destroy(struct tt_shm *shm)
{
  if (!shm) return;
  if (shm->base != MAP_FAILED) munmap(shm->base, shm->size);
  if (shm->fd >= 0) close(shm->fd);
  while (shm->blocks) {
    struct block *next = shm->blocks->next;
    free(shm->blocks);
    shm->blocks = next;
  }
  pthread_mutex_destroy(&shm->mutex);
  free(shm);
}

int tt_shm_fd(const struct tt_shm *shm)
{
  return shm->fd;
}

size_t tt_shm_size(const struct tt_shm *shm)
{
  return shm->size;
}

unsigned char *tt_shm_base(const struct tt_shm *shm)
{
  return (unsigned char *)shm->base;
}

void tt_shm_use_once(struct tt_shm *shm)
{
  pthread_mutex_lock(&shm->mutex);
  shm->once = true;
  pthread_mutex_unlock(&shm->mutex);
}

/* The link after which a block of `bytes` fits, and its offset; NULL if there is no gap so large. */
static struct block **find_gap(struct tt_shm *shm, size_t bytes, size_t *offset)
{
  struct block **link = &shm->blocks;
  *offset = 0;
  while (*link && (*link)->offset - *offset < bytes) {
    *offset = (*link)->offset + (*link)->bytes;
    link = &(*link)->next;
  }
  return *link || shm->size - *offset >= bytes ? link : NULL;
}

/* Takes the memory now: without it, a first touch could end the process. Signals interrupt it. The limit may have been
 * lowered since the file was made. */
static int take_memory(int fd, size_t offset, size_t bytes)
{
  int status;
  if (offset + bytes > largest_file()) return EFBIG;
  do status = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
  while (status != 0 && errno == EINTR);
  return status == 0 ? 0 : errno;
}

static ncclResult_t alloc_locked(struct tt_shm *shm, size_t wanted, size_t bytes, struct block *block)
{
  size_t offset;
  struct block **link = find_gap(shm, bytes, &offset);
  if (!link)
    return TT_FAIL(ncclSystemError,
                   "no room for %zu bytes of shared memory: %zu of %zu bytes of address space are in use, and %zu were "
                   "used by communicators that have ended; raise %s",
                   wanted, shm->used, shm->size, shm->used_up,
                   shm->limited ? "ulimit -f, to which it was cut" : "TUTTI_SHM_ARENA_BYTES");
  int error = take_memory(shm->fd, offset, bytes);
  if (error)
    return TT_FAIL(ncclSystemError,
                   "no memory for %zu bytes of shared memory, %zu are in use: %s; check the machine's free memory, the "
                   "container's memory limit and ulimit -f",
                   wanted, shm->used, strerror(error));
  *block = (struct block){.next = *link, .offset = offset, .bytes = bytes};
  *link = block;
  shm->used += bytes;
  return ncclSuccess;
}

ncclResult_t tt_shm_alloc(struct tt_shm *shm, size_t bytes, void **ptr, uint64_t *offset)
{
  size_t rounded;
  struct block *block;
  *ptr = NULL;
  *offset = 0;
  if (!whole_pages(bytes, &rounded)) rounded = SIZE_MAX;
  TT_TRY(TT_CALLOC(&block, 1));
  pthread_mutex_lock(&shm->mutex);
  ncclResult_t result = alloc_locked(shm, bytes, rounded, block);
  pthread_mutex_unlock(&shm->mutex);
  if (result != ncclSuccess) {
    free(block);
    return result;
  }
  *ptr = shm->base + block->offset;
  *offset = block->offset;
  return ncclSuccess;
}

/* Takes a freed block off the list, or leaves it there as used up, one with such neighbours. Returns what is to be
 * freed, at most two. */
static struct block *drop_block(struct tt_shm *shm, struct block *before, struct block **link)
{
  struct block *block = *link, *next = block->next, *dropped = NULL;
  if (!shm->once) {
    *link = next;
    block->next = NULL;
    return block;
  }
  block->used_up = true;
  shm->used_up += block->bytes;
  if (next && next->used_up && next->offset == block->offset + block->bytes) {
    block->bytes += next->bytes;
    block->next = next->next;
    next->next = NULL;
    dropped = next;
  }
  if (before && before->used_up && before->offset + before->bytes == block->offset) {
    before->bytes += block->bytes;
    before->next = block->next;
    block->next = dropped;
    dropped = block;
  }
  return dropped;
}

void tt_shm_free(struct tt_shm *shm, void *ptr, size_t bytes)
{
  if (!ptr) return;
  size_t rounded;
  if (!whole_pages(bytes, &rounded)) rounded = SIZE_MAX;
  size_t offset = (size_t)((char *)ptr - shm->base);
  pthread_mutex_lock(&shm->mutex);
  struct block **link = &shm->blocks, *before = NULL;
  while (*link && (*link)->offset < offset) {
    before = *link;
    link = &before->next;
  }
  struct block *block = *link;
  if (!block || block->offset != offset || block->bytes != rounded || block->used_up) {
    pthread_mutex_unlock(&shm->mutex);
    TT_WARN("%zu bytes of shared memory at offset %zu were never allocated so, or are free already; left alone", bytes,
            offset);
    return;
  }
  int status;
  do status = fallocate(shm->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)rounded);
  while (status != 0 && errno == EINTR);
  /* The next owner relies on zeros. */
  if (status != 0) memset(ptr, 0, rounded);
  shm->used -= rounded;
  struct block *dropped = drop_block(shm, before, link);
  pthread_mutex_unlock(&shm->mutex);
  while (dropped) {
    struct block *next = dropped->next;
    free(dropped);
    dropped = next;
  }
}

size_t tt_shm_used(const struct tt_shm *shm)
{
  struct tt_shm *locked = (struct tt_shm *)shm;
  pthread_mutex_lock(&locked->mutex);
  size_t used = shm->used;
  pthread_mutex_unlock(&locked->mutex);
  return used;
}

ncclResult_t tt_shm_map(int fd, uint64_t offset, size_t bytes, void **ptr)
{
  struct stat stat;
  size_t rounded;
  *ptr = NULL;
  if (fstat(fd, &stat) != 0) return TT_FAIL(ncclSystemError, "shared memory of a peer: %s", strerror(errno));
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK))
    return TT_FAIL(ncclInvalidArgument, "a peer's memory is not sealed against shrinking, so it is not mapped");
  if (offset % page_bytes() != 0 || bytes == 0 || !whole_pages(bytes, &rounded) || offset > (uint64_t)stat.st_size ||
      rounded > (uint64_t)stat.st_size - offset)
    return TT_FAIL(ncclInvalidArgument, "a peer's block at %llu of %zu bytes is not within its %lld bytes of memory",
                   (unsigned long long)offset, bytes, (long long)stat.st_size);
  void *memory = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
  if (memory == MAP_FAILED)
    return TT_FAIL(ncclSystemError, "%zu bytes of a peer's memory cannot be mapped: %s; check ulimit -v", bytes,
                   strerror(errno));
  *ptr = memory;
  return ncclSuccess;
}

void tt_shm_unmap(void *ptr, size_t bytes)
{
  size_t rounded;
  if (ptr && whole_pages(bytes, &rounded)) munmap(ptr, rounded);
}
