/* See collnet.h. Each step that may fail on one rank is followed by an exchange, so that all come to the same end. */
#include "api/collnet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "program/emit.h"
#include "transport/collnet.h"
#include "tuning/env.h"

/* Channels beyond these bring nothing: the plugin has a device or few, and each takes memory. */
#define MOST_CHANNELS 4

/* Whether NCCL_ALGO names a CollNet algorithm, for any collective. */
static bool is_named(void)
{
  struct tt_env_list list;
  if (tt_env_parse("NCCL_ALGO", tt_param_string(TT_PARAM_NCCL_ALGO), &tt_env_algorithms, &list) != ncclSuccess)
    return false;
  const uint32_t collnet = 1u << TT_ALGO_COLLNET_DIRECT | 1u << TT_ALGO_COLLNET_CHAIN;
  for (int c = 0; c < TT_NUM_FUNCS; c++)
    if (list.set[c] && !list.inverted[c] && list.allowed[c] & collnet) return true;
  return false;
}

/* Where it was asked for by name, that it is not used deserves a warning. */
static void not_used(const struct ncclComm *comm, bool named, const char *why)
{
  if (named)
    TT_WARN("rank %d: CollNet, which NCCL_ALGO names, is not used: %s", comm->rank, why);
  else
    TT_INFO(TT_INIT | TT_NET, "CollNet is not used: %s", why);
}

/* From this rank's settings alone, which are the same on all ranks. */
static bool is_wanted(const struct ncclComm *comm, const ncclConfig_t *config, bool named)
{
  bool in_env = tt_param_text(TT_PARAM_NCCL_COLLNET_ENABLE) != NULL;
  bool enabled = in_env ? tt_param_int(TT_PARAM_NCCL_COLLNET_ENABLE) != 0 : config->collnetEnable == 1;
  int64_t threshold = tt_param_int(TT_PARAM_NCCL_COLLNET_NODE_THRESHOLD);
  char why[160];
  if (!enabled) {
    if (named) not_used(comm, named, "neither NCCL_COLLNET_ENABLE nor the communicator's collnetEnable is 1");
    return false;
  }
  if (tt_transport_device_memory(comm->env)) {
    not_used(comm, named, "the plugin would have to reach the device's memory, which is not supported");
    return false;
  }
  if (comm->nnodes >= threshold || named) return true;
  snprintf(why, sizeof why,
           "there are %d hosts, and NCCL_COLLNET_NODE_THRESHOLD is %lld; name it in NCCL_ALGO to use it all the same",
           comm->nnodes, (long long)threshold);
  not_used(comm, named, why);
  return false;
}

/* Opens this rank's plugin; it stays open only if all ranks have the same. */
static ncclResult_t open_plugin(struct ncclComm *comm, bool named)
{
  struct tt_collnet_offer *offers;
  char why[320];
  TT_TRY(TT_CALLOC(&offers, (size_t)comm->nranks));
  tt_collnet_open(comm->id_hash, &comm->collnet, &offers[comm->rank]);
  ncclResult_t result = tt_bootstrap_all_gather(comm->bootstrap, offers, sizeof *offers);
  bool agreed = result == ncclSuccess && tt_collnet_agree(offers, comm->nranks, &comm->collnet_offer, why, sizeof why);
  if (result == ncclSuccess && !agreed) not_used(comm, named, why);
  if (!agreed) {
    tt_collnet_close(comm->collnet);
    comm->collnet = NULL;
  }
  free(offers);
  return result;
}

/* Networks that have a member on every host, and the members of this rank's; *network is -1 where it has none. */
static ncclResult_t find_network(const struct ncclComm *comm, int *networks, int *network, int *members, int *nmembers)
{
  int32_t *found, count = comm->nnodes;
  TT_TRY(TT_CALLOC(&found, (size_t)comm->nranks));
  ncclResult_t result = ncclSuccess;
  *network = -1;
  for (*networks = 0; count == comm->nnodes; ++*networks) {
    TT_TRY_GOTO(tt_collnet_members(comm->nranks, comm->node, *networks, found, &count), result, out);
    if (count < comm->nnodes) break;
    for (int m = 0; m < count; m++) {
      if (found[m] != comm->rank) continue;
      *network = *networks;
      *nmembers = count;
      for (int i = 0; i < count; i++) members[i] = found[i];
    }
  }
out:
  free(found);
  return result;
}

/* What failed where, told by those to whom it happened; "" if nothing did. */
static void describe(const struct tt_collnet_failure *failures, int nranks, char *text, size_t size)
{
  size_t at = 0;
  text[0] = '\0';
  for (int r = 0; r < nranks && at < size - 1; r++) {
    if (failures[r].result == ncclSuccess || failures[r].rank != r) continue;
    int wrote = snprintf(text + at, size - at, "%srank %d: %.*s", at ? "; " : "", r, (int)sizeof failures[r].why - 1,
                         failures[r].why);
    at = TT_MIN(at + (size_t)wrote, size - 1);
  }
}

/* Connects, and learns whether all others are connected too. */
static ncclResult_t connect_all(struct ncclComm *comm, const struct tt_collnet_links_config *config, bool named)
{
  struct tt_collnet_failure *failures;
  char why[800];
  TT_TRY(TT_CALLOC(&failures, (size_t)comm->nranks));
  struct tt_collnet_failure *mine = &failures[comm->rank];
  if (config->network >= 0) tt_collnet_links_create(comm->env, comm->bootstrap, config, &comm->env->collnet, mine);
  ncclResult_t result = tt_bootstrap_all_gather(comm->bootstrap, failures, sizeof *failures);
  describe(failures, comm->nranks, why, sizeof why);
  free(failures);
  if (result != ncclSuccess || why[0] == '\0') return result;
  not_used(comm, named, why);
  tt_comm_leave_collnet(comm);
  tt_collnet_close(comm->collnet);
  comm->collnet = NULL;
  return ncclSuccess;
}

static int channels(int networks, int from, int to)
{
  int useful = TT_MAX(networks, MOST_CHANNELS); /* a chain's channels take the heads in turn */
  return TT_MIN(TT_MAX(useful, from), to);
}

ncclResult_t tt_comm_join_collnet(struct ncclComm *comm, const ncclConfig_t *config, int min_channels, int max_channels)
{
  bool named = is_named();
  int *members, networks = 0;
  if (!is_wanted(comm, config, named)) return ncclSuccess;
  TT_TRY(open_plugin(comm, named));
  if (comm->collnet == NULL) return ncclSuccess;
  TT_TRY(TT_CALLOC(&members, (size_t)comm->nranks));
  struct tt_collnet_links_config links = {.collnet = comm->collnet, .members = members};
  ncclResult_t result;
  TT_TRY_GOTO(find_network(comm, &networks, &links.network, members, &links.nmembers), result, out);
  while (links.network >= 0 && members[links.me] != comm->rank) links.me++;
  links.nchannels = channels(networks, min_channels, max_channels);
  TT_TRY_GOTO(connect_all(comm, &links, named), result, out);
  if (comm->collnet == NULL) goto out;
  comm->collnet_networks = networks;
  comm->collnet_channels = links.nchannels;
  TT_INFO(TT_INIT | TT_NET, "CollNet: using %s (ABI v%d, %d device%s) from %s: %d network%s of %d ranks, %d channels",
          tt_collnet_name(comm->collnet), tt_collnet_version(comm->collnet), tt_collnet_ndev(comm->collnet),
          tt_collnet_ndev(comm->collnet) == 1 ? "" : "s", tt_collnet_path(comm->collnet), networks,
          networks == 1 ? "" : "s", comm->nnodes, links.nchannels);
out:
  free(members);
  return result;
}

void tt_comm_leave_collnet(struct ncclComm *comm)
{
  if (comm->env == NULL) return;
  tt_collnet_links_destroy(comm->env->collnet);
  comm->env->collnet = NULL;
}
