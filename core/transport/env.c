/* What the connections of a communicator share on one rank: memory, doorbell, proxy, and what is known of the peers. */
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "bootstrap/bootstrap.h"
#include "transport/fabric.h"
#include "transport/imports.h"
#include "transport/lent.h"
#include "transport/memory.h"
#include "transport/net_link.h"
#include "transport/node.h"
#include "transport/pinned.h"
#include "transport/reach.h"
#include "transport/user_buffers.h"

static void describe(const struct tt_transport_config *config, const struct tt_peer_memory *memory,
                     struct tt_peer_info *info)
{
  info->rank = config->rank;
  info->device = config->device_index;
  info->pid = (int32_t)getpid();
  info->node = config->rank;
  info->host_hash = tt_host_hash();
  info->process = tt_host_process();
  strncpy(info->host, tt_host_name(), sizeof(info->host) - 1);
  if (config->properties) {
    memcpy(info->device_id, config->properties->id, sizeof(info->device_id));
    snprintf(info->pci, sizeof(info->pci), "%s", config->properties->pci);
  }
  tt_peer_memory_describe(memory, info);
}

static int hand_out(void *of, uint64_t object, uint64_t *bytes)
{
  const struct tt_transport_env *env = of;
  int fd = tt_slabs_descriptor(env->slabs, object, bytes);
  return fd >= 0 ? fd : tt_user_buffers_descriptor(env->users, object, bytes);
}

/* This rank's device memory for connections, which carries the name under which it is handed out. */
static ncclResult_t make_slabs(struct tt_transport_env *env, const struct tt_peer_info *me)
{
  if (!env->context) return TT_FAIL(ncclInternalError, "device %s has memory and no context", env->device->name);
  TT_TRY(tt_slabs_create(env->context, me->uds, &env->slabs));
  TT_TRY(tt_imports_create(env->context, env->memory, env->peers, &env->imports));
  TT_TRY(tt_lent_create(env, &env->lent));
  if (env->device->features & TT_DEVICE_HOST_MEMORY) TT_TRY(tt_pinned_create(env->context, env->memory, &env->pinned));
  TT_TRY(tt_user_buffers_create(env, &env->users));
  tt_peer_memory_set_source(env->memory, hand_out, env);
  return ncclSuccess;
}

/* All ranks' descriptions, each checked to be the right rank's. */
static ncclResult_t exchange(const struct tt_transport_config *config, struct tt_bootstrap *bootstrap,
                             struct tt_peer_info *peers)
{
  unsigned char(*packed)[TT_PEER_INFO_BYTES];
  ncclResult_t result = TT_CALLOC(&packed, (size_t)config->nranks);
  if (result != ncclSuccess) return result;
  tt_peer_info_pack(&peers[config->rank], packed[config->rank]);
  if (config->nranks > 1) TT_TRY_GOTO(tt_bootstrap_all_gather(bootstrap, packed, sizeof(packed[0])), result, out);
  for (int r = 0; r < config->nranks; r++) {
    TT_TRY_GOTO(tt_peer_info_unpack(packed[r], &peers[r]), result, out);
    if (peers[r].rank != r) {
      result = TT_FAIL(ncclRemoteError, "rank %d described itself as rank %d", r, peers[r].rank);
      goto out;
    }
  }
out:
  free(packed);
  return result;
}

/* Ranks that named no device get their index among those of their host. */
static void number_devices(struct tt_peer_info *peers, int nranks)
{
  for (int r = 0; r < nranks; r++) {
    if (peers[r].device >= 0) continue;
    int before = 0;
    for (int other = 0; other < r; other++) before += peers[other].node == peers[r].node;
    peers[r].device = before;
  }
}

/* More address space for memory that several communicators use, one after another. */
#define SHARED_TIMES 16

static ncclResult_t make_memory(const struct tt_transport_config *config, struct tt_peer_memory **out)
{
  size_t bytes = (size_t)tt_param_int(TT_PARAM_TUTTI_SHM_ARENA_BYTES);
  if (config->resources)
    return tt_peer_memory_share(config->resources, config->numbers, config->rank, config->nranks, out);
  return tt_peer_memory_create(config->rank, config->nranks, bytes * (config->may_be_shared ? SHARED_TIMES : 1), out);
}

/* Whether copy engines are to move data, which the proxy has them do. */
static bool copies(const struct tt_transport_env *env)
{
  return tt_param_int(TT_PARAM_NCCL_P2P_USE_CUDA_MEMCPY) && env->device && (env->device->features & TT_DEVICE_COPY);
}

ncclResult_t tt_transport_env_create(const struct tt_transport_config *config, struct tt_bootstrap *bootstrap,
                                     struct tt_transport_env **out)
{
  *out = NULL;
  struct tt_transport_env *env;
  struct tt_peer_info *peers = NULL;
  TT_TRY(TT_CALLOC(&env, 1));
  env->rank = config->rank;
  env->nranks = config->nranks;
  env->communicator = tt_bootstrap_number(bootstrap);
  env->device = config->device;
  env->net = config->net;
  env->abort = config->abort;
  env->context = config->context;
  env->first_step = (uint64_t)tt_param_int(TT_PARAM_TUTTI_FIRST_STEP);
  memcpy(env->buffer_bytes, config->buffer_bytes, sizeof(env->buffer_bytes));
  ncclResult_t result;
  TT_TRY_GOTO(TT_CALLOC(&peers, (size_t)config->nranks), result, out);
  env->peers = peers;
  TT_TRY_GOTO(make_memory(config, &env->memory), result, out);
  env->shm = tt_peer_memory_shm(env->memory);
  env->bell = tt_peer_memory_bell(env->memory, &env->bell_offset);
  if (config->net || copies(env)) TT_TRY_GOTO(tt_proxy_create(config->net, config->rank, &env->proxy), result, out);
  describe(config, env->memory, &peers[config->rank]);
  if (tt_transport_device_memory(env)) TT_TRY_GOTO(make_slabs(env, &peers[config->rank]), result, out);
  TT_TRY_GOTO(exchange(config, bootstrap, peers), result, out);
  TT_TRY_GOTO(tt_peer_memory_start(env->memory, peers), result, out);
  TT_TRY_GOTO(tt_node_prove(env->memory, bootstrap, config->rank, config->nranks, peers), result, out);
  TT_TRY_GOTO(tt_fabric_agree(env->context, config->device_index, bootstrap, config->rank, config->nranks, peers),
              result, out);
  number_devices(peers, config->nranks);
  if (env->net) TT_TRY_GOTO(tt_net_links_open(env), result, out);
  if (tt_transport_device_memory(env))
    TT_TRY_GOTO(tt_reach_create(env->device, config->rank, config->nranks, peers, bootstrap, &env->reach), result, out);
  *out = env;
out:
  if (result != ncclSuccess) tt_transport_env_destroy(env);
  return result;
}

void tt_transport_env_destroy(struct tt_transport_env *env)
{
  if (!env) return;
  tt_proxy_destroy(env->proxy);
  tt_net_links_close(env);
  tt_lent_destroy(env->lent);
  tt_imports_destroy(env->imports);
  tt_pinned_destroy(env->pinned);
  /* The service that hands out device memory may live longer, with a relay that still has users. */
  if (env->slabs) tt_peer_memory_set_source(env->memory, NULL, NULL);
  tt_peer_memory_destroy(env->memory);
  tt_user_buffers_destroy(env->users);
  tt_slabs_destroy(env->slabs);
  tt_reach_destroy(env->reach);
  free((void *)env->peers);
  free(env);
}
