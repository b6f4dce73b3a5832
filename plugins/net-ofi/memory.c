/* Registrations. A comm's memory is registered with the domain of each of its rails; where a provider binds
 * registrations to endpoints, with the comm's own. */
#include "net_ofi.h"

#include <stdlib.h>

/* Since 1.20 memory may come as a descriptor of a dma-buf. */
#ifdef FI_MR_DMABUF
#define HAVE_DMABUF 1
#else
#define HAVE_DMABUF 0
#endif

static int mode_of(const struct tt_ofi_nic *nic)
{
  return nic->info->domain_attr->mr_mode;
}

static int finish(const struct tt_ofi_nic *nic, struct fid_ep *ep, struct fid_mr **mr)
{
  int error = 0;
  if (!(mode_of(nic) & FI_MR_ENDPOINT)) return 0;
  error = fi_mr_bind(*mr, &ep->fid, 0);
  if (error == 0) error = fi_mr_enable(*mr);
  if (error == 0) return 0;
  fi_close(&(*mr)->fid);
  *mr = NULL;
  return error;
}

static uint64_t next_key(struct tt_ofi_nic *nic)
{
  return mode_of(nic) & FI_MR_PROV_KEY ? 0 : atomic_fetch_add(&nic->last_key, 1) + 1;
}

ncclResult_t tt_ofi_memory_own(struct tt_ofi_nic *nic, struct fid_ep *ep, void *data, size_t bytes, struct fid_mr **mr)
{
  *mr = NULL;
  if (!(mode_of(nic) & FI_MR_LOCAL)) return ncclSuccess;
  int error = fi_mr_reg(nic->domain, data, bytes, FI_SEND | FI_RECV | FI_READ, 0, next_key(nic), 0, mr, NULL);
  if (error == 0) error = finish(nic, ep, mr);
  if (error == 0) return ncclSuccess;
  *mr = NULL;
  return TT_FAIL(ncclSystemError,
                 "net ofi: device %s: %zu bytes for packets cannot be registered: %s; look at the limit of locked "
                 "memory (ulimit -l)",
                 nic->name, bytes, tt_ofi_strerror(error));
}

static int register_one(const struct tt_ofi_link *link, int rail, const struct tt_ofi_memory *memory, uint64_t offset,
                        int fd, struct fid_mr **mr)
{
  struct tt_ofi_nic *nic = link->rail[rail].nic;
  struct iovec iov = {memory->base, memory->bytes};
  uint64_t flags = 0;
  struct fi_mr_attr attr = {.mr_iov = &iov,
                            .iov_count = 1,
                            .access = link->sends ? FI_WRITE : FI_REMOTE_WRITE | FI_REMOTE_READ,
                            .requested_key = next_key(nic),
                            .iface = memory->type == NCCL_PTR_CUDA ? FI_HMEM_CUDA : FI_HMEM_SYSTEM};
#if HAVE_DMABUF
  struct fi_mr_dmabuf dmabuf = {.fd = fd, .offset = offset, .len = memory->bytes, .base_addr = memory->base};
  if (fd >= 0) {
    attr.dmabuf = &dmabuf;
    flags = FI_MR_DMABUF;
  }
#else
  (void)offset;
  if (fd >= 0) return -FI_EOPNOTSUPP;
#endif
  int error = fi_mr_regattr(nic->domain, &attr, flags, mr);
  return error ? error : finish(nic, link->rail[rail].ep, mr);
}

/* What a sender writes from needs a registration only if the provider says so, or it is no ordinary memory. */
static bool is_needed(const struct tt_ofi_link *link, const struct tt_ofi_nic *nic, int type)
{
  return !link->sends || type != NCCL_PTR_HOST || (mode_of(nic) & FI_MR_LOCAL);
}

static void undo(struct tt_ofi_memory *memory)
{
  for (int i = 0; i < memory->rails; i++)
    if (memory->mr[i]) fi_close(&memory->mr[i]->fid);
  free(memory);
}

ncclResult_t tt_ofi_memory_make(struct tt_ofi_link *link, void *data, size_t bytes, int type, uint64_t offset, int fd,
                                struct tt_ofi_memory **out)
{
  *out = NULL;
  if (!link || !data || bytes == 0) return TT_FAIL(ncclInternalError, "net ofi: regMr of %zu bytes at %p", bytes, data);
  bool gpu = type == NCCL_PTR_CUDA;
  if (type != NCCL_PTR_HOST && !(gpu && link->rail[0].nic->hmem))
    return TT_FAIL(ncclInternalError,
                   "net ofi: device %s cannot register %zu bytes of memory type %d; its ptrSupport says which it can",
                   link->device->name, bytes, type);
  struct tt_ofi_memory *memory;
  TT_TRY(TT_CALLOC(&memory, 1));
  memory->base = data;
  memory->bytes = bytes;
  memory->type = type;
  for (int i = 0; i < link->rails; i++) {
    memory->rails = i;
    if (!is_needed(link, link->rail[i].nic, type)) continue;
    int error = register_one(link, i, memory, offset, fd, &memory->mr[i]);
    if (error == 0) continue;
    undo(memory);
    return TT_FAIL(ncclSystemError, "net ofi: device %s: %zu bytes of %s memory%s cannot be registered: %s%s",
                   link->rail[i].nic->name, bytes, gpu ? "a GPU's" : "host", fd >= 0 ? " by their dma-buf" : "",
                   tt_ofi_strerror(error), gpu ? "" : "; look at the limit of locked memory (ulimit -l)");
  }
  memory->rails = link->rails;
  *out = memory;
  return ncclSuccess;
}

ncclResult_t tt_ofi_memory_free(struct tt_ofi_link *link, struct tt_ofi_memory *memory)
{
  ncclResult_t result = ncclSuccess;
  if (!memory) return ncclSuccess;
  for (int i = 0; i < memory->rails; i++) {
    int error = memory->mr[i] ? fi_close(&memory->mr[i]->fid) : 0;
    if (error)
      result = TT_FAIL(ncclSystemError, "net ofi: device %s: a registration of %zu bytes cannot be ended: %s",
                       link->rail[i].nic->name, memory->bytes, tt_ofi_strerror(error));
  }
  free(memory);
  return result;
}

ncclResult_t tt_ofi_memory_holds(const struct tt_ofi_memory *memory, const void *data, size_t bytes, const char *call)
{
  const char *at = data;
  if (memory && at >= memory->base && bytes <= memory->bytes && (size_t)(at - memory->base) <= memory->bytes - bytes)
    return ncclSuccess;
  return TT_FAIL(ncclInternalError, "net ofi: %s of %zu bytes at %p, which %s", call, bytes, data,
                 memory ? "do not lie inside of their registration" : "are not registered");
}

uint64_t tt_ofi_memory_remote(const struct tt_ofi_link *link, const struct tt_ofi_memory *memory, int rail,
                              const void *data)
{
  bool virtual = mode_of(link->rail[rail].nic) & FI_MR_VIRT_ADDR;
  return virtual ? (uint64_t)(uintptr_t)data : (uint64_t)((const char *)data - memory->base);
}
