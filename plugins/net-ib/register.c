/* Registered memory. Each port keeps its registrations, by whole pages, and counts their users: the connections of a
 * rank register the same buffers again and again, and the NIC's tables are small. */
#include "net_ib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

bool tt_ib_peer_memory(void)
{
  /* The module of the GPU's driver, and what it was called before. */
  static const char *const modules[] = {"/sys/module/nvidia_peermem/version",
                                        "/sys/kernel/mm/memory_peers/nv_mem/version",
                                        "/sys/kernel/mm/memory_peers/nv_mem_nc/version"};
  for (size_t i = 0; i < TT_COUNT(modules); i++)
    if (access(modules[i], F_OK) == 0) return true;
  return false;
}

bool tt_ib_dmabuf_works(struct ibv_pd *pd)
{
  const struct tt_ib_verbs *verbs = tt_ib_verbs(NULL);
  if (!verbs->reg_dmabuf_mr) return false;
  /* A descriptor that is none: who supports it says that, others that they do not. */
  errno = 0;
  struct ibv_mr *mr = verbs->reg_dmabuf_mr(pd, 0, 4096, 0, -1, RIGHTS);
  if (mr) verbs->dereg_mr(mr);
  return mr || (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS);
}

static bool relaxed(void)
{
  return tt_param_int(TT_PARAM_NCCL_IB_PCI_RELAXED_ORDERING) != 0 && tt_ib_verbs(NULL)->reg_mr_iova2;
}

static const char *remedy(int error, int type)
{
  if (type == NCCL_PTR_CUDA)
    return "; is the module nvidia_peermem loaded, and does this NIC reach the GPU? NCCL_NET_GDR_LEVEL=LOC does "
           "without";
  if (error == ENOMEM || error == EAGAIN)
    return "; the limit of locked memory (ulimit -l) or the NIC's tables are too small";
  if (error == EFAULT) return "; it is not all mapped";
  return "";
}

static ncclResult_t register_pages(struct tt_ib_port *port, uintptr_t address, size_t bytes, int type, uint64_t offset,
                                   int fd, struct ibv_mr **mr)
{
  const struct tt_ib_verbs *verbs = tt_ib_verbs(NULL);
  int rights = RIGHTS | (relaxed() ? IBV_ACCESS_RELAXED_ORDERING : 0);
  if (fd >= 0)
    *mr = verbs->reg_dmabuf_mr ? verbs->reg_dmabuf_mr(port->pd, offset, bytes, address, fd, rights) : NULL;
  else if (rights & IBV_ACCESS_RELAXED_ORDERING)
    *mr = verbs->reg_mr_iova2(port->pd, (void *)address, bytes, address, (unsigned)rights);
  else
    *mr = verbs->reg_mr(port->pd, (void *)address, bytes, rights);
  if (*mr) return ncclSuccess;
  int error = errno;
  /* The caller tries in another way where a GPU's memory cannot be registered; a warning would be the last error. */
  if (type == NCCL_PTR_CUDA) {
    TT_INFO(TT_NET | TT_REG, "NET/IB : %s cannot register %zu bytes of a GPU at %p%s: %s%s", port->name, bytes,
            (void *)address, fd >= 0 ? " by dma-buf" : "", strerror(error), remedy(error, type));
    return ncclSystemError;
  }
  return TT_FAIL(ncclSystemError, "net ib: %s cannot register %zu bytes at %p: %s%s", port->name, bytes,
                 (void *)address, strerror(error), remedy(error, type));
}

static ncclResult_t make_room(struct tt_ib_port *port)
{
  if (port->mr_count < port->mr_room) return ncclSuccess;
  int room = TT_MAX(32, 2 * port->mr_room);
  struct tt_ib_mr *mrs = realloc(port->mrs, (size_t)room * sizeof *mrs);
  if (!mrs) return TT_FAIL(ncclSystemError, "net ib: no memory for a list of %d registrations", room);
  port->mrs = mrs;
  port->mr_room = room;
  return ncclSuccess;
}

/* With the lock. One that covers the pages serves; else a new one goes behind all that begin no later. */
static ncclResult_t find_or_register(struct tt_ib_port *port, uintptr_t address, size_t bytes, int type,
                                     uint64_t offset, int fd, struct ibv_mr **mr)
{
  int at = 0;
  for (; at < port->mr_count && port->mrs[at].address <= address; at++) {
    struct tt_ib_mr *entry = &port->mrs[at];
    if (address - entry->address > entry->bytes || bytes > entry->bytes - (address - entry->address)) continue;
    entry->users++;
    *mr = entry->mr;
    return ncclSuccess;
  }
  TT_TRY(make_room(port));
  TT_TRY(register_pages(port, address, bytes, type, offset, fd, mr));
  memmove(&port->mrs[at + 1], &port->mrs[at], (size_t)(port->mr_count - at) * sizeof *port->mrs);
  port->mrs[at] = (struct tt_ib_mr){.address = address, .bytes = bytes, .users = 1, .mr = *mr};
  port->mr_count++;
  return ncclSuccess;
}

static ncclResult_t release(struct tt_ib_port *port, struct ibv_mr *mr)
{
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&port->lock);
  int at = 0;
  while (at < port->mr_count && port->mrs[at].mr != mr) at++;
  if (at == port->mr_count) {
    result = TT_FAIL(ncclInternalError, "net ib: deregMr of memory that is not registered with %s", port->name);
  } else if (--port->mrs[at].users == 0) {
    int error = tt_ib_verbs(NULL)->dereg_mr(mr);
    if (error)
      result = TT_FAIL(ncclSystemError, "net ib: %s cannot deregister memory: %s", port->name, strerror(error));
    port->mr_count--;
    memmove(&port->mrs[at], &port->mrs[at + 1], (size_t)(port->mr_count - at) * sizeof *port->mrs);
  }
  pthread_mutex_unlock(&port->lock);
  return result;
}

ncclResult_t tt_ib_deregister(struct tt_ib_memory *memory)
{
  ncclResult_t result = ncclSuccess;
  for (int i = 0; memory && i < memory->count; i++) {
    ncclResult_t one = memory->mr[i] ? release(memory->port[i], memory->mr[i]) : ncclSuccess;
    if (result == ncclSuccess) result = one;
  }
  free(memory);
  return result;
}

ncclResult_t tt_ib_register(struct tt_ib_link *link, void *data, size_t bytes, int type, uint64_t offset, int fd,
                            struct tt_ib_memory **out)
{
  struct tt_ib_memory *memory = NULL;
  ncclResult_t result;
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), address = (uintptr_t)data & -page;
  *out = NULL;
  if (!link || bytes == 0 || (type != NCCL_PTR_HOST && type != NCCL_PTR_CUDA))
    return TT_FAIL(ncclInternalError, "net ib: cannot register %zu bytes of memory type %d", bytes, type);
  size_t whole = ((uintptr_t)data + bytes - address + page - 1) & -page;
  /* A dma-buf begins where the memory does, so the pages before it are not in it; GPUs' memory begins with a page. */
  TT_TRY(TT_CALLOC(&memory, 1));
  memory->host = type == NCCL_PTR_HOST;
  for (int i = 0; i < link->rails; i++) {
    struct tt_ib_port *port = link->rail[i].port;
    memory->port[i] = port;
    memory->count = i + 1;
    if (link->qps && atomic_load(&port->nic->fatal)) continue; /* gone; others may have taken over */
    pthread_mutex_lock(&port->lock);
    result = find_or_register(port, address, whole, type, offset, fd, &memory->mr[i]);
    pthread_mutex_unlock(&port->lock);
    if (result != ncclSuccess) {
      tt_ib_deregister(memory);
      return result;
    }
  }
  *out = memory;
  return ncclSuccess;
}

ncclResult_t tt_ib_register_own(struct tt_ib_port *port, void *data, size_t bytes, struct ibv_mr **mr)
{
  *mr = tt_ib_verbs(NULL)->reg_mr(port->pd, data, bytes, RIGHTS);
  if (*mr) return ncclSuccess;
  int error = errno;
  return TT_FAIL(ncclSystemError, "net ib: %s cannot register %zu bytes for a connection: %s%s", port->name, bytes,
                 strerror(error), remedy(error, NCCL_PTR_HOST));
}
