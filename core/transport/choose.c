/* Which transport connects two ranks: the first that can, a device between before device memory before shared memory
 * before the network. */
#include "transport/transport.h"

#include <stdio.h>
#include "base/check.h"

static const struct tt_transport *const transports[TT_NUM_TRANSPORTS] = {[TT_TRANSPORT_PEER] = &tt_transport_peer,
                                                                         [TT_TRANSPORT_NET] = &tt_transport_net,
                                                                         [TT_TRANSPORT_DEVICE] = &tt_transport_device,
                                                                         [TT_TRANSPORT_INDIRECT] =
                                                                             &tt_transport_indirect};
static const enum tt_transport_id order[] = {TT_TRANSPORT_INDIRECT, TT_TRANSPORT_DEVICE, TT_TRANSPORT_PEER,
                                             TT_TRANSPORT_NET};

const struct tt_transport *tt_transport_get(enum tt_transport_id id)
{
  return (unsigned)id < TT_NUM_TRANSPORTS ? transports[id] : NULL;
}

ncclResult_t tt_transport_choose(const struct tt_transport_env *env, int from, int to, enum tt_transport_id *out)
{
  char reasons[512] = "";
  size_t at = 0;
  for (size_t i = 0; i < TT_COUNT(order); i++) {
    char reason[192] = "";
    const struct tt_transport *transport = transports[order[i]];
    if (transport->can(env, from, to, reason, sizeof(reason))) {
      *out = order[i];
      return ncclSuccess;
    }
    if (!reason[0]) continue;
    int n = snprintf(reasons + at, sizeof(reasons) - at, "%s%s: %s", at ? "; " : "", transport->name, reason);
    at = TT_MIN(at + (size_t)n, sizeof(reasons) - 1);
  }
  return TT_FAIL(ncclSystemError, "no transport can reach rank %d from rank %d (%s)", to, from, reasons);
}

static bool is_mapped(const struct tt_transport_env *env, int from, int to)
{
  char reason[192];
  for (size_t i = 0; i < TT_COUNT(order); i++)
    if (order[i] != TT_TRANSPORT_NET && transports[order[i]]->can(env, from, to, reason, sizeof(reason))) return true;
  return false;
}

bool tt_transport_networked(const struct tt_transport_env *env, int nnodes)
{
  if (nnodes > 1) return true;
  for (int a = 0; a < env->nranks; a++)
    for (int b = 0; b < env->nranks; b++)
      if (a != b && !is_mapped(env, a, b)) return true;
  return false;
}
