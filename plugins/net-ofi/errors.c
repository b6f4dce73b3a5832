/* How a link fails: who, what, why, and what to look at. The first error ends it. */
#include "net_ofi.h"

ncclResult_t tt_ofi_link_fail(struct tt_ofi_link *link, ncclResult_t result)
{
  link->failed = result;
  return result;
}

ncclResult_t tt_ofi_link_lost(struct tt_ofi_link *link, const char *doing)
{
  return tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError,
                                        "net ofi: device %s (%s): lost the peer %s while %s: %s; its process ended or "
                                        "the network between failed, see its log",
                                        link->device->name, tt_ofi_link_provider(link), link->peer, doing,
                                        link->bye ? "it closed the connection" : "the connection was closed"));
}

static const char *remedy_for(int error)
{
  switch (error < 0 ? -error : error) {
  case FI_EACCES:
  case FI_EPERM:
    return "the provider was not allowed to; look at permissions, security groups and limits of locked memory";
  case FI_ENOMEM:
  case FI_ENOSPC:
    return "a resource ran out; look at ulimit -l and -n, /dev/shm, and lower TUTTI_OFI_DEPTH";
  case FI_EMSGSIZE:
  case FI_ETRUNC:
  case FI_ETOOSMALL:
    return "sizes disagree; do all ranks have the same TUTTI_OFI_EAGER and libfabric?";
  case FI_EKEYREJECTED:
  case FI_ENOKEY:
    return "the peer's memory is not registered any more; did it end the operation early?";
  default:
    return "look whether the peer runs, at its log, and at the network between; FI_LOG_LEVEL=warn makes libfabric tell "
           "more";
  }
}

ncclResult_t tt_ofi_link_broken(struct tt_ofi_link *link, int rail, const char *doing, int error, const char *detail)
{
  return tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError, "net ofi: device %s (%s): %s %s %s failed: %s%s%s; %s",
                                        link->rail[rail].nic->name, tt_ofi_link_provider(link), doing,
                                        link->sends ? "to" : "from", link->peer, tt_ofi_strerror(error),
                                        detail && *detail ? ", " : "", detail ? detail : "", remedy_for(error)));
}
