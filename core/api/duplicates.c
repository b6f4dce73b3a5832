/* See duplicates.h. */
#include "api/duplicates.h"

#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/transport.h"

/* Whether two ranks use one device, as far as devices have ids. */
static bool share_device(const struct ncclComm *comm, int a, int b)
{
  static const unsigned char none[16];
  const struct tt_peer_info *peers = comm->env->peers;
  if (memcmp(peers[a].device_id, none, sizeof none) == 0) return false;
  bool host = peers[a].node == peers[b].node || peers[a].host_hash == peers[b].host_hash;
  return host && memcmp(peers[a].device_id, peers[b].device_id, sizeof none) == 0;
}

ncclResult_t tt_duplicates_check(const struct ncclComm *comm)
{
  const struct tt_peer_info *peers = comm->env->peers;
  if (tt_param_int(TT_PARAM_TUTTI_ALLOW_DUPLICATE_DEVICE)) return ncclSuccess;
  for (int a = 0; a < comm->nranks; a++) {
    char others[160] = "";
    size_t at = 0;
    for (int b = a + 1; b < comm->nranks; b++) {
      if (!share_device(comm, a, b)) continue;
      int wrote = snprintf(others + at, sizeof others - at, ", %d", b);
      at = TT_MIN(at + (size_t)wrote, sizeof others - 1);
    }
    if (at > 0)
      return TT_FAIL(ncclInvalidUsage,
                     "duplicate device: ranks %d%s of host %s all use %s device %d%s%s; give each rank one of its own, "
                     "or set TUTTI_ALLOW_DUPLICATE_DEVICE=1",
                     a, others, peers[a].host, comm->device->name, peers[a].device, peers[a].pci[0] ? " at " : "",
                     peers[a].pci);
  }
  return ncclSuccess;
}

int tt_duplicates_channels(const struct ncclComm *comm)
{
  enum { TOGETHER = 4 };
  int most = 1;
  if (!tt_param_int(TT_PARAM_TUTTI_ALLOW_DUPLICATE_DEVICE)) return comm->device->channels;
  for (int a = 0; a < comm->nranks; a++) {
    int sharing = 1;
    for (int b = 0; b < comm->nranks; b++) sharing += b != a && share_device(comm, a, b);
    most = TT_MAX(most, sharing);
  }
  return most == 1 ? comm->device->channels : TT_MAX(comm->device->channels / (TOGETHER * most), 1);
}
