/* Making a communicator, layer by layer from the bottom: bootstrap, agreement, network, memory and peers, connections,
 * tuning. A communicator of one rank has none of them: it opens no socket, starts no thread and shares no memory. */
#include "api/create.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "api/agree.h"
#include "base/check.h"
#include "base/param.h"
#include "base/timer.h"
#include "graph/order.h"
#include "kernels/host/host.h"
#include "program/signature.h"

/* A slot must hold its header, the LL signature line and some data. */
#define SMALLEST_SLOT 512

ncclResult_t tt_device_choose(const struct tt_device **device)
{
  const char *wanted = tt_param_string(TT_PARAM_TUTTI_DEVICE);
  *device = tt_host_device();
  if (wanted == NULL || strcasecmp(wanted, "auto") == 0 || strcasecmp(wanted, (*device)->name) == 0) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage, "TUTTI_DEVICE is \"%s\"; this build has only \"%s\"", wanted, (*device)->name);
}

static ncclResult_t choose_net(struct ncclComm *comm, const ncclConfig_t *config)
{
  struct tt_net_set *set = NULL;
  uint8_t *offers = NULL;
  if (tt_param_int(TT_PARAM_NCCL_NET_DISABLE)) return ncclSuccess;
  struct tt_net_request request = {
      .comm_id = comm->id_hash, .traffic_class = config->trafficClass, .net_name = config->netName};
  ncclResult_t mine = tt_net_candidates(&request, &set);
  if (set == NULL) return mine;
  ncclResult_t result = TT_CALLOC(&offers, (size_t)comm->nranks * TT_NET_OFFER_BYTES);
  if (result != ncclSuccess) goto out;
  /* A rank whose own search failed still offers, so that the others learn why. */
  tt_net_offer(set, offers + (size_t)comm->rank * TT_NET_OFFER_BYTES);
  TT_TRY_GOTO(tt_bootstrap_all_gather(comm->bootstrap, offers, TT_NET_OFFER_BYTES), result, out);
  TT_TRY_GOTO(mine, result, out);
  result = tt_net_choose(set, offers, comm->nranks, comm->rank, &comm->net);
out:
  free(offers);
  tt_net_set_free(set);
  return result;
}

/* NCCL_BUFFSIZE and NCCL_LL_BUFFSIZE, or the device's default, rounded up to whole cache lines a slot. */
static ncclResult_t buffer_bytes(const struct tt_device *device, int protocol, enum tt_param_id param, size_t *bytes)
{
  *bytes = 0;
  if (!(device->protocols & (1u << protocol))) return ncclSuccess;
  int64_t wanted = tt_param_int(param);
  if (wanted >= 0 && wanted < TT_SLOTS * SMALLEST_SLOT)
    return TT_FAIL(ncclInvalidUsage, "%s is %lld bytes; the smallest buffer is %d", tt_param_describe(param)->name,
                   (long long)wanted, TT_SLOTS * SMALLEST_SLOT);
  size_t slot = (wanted < 0 ? device->default_buffer[protocol] : (size_t)wanted) / TT_SLOTS;
  *bytes = TT_SLOTS * ((slot + 63) / 64 * 64);
  return ncclSuccess;
}

/* While a rank waits for connections it has time to look whether others are gone. */
static ncclResult_t check_health(void *health)
{
  return tt_health_check(health, true);
}

static ncclResult_t make_env(struct ncclComm *comm, int device_index)
{
  struct tt_transport_config config = {
      .rank = comm->rank,
      .nranks = comm->nranks,
      .device_index = device_index,
      .device = comm->device,
      .net = comm->net,
      .abort = &comm->abort,
  };
  TT_TRY(buffer_bytes(comm->device, TT_PROTO_LL, TT_PARAM_NCCL_LL_BUFFSIZE, &config.buffer_bytes[TT_PROTO_LL]));
  TT_TRY(buffer_bytes(comm->device, TT_PROTO_SIMPLE, TT_PARAM_NCCL_BUFFSIZE, &config.buffer_bytes[TT_PROTO_SIMPLE]));
  TT_TRY(tt_transport_env_create(&config, comm->bootstrap, &comm->env));
  TT_TRY(tt_health_create(comm->bootstrap, comm->rank, comm->nranks, tt_signature_describe, &comm->health));
  TT_TRY(tt_connect_create(comm->env, comm->bootstrap, &comm->connect));
  tt_connect_set_check(comm->connect, check_health, comm->health);
  return ncclSuccess;
}

/* From the proved hosts: the rank order, the number of hosts, and this rank's device. */
static ncclResult_t place(struct ncclComm *comm, int *max_local)
{
  int32_t *node;
  TT_TRY(TT_CALLOC(&node, (size_t)comm->nranks));
  for (int r = 0; r < comm->nranks; r++) node[r] = comm->env != NULL ? comm->env->peers[r].node : r;
  tt_graph_order(comm->nranks, node, comm->order, &comm->nnodes, max_local);
  comm->local_ranks = 0;
  for (int r = 0; r < comm->nranks; r++) comm->local_ranks += node[r] == node[comm->rank];
  free(node);
  comm->device_index = comm->env != NULL ? comm->env->peers[comm->rank].device : TT_MAX(comm->device_index, 0);
  return ncclSuccess;
}

static int channel_limit(enum tt_param_id param, int from_config, int fallback)
{
  int64_t value = tt_param_int(param);
  if (value > 0) return (int)value;
  return from_config != NCCL_CONFIG_UNDEF_INT ? from_config : fallback;
}

static ncclResult_t make_tuning(struct ncclComm *comm, const ncclConfig_t *config, int max_local)
{
  struct tt_tuning_input input = {
      .nranks = comm->nranks,
      .nnodes = comm->nnodes,
      .max_ranks_per_node = max_local,
      .all_mapped = comm->nnodes == 1 && !tt_param_int(TT_PARAM_NCCL_SHM_DISABLE),
      .protocols = comm->device->protocols,
      .min_channels = TT_MIN(channel_limit(TT_PARAM_NCCL_MIN_NCHANNELS, config->minCTAs, 1), TT_MAX_CHANNELS),
      .max_channels =
          TT_MIN(channel_limit(TT_PARAM_NCCL_MAX_NCHANNELS, config->maxCTAs, TT_MAX_CHANNELS), TT_MAX_CHANNELS),
  };
  if (input.min_channels > input.max_channels)
    return TT_FAIL(ncclInvalidUsage,
                   "at least %d channels (NCCL_MIN_NCHANNELS, minCTAs) and at most %d "
                   "(NCCL_MAX_NCHANNELS, maxCTAs) are asked for",
                   input.min_channels, input.max_channels);
  memcpy(input.buffer_bytes, comm->env->buffer_bytes, sizeof input.buffer_bytes);
  return tt_tuning_create(&input, &comm->tuning);
}

/* What only communicators of several ranks have. A rank without its device still joins, so that the others learn of it
 * instead of waiting. */
static ncclResult_t join_others(struct ncclComm *comm, const struct tt_create *create, ncclResult_t device)
{
  const char *name = device == ncclSuccess ? comm->device->name : tt_param_string(TT_PARAM_TUTTI_DEVICE);
  TT_TRY(tt_bootstrap_create(&create->id, comm->rank, comm->nranks, &comm->abort, &comm->bootstrap));
  TT_TRY(tt_agree_settings(comm->bootstrap, comm->rank, comm->nranks, name, &create->config));
  if (device != ncclSuccess) return device;
  TT_TRY(choose_net(comm, &create->config));
  if (tt_param_int(TT_PARAM_NCCL_OOB_NET_ENABLE)) {
    if (comm->net == NULL)
      return TT_FAIL(ncclInvalidUsage, "NCCL_OOB_NET_ENABLE is 1 but there is no network plugin to use");
    TT_TRY(tt_bootstrap_use_net(comm->bootstrap, comm->net, 0));
  }
  return make_env(comm, create->device);
}

static ncclResult_t alloc_comm(const struct tt_create *create, struct ncclComm **out)
{
  struct ncclComm *comm;
  TT_TRY(TT_CALLOC(&comm, 1));
  *out = comm;
  pthread_mutex_init(&comm->error_lock, NULL);
  comm->rank = create->rank;
  comm->nranks = create->nranks;
  comm->device_index = create->device;
  comm->id_hash = tt_bootstrap_id_hash(&create->id);
  comm->tasks_end = &comm->tasks;
  if (create->config.commName != NULL && (comm->name = strdup(create->config.commName)) == NULL)
    return TT_FAIL(ncclSystemError, "no memory for a communicator");
  TT_TRY(TT_CALLOC(&comm->order, (size_t)comm->nranks));
  TT_TRY(TT_CALLOC(&comm->sends, (size_t)comm->nranks));
  TT_TRY(TT_CALLOC(&comm->recvs, (size_t)comm->nranks));
  return ncclSuccess;
}

static void log_init(const struct ncclComm *comm, const char *state)
{
  TT_INFO(TT_INIT,
          "ncclCommInitRank comm %p rank %d nranks %d cudaDev %d nvmlDev -1 busId 0 commId 0x%llx%s%s - Init %s",
          (const void *)comm, comm->rank, comm->nranks, comm->device_index, (unsigned long long)comm->id_hash,
          comm->name != NULL ? " name " : "", comm->name != NULL ? comm->name : "", state);
}

ncclResult_t tt_comm_create(const struct tt_create *create, struct ncclComm **out)
{
  struct ncclComm *comm = NULL;
  int max_local = 1;
  uint64_t start = tt_timer_ns();
  ncclResult_t result;
  *out = NULL;
  TT_TRY_GOTO(alloc_comm(create, &comm), result, out);
  tt_log_set_device(TT_MAX(create->device, 0));
  ncclResult_t device = tt_device_choose(&comm->device);
  log_init(comm, "START");
  if (comm->nranks > 1) TT_TRY_GOTO(join_others(comm, create, device), result, out);
  TT_TRY_GOTO(device, result, out);
  TT_TRY_GOTO(place(comm, &max_local), result, out);
  tt_log_set_device(comm->device_index);
  TT_TRY_GOTO(tt_programs_create(comm->rank, comm->nranks, comm->order, &comm->programs), result, out);
  if (comm->nranks > 1) {
    TT_TRY_GOTO(make_tuning(comm, &create->config, max_local), result, out);
    TT_TRY_GOTO(tt_bootstrap_barrier(comm->bootstrap), result, out);
  }
  comm->magic = TT_COMM_MAGIC;
  log_init(comm, "COMPLETE");
  TT_INFO(TT_INIT, "Init took %.1f ms: %d ranks on %d hosts, device %s, network %s",
          (double)(tt_timer_ns() - start) / 1e6, comm->nranks, comm->nnodes, comm->device->name,
          comm->net != NULL ? tt_net_name(comm->net) : "none");
  *out = comm;
  return ncclSuccess;
out:
  tt_comm_destroy(comm);
  return result;
}

void tt_comm_destroy(struct ncclComm *comm)
{
  if (comm == NULL) return;
  comm->magic = 0;
  if (comm->health != NULL) tt_health_leave(comm->health);
  tt_connect_destroy(comm->connect);
  tt_health_destroy(comm->health);
  tt_bootstrap_destroy(comm->bootstrap);
  tt_transport_env_destroy(comm->env);
  tt_net_close(comm->net);
  tt_tuning_destroy(comm->tuning);
  tt_programs_destroy(comm->programs);
  free(comm->scratch);
  pthread_mutex_destroy(&comm->error_lock);
  free(comm->order);
  free(comm->sends);
  free(comm->recvs);
  free(comm->name);
  free(comm);
}
