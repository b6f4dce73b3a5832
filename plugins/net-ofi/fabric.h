/* libfabric, opened at run time: a machine without it has a plugin without devices. Everything but these functions is
 * reached through the objects that they return, by inline functions of libfabric's headers. */
#ifndef TT_NET_OFI_FABRIC_H
#define TT_NET_OFI_FABRIC_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stddef.h>
#include <stdint.h>

/* What is asked of the library: the oldest version that has all that is used. */
#define TT_OFI_API FI_VERSION(1, 17)

struct tt_ofi_fabric {
  int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
                 struct fi_info **info);
  void (*freeinfo)(struct fi_info *info);
  struct fi_info *(*dupinfo)(const struct fi_info *info);
  int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
  const char *(*strerror)(int error);
  uint32_t (*version)(void);
};

/* NULL if there is no usable library; `why` then says it in a phrase. Opened once, and never closed: providers leave
 * threads and exit handlers behind. Under the lock of the plugin's state. */
const struct tt_ofi_fabric *tt_ofi_fabric(char *why, size_t size);

/* Bytes of a message that ofi_rxm, which makes reliable endpoints of `provider`'s connected ones, sends at once; for
 * larger ones it shakes hands. Those it copies, from and to buffers of which it has a thousand for each endpoint and
 * direction, so tt_ofi_fabric asks for small ones; where it need not copy, for more. The user may have chosen
 * (FI_OFI_RXM_BUFFER_SIZE, FI_OFI_RXM_EAGER_LIMIT). */
size_t tt_ofi_rxm_eager(const char *provider);

/* The words of libfabric's error number, of either sign; also before the library is open. */
const char *tt_ofi_strerror(int error);

#endif
