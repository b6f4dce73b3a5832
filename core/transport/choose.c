/* Which transport connects two ranks: the first that can, shared memory before the network. */
#include "transport/transport.h"

#include <stdio.h>
#include "base/check.h"

static const struct tt_transport *const transports[TT_NUM_TRANSPORTS] = {
    [TT_TRANSPORT_PEER] = &tt_transport_peer, [TT_TRANSPORT_NET] = &tt_transport_net};

const struct tt_transport *tt_transport_get(enum tt_transport_id id)
{
  return (unsigned)id < TT_NUM_TRANSPORTS ? transports[id] : NULL;
}

ncclResult_t tt_transport_choose(const struct tt_transport_env *env, int from, int to, enum tt_transport_id *out)
{
  char reasons[512] = "";
  size_t at = 0;
  for (int i = 0; i < TT_NUM_TRANSPORTS; i++) {
    char reason[192] = "";
    if (transports[i]->can(env, from, to, reason, sizeof(reason))) {
      *out = (enum tt_transport_id)i;
      return ncclSuccess;
    }
    int n = snprintf(reasons + at, sizeof(reasons) - at, "%s%s: %s", at ? "; " : "", transports[i]->name, reason);
    at = TT_MIN(at + (size_t)n, sizeof(reasons) - 1);
  }
  return TT_FAIL(ncclSystemError, "no transport can reach rank %d from rank %d (%s)", to, from, reasons);
}
