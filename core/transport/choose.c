/* Which transport connects two ranks: the first that can, a device between before device memory before shared memory
 * before the network; and what that comes to for a whole communicator. */
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "bootstrap/bootstrap.h"

static const struct tt_transport *const transports[TT_NUM_TRANSPORTS] = {
    [TT_TRANSPORT_PEER] = &tt_transport_peer,     [TT_TRANSPORT_NET] = &tt_transport_net,
    [TT_TRANSPORT_DEVICE] = &tt_transport_device, [TT_TRANSPORT_INDIRECT] = &tt_transport_indirect,
    [TT_TRANSPORT_HOST] = &tt_transport_host,     [TT_TRANSPORT_COPIED] = &tt_transport_copied};
static const enum tt_transport_id order[] = {TT_TRANSPORT_INDIRECT, TT_TRANSPORT_DEVICE, TT_TRANSPORT_PEER,
                                             TT_TRANSPORT_HOST, TT_TRANSPORT_NET};

const struct tt_transport *tt_transport_get(enum tt_transport_id id)
{
  return (unsigned)id < TT_NUM_TRANSPORTS ? transports[id] : NULL;
}

/* `reasons`: why those that come before it cannot; all transports' if it returns false. */
static bool find(const struct tt_transport_env *env, int from, int to, enum tt_transport_id *out, char *reasons,
                 size_t size)
{
  size_t at = 0;
  reasons[0] = '\0';
  for (size_t i = 0; i < TT_COUNT(order); i++) {
    char reason[192] = "";
    const struct tt_transport *transport = transports[order[i]];
    if (transport->can(env, from, to, reason, sizeof(reason))) {
      *out = order[i];
      return true;
    }
    if (!reason[0]) continue;
    int n = snprintf(reasons + at, size - at, "%s%s: %s", at ? "; " : "", transport->name, reason);
    at = TT_MIN(at + (size_t)n, size - 1);
  }
  return false;
}

ncclResult_t tt_transport_choose(const struct tt_transport_env *env, int from, int to, enum tt_transport_id *out)
{
  char reasons[512];
  if (find(env, from, to, out, reasons, sizeof(reasons))) return ncclSuccess;
  return TT_FAIL(ncclSystemError, "no transport can reach rank %d from rank %d (%s)", to, from, reasons);
}

ncclResult_t tt_transport_choose_index(const struct tt_transport_env *env, int from, int to, int index,
                                       enum tt_transport_id *out)
{
  char reason[192];
  TT_TRY(tt_transport_choose(env, from, to, out));
  if (*out == TT_TRANSPORT_DEVICE && tt_connect_index_protocol(index) == TT_PROTO_SIMPLE &&
      tt_transport_copied.can(env, from, to, reason, sizeof(reason)))
    *out = TT_TRANSPORT_COPIED;
  return ncclSuccess;
}

bool tt_transport_by_network(const struct tt_transport_env *env, int from, int to)
{
  enum tt_transport_id id;
  char reasons[512];
  return !find(env, from, to, &id, reasons, sizeof(reasons)) || id == TT_TRANSPORT_NET;
}

/* ---- A whole communicator ---- */

static bool is_direct(enum tt_transport_id id)
{
  return id == TT_TRANSPORT_DEVICE || id == TT_TRANSPORT_INDIRECT;
}

/* Ranks of this host whose devices' memory this one does not use directly. */
struct detours {
  int count, first;
  enum tt_transport_id by; /* of the first */
  char why[512];           /* likewise: what transports that come before say */
};

static void explain(const struct tt_transport_env *env, const struct detours *detours)
{
  char more[48] = "";
  if (detours->count == 0) return;
  if (detours->count > 1) snprintf(more, sizeof(more), " (nor that of %d more)", detours->count - 1);
  TT_INFO(TT_INIT | TT_P2P, "Rank %d does not use the memory of rank %d's device%s, but goes by %s. %s", env->rank,
          detours->first, more, transports[detours->by]->name, detours->why);
}

/* Those of this rank's own connections, since both of its ends know what the machine says of them. */
static uint32_t own(const struct tt_transport_env *env)
{
  struct detours detours = {0};
  uint32_t used = 0;
  for (int peer = 0; peer < env->nranks; peer++) {
    if (peer == env->rank) continue;
    char why[sizeof(detours.why)];
    enum tt_transport_id ids[] = {TT_TRANSPORT_NET, TT_TRANSPORT_NET};
    find(env, peer, env->rank, &ids[0], why, sizeof(why));
    find(env, env->rank, peer, &ids[1], why, sizeof(why));
    used |= UINT32_C(1) << ids[0] | UINT32_C(1) << ids[1];
    bool here = env->peers[peer].node == env->peers[env->rank].node;
    if (!here || is_direct(ids[1]) || !tt_transport_device_memory(env) || detours.count++ > 0) continue;
    detours.first = peer;
    detours.by = ids[1];
    memcpy(detours.why, why, sizeof(why));
  }
  explain(env, &detours);
  return used;
}

ncclResult_t tt_transport_agree(const struct tt_transport_env *env, struct tt_bootstrap *bootstrap, uint32_t *used)
{
  uint32_t *all;
  TT_TRY(TT_CALLOC(&all, (size_t)env->nranks));
  all[env->rank] = own(env);
  ncclResult_t result = env->nranks > 1 ? tt_bootstrap_all_gather(bootstrap, all, sizeof(*all)) : ncclSuccess;
  *used = 0;
  for (int r = 0; r < env->nranks; r++) *used |= all[r];
  free(all);
  return result;
}
