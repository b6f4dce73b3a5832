/* Protection domains and memory regions. Keys are never used twice in a row, so that a stale one is found out. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct fake_mr **regions;
static uint32_t capacity;
static int live_regions, live_domains;
static uint32_t generation;

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
  pthread_mutex_lock(&fake_lock);
  int error = fake_should_fail("alloc_pd");
  struct fake_pd *pd = error ? NULL : calloc(1, sizeof *pd);
  if (pd) {
    pd->pd.context = context;
    fake_context(context)->pds++;
    live_domains++;
  }
  pthread_mutex_unlock(&fake_lock);
  errno = error;
  return pd ? &pd->pd : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *visible)
{
  struct fake_pd *pd = CONTAINER(visible, struct fake_pd, pd);
  pthread_mutex_lock(&fake_lock);
  if (pd->users) fake_misuse("ibv_dealloc_pd with %d objects in it", pd->users);
  fake_context(visible->context)->pds--;
  live_domains--;
  pthread_mutex_unlock(&fake_lock);
  free(pd);
  return 0;
}

/* A key is the place in the table and, in the low byte, a number that changes. */
static struct fake_mr *add_region(struct ibv_pd *pd)
{
  uint32_t place = 1;
  while (place < capacity && regions[place]) place++;
  if (place >= capacity) {
    uint32_t more = capacity ? 2 * capacity : 64;
    struct fake_mr **grown = realloc(regions, more * sizeof *grown);
    if (!grown) return NULL;
    memset(grown + capacity, 0, (more - capacity) * sizeof *grown);
    regions = grown;
    capacity = more;
  }
  struct fake_mr *mr = calloc(1, sizeof *mr);
  if (!mr) return NULL;
  regions[place] = mr;
  mr->mr.context = pd->context;
  mr->mr.pd = pd;
  mr->mr.lkey = mr->mr.rkey = place << 8 | (++generation & 0xff);
  CONTAINER(pd, struct fake_pd, pd)->users++;
  live_regions++;
  return mr;
}

static struct ibv_mr *add_memory(const char *call, struct ibv_pd *pd, void *address, size_t bytes, uint64_t iova,
                                 unsigned access)
{
  pthread_mutex_lock(&fake_lock);
  int error = fake_should_fail(call);
  if (!error && live_regions >= fake_limits.mr) error = ENOMEM;
  if (!error && (access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE)) error = EINVAL;
  /* Pages must be there, as for one that pins them. */
  unsigned char present[1];
  if (!error && bytes && mincore((void *)((uintptr_t)address & ~4095ul), 1, present) != 0) error = EFAULT;
  struct fake_mr *mr = error ? NULL : add_region(pd);
  if (mr) {
    mr->mr.addr = address;
    mr->mr.length = mr->bytes = bytes;
    mr->iova = iova;
    mr->base = address;
    mr->access = access;
  }
  pthread_mutex_unlock(&fake_lock);
  errno = error;
  return mr ? &mr->mr : NULL;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t bytes, int access)
{
  return add_memory("reg_mr", pd, address, bytes, (uintptr_t)address, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t bytes, uint64_t iova, unsigned access)
{
  if (access & IBV_ACCESS_RELAXED_ORDERING) {
    pthread_mutex_lock(&fake_lock);
    fake_count("relaxed");
    pthread_mutex_unlock(&fake_lock);
  }
  return add_memory("reg_mr", pd, address, bytes, iova, access);
}

/* Any descriptor that can be mapped stands for a dma-buf, such as a memfd. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access)
{
  if (getenv("FAKE_VERBS_NO_DMABUF")) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  pthread_mutex_lock(&fake_lock);
  int error = fake_should_fail("reg_dmabuf_mr");
  uint64_t page = offset & ~4095ull;
  void *mapped = error
                     ? MAP_FAILED
                     : mmap(NULL, bytes + (size_t)(offset - page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)page);
  if (!error && mapped == MAP_FAILED) error = errno == EBADF ? EBADF : errno;
  struct fake_mr *mr = error ? NULL : add_region(pd);
  if (mr) {
    fake_count("dmabuf");
    mr->mr.length = mr->bytes = bytes;
    mr->iova = iova;
    mr->mapped = mapped;
    mr->mapped_bytes = bytes + (size_t)(offset - page);
    mr->base = (char *)mapped + (offset - page);
    mr->access = (unsigned)access;
  }
  pthread_mutex_unlock(&fake_lock);
  errno = error;
  return mr ? &mr->mr : NULL;
}

int ibv_dereg_mr(struct ibv_mr *visible)
{
  struct fake_mr *mr = CONTAINER(visible, struct fake_mr, mr);
  pthread_mutex_lock(&fake_lock);
  uint32_t place = visible->lkey >> 8;
  if (place >= capacity || regions[place] != mr) fake_misuse("ibv_dereg_mr of memory that is not registered");
  regions[place] = NULL;
  CONTAINER(visible->pd, struct fake_pd, pd)->users--;
  fake_count("dereg_mr");
  if (--live_regions == 0) {
    free(regions);
    regions = NULL;
    capacity = 0;
  }
  pthread_mutex_unlock(&fake_lock);
  if (mr->mapped) munmap(mr->mapped, mr->mapped_bytes);
  free(mr);
  return 0;
}

char *fake_memory(struct ibv_pd *pd, uint32_t key, uint64_t address, size_t bytes, unsigned access)
{
  uint32_t place = key >> 8;
  struct fake_mr *mr = place < capacity ? regions[place] : NULL;
  if (!mr || mr->mr.lkey != key || mr->mr.pd != pd || (mr->access & access) != access) return NULL;
  if (address < mr->iova || bytes > mr->bytes || address - mr->iova > mr->bytes - bytes) return NULL;
  return mr->base + (address - mr->iova);
}

/* Short messages are what programs poll, and read beside the writer; long ones are announced by a completion. */
void fake_store(char *to, const char *from, size_t bytes)
{
  if (bytes > 4096 || ((uintptr_t)to & 7)) {
    memcpy(to, from, bytes);
    return;
  }
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    uint64_t word;
    memcpy(&word, from + at, 8);
    __atomic_store_n((uint64_t *)(void *)(to + at), word, __ATOMIC_RELEASE);
    if (at % 64 == 56 && fake_torn_usec()) usleep((useconds_t)fake_torn_usec());
  }
  for (; at < bytes; at++) __atomic_store_n(to + at, from[at], __ATOMIC_RELEASE);
}

/* And what it reads may be written meanwhile, a word at a time. */
void fake_load(char *to, const char *from, size_t bytes)
{
  size_t at = 0;
  for (; ((uintptr_t)from & 7) == 0 && at + 8 <= bytes; at += 8) {
    uint64_t word = __atomic_load_n((const uint64_t *)(const void *)(from + at), __ATOMIC_ACQUIRE);
    memcpy(to + at, &word, 8);
  }
  memcpy(to + at, from + at, bytes - at);
}

int fake_verbs_live(const char *what)
{
  int count = -1;
  pthread_mutex_lock(&fake_lock);
  if (strcmp(what, "mr") == 0) count = live_regions;
  if (strcmp(what, "pd") == 0) count = live_domains;
  if (strcmp(what, "context") == 0) count = fake_contexts();
  if (strcmp(what, "cq") == 0) count = fake_live_cqs;
  if (strcmp(what, "qp") == 0) {
    count = 0;
    for (struct fake_qp *qp = fake_qps; qp; qp = qp->next) count++;
  }
  pthread_mutex_unlock(&fake_lock);
  return count;
}
