/* See near.h. */
#include "transport/near.h"

#include <stdio.h>
#include <string.h>
#include "base/param.h"

void tt_near_explain(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  const struct tt_peer_info *a = &env->peers[from], *b = &env->peers[to];
  if (a->host_hash == b->host_hash)
    snprintf(reason, size, "ranks %d and %d are both on %s, but no socket leads from one to the other (containers?)",
             from, to, a->host);
  else if (strcmp(a->host, b->host) == 0)
    snprintf(reason, size, "ranks %d and %d are on two hosts or network namespaces, both named %s", from, to, a->host);
  else
    snprintf(reason, size, "rank %d is on %s, rank %d on %s", from, a->host, to, b->host);
}

bool tt_near_can_share(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  if (from == to)
    snprintf(reason, size, "a rank does not connect to itself");
  else if (tt_param_int(TT_PARAM_NCCL_SHM_DISABLE))
    snprintf(reason, size, "NCCL_SHM_DISABLE is set");
  else if (env->peers[from].node != env->peers[to].node)
    tt_near_explain(env, from, to, reason, size);
  else if (env->apart && env->net && env->apart(env->routes, from, to))
    snprintf(reason, size, "by the topology the network is the better way (NCCL_NET_DISABLE_INTRA=1: never)");
  else
    return true;
  return false;
}

bool tt_near_same_process(const struct tt_transport_env *env, const struct tt_connector *connector)
{
  return env->peers[connector->peer].process == env->peers[env->rank].process;
}
