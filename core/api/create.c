/* Making a communicator, layer by layer from the bottom: bootstrap, agreement, network, memory and peers, connections,
 * tuning. A communicator of one rank has none of them: it opens no socket, starts no thread and shares no memory. */
#include "api/create.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "api/agree.h"
#include "api/buffers.h"
#include "api/collnet.h"
#include "api/duplicates.h"
#include "api/handle.h"
#include "api/machine.h"
#include "api/timings.h"
#include "api/tuner.h"
#include "base/check.h"
#include "base/param.h"
#include "plan/shared.h"
#include "device/choose.h"
#include "kernels/host/host.h"
#include "plan/captured.h"
#include "plan/offers.h"
#include "plan/gate.h"
#include "plan/plan.h"
#include "program/signature.h"
#include "report/report.h"
#include "tuning/limits.h"

/* What a communicator keeps for its next groups: enough for some hundreds of sends and receives in one. */
#define POOL_KEEPS ((size_t)1 << 20)

/* ---- How what is acquired here is given up: see tt_comm_at_end ---- */

static void end_context(struct ncclComm *comm)
{
  tt_context_release(comm->context);
  comm->context = NULL;
}

static void end_net(struct ncclComm *comm)
{
  tt_net_close(comm->net);
  comm->net = NULL;
}

static void end_bootstrap(struct ncclComm *comm)
{
  tt_bootstrap_destroy(comm->bootstrap);
  comm->bootstrap = NULL;
}

static void end_env(struct ncclComm *comm)
{
  tt_transport_env_destroy(comm->env);
  comm->env = NULL;
}

static void end_health(struct ncclComm *comm)
{
  tt_health_destroy(comm->health);
  comm->health = NULL;
}

static void end_connect(struct ncclComm *comm)
{
  tt_connect_destroy(comm->connect);
  comm->connect = NULL;
}

static void end_collnet(struct ncclComm *comm)
{
  tt_comm_leave_collnet(comm);
  tt_collnet_close(comm->collnet);
  comm->collnet = NULL;
}

static void end_tuning(struct ncclComm *comm)
{
  tt_tuning_destroy(comm->tuning);
  comm->tuning = NULL;
}

/* ---- Making ---- */

ncclResult_t tt_device_choose(const struct tt_device **device)
{
  return tt_device_find(tt_host_device(), device);
}

/* Members of the configuration of which the user should know that nothing follows from them here. */
static void tell_unused(const struct ncclComm *comm)
{
  if (comm->device->features & TT_DEVICE_HINTS) return;
  if (comm->config.cgaClusterSize > 1)
    TT_INFO(TT_INIT, "rank %d: cgaClusterSize (NCCL_CGA_CLUSTER_SIZE) is %d: it has no effect on the %s device",
            comm->rank, comm->config.cgaClusterSize, comm->device->name);
  if (comm->config.nvlinkCentricSched != 0)
    TT_INFO(TT_INIT,
            "rank %d: nvlinkCentricSched (NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE) is %d: it has no effect on the %s "
            "device",
            comm->rank, comm->config.nvlinkCentricSched, comm->device->name);
}

static bool checks_pointers(const struct ncclComm *comm)
{
  if (!tt_param_int(TT_PARAM_NCCL_CHECK_POINTERS)) return false;
  if (comm->device->features & TT_DEVICE_CHECK) return true;
  TT_INFO(TT_INIT, "rank %d: NCCL_CHECK_POINTERS is 1: it has no effect on the %s device", comm->rank,
          comm->device->name);
  return false;
}

/* Which device this rank uses, and its context there. Devices without contexts are as many as there are ranks. */
static ncclResult_t open_device(struct ncclComm *comm, struct tt_device_properties *properties)
{
  const struct tt_device *device = comm->device;
  int count = 0, index = comm->device_index;
  tell_unused(comm);
  if (device->open == NULL) return ncclSuccess;
  if (index < 0) TT_TRY(device->current(&index));
  TT_TRY(device->count(&count));
  if (index < 0 || index >= count)
    return TT_FAIL(ncclInvalidUsage, "rank %d is to use %s device %d; this process has %d, from 0", comm->rank,
                   device->name, index, count);
  comm->device_index = index;
  tt_log_set_device(index);
  *properties = (struct tt_device_properties){.size = sizeof *properties};
  TT_TRY(device->properties(index, properties));
  properties->name[sizeof properties->name - 1] = properties->pci[sizeof properties->pci - 1] = 0;
  const struct tt_device_config config = {.size = sizeof config,
                                          .index = index,
                                          .rank = comm->rank,
                                          .nranks = comm->nranks,
                                          .cluster = (uint32_t)comm->config.cgaClusterSize,
                                          .links = (uint32_t)comm->config.nvlinkCentricSched,
                                          .apart = (uint32_t)tt_param_int(TT_PARAM_NCCL_MEM_SYNC_DOMAIN)};
  TT_TRY(tt_context_open(device, &config, &comm->context));
  return tt_comm_at_end(comm, end_context);
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

/* While a rank waits for connections it has time to look whether others are gone. */
static ncclResult_t check_health(void *health)
{
  return tt_health_check(health, true);
}

static ncclResult_t make_env(struct ncclComm *comm, const struct tt_create *create, bool share,
                             const struct tt_device_properties *properties)
{
  struct tt_transport_config config = {
      .rank = comm->rank,
      .nranks = comm->nranks,
      .device_index = comm->device_index,
      .device = comm->device,
      .context = comm->context,
      .properties = comm->context != NULL ? properties : NULL,
      .net = comm->net,
      .abort = &comm->abort,
      .may_be_shared = comm->config.splitShare == 1 || comm->config.shrinkShare == 1,
      .resources = share ? create->resources : NULL,
      .numbers = create->numbers,
  };
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) TT_TRY(tt_comm_buffer_bytes(comm->device, p, &config.buffer_bytes[p]));
  TT_TRY(tt_transport_env_create(&config, comm->bootstrap, &comm->env));
  TT_TRY(tt_comm_at_end(comm, end_env));
  TT_TRY(tt_duplicates_check(comm));
  TT_TRY(tt_health_create(comm->bootstrap, comm->rank, comm->nranks, tt_signature_describe, tt_signature_differences,
                          &comm->health));
  TT_TRY(tt_comm_at_end(comm, end_health));
  TT_TRY(tt_connect_create(comm->env, comm->bootstrap, &comm->connect));
  TT_TRY(tt_comm_at_end(comm, end_connect));
  tt_connect_set_check(comm->connect, check_health, comm->health);
  return ncclSuccess;
}

/* Of sends to a rank over a network; a channel costs both ends memory, and their proxies' threads time. */
#define NETWORK_PAIR_CHANNELS 2

/* A network connects devices with memory of their own. */
static ncclResult_t fit_to_network(struct ncclComm *comm, struct tt_tuning_input *input)
{
  int64_t pair = tt_param_int(TT_PARAM_NCCL_NCHANNELS_PER_NET_PEER);
  input->network = true;
  comm->far_channels = pair > 0 ? (int)pair : NETWORK_PAIR_CHANNELS;
  TT_TRY(TT_ZONE_NEW(&comm->zone, &comm->far, (size_t)comm->nranks));
  for (int r = 0; r < comm->nranks; r++)
    comm->far[r] = r != comm->rank && tt_transport_by_network(comm->env, comm->rank, r);
  return ncclSuccess;
}

/* Whether any two ranks of a host are of one process. */
static bool share_process(const struct ncclComm *comm)
{
  const struct tt_peer_info *peers = comm->env->peers;
  for (int r = 0; r < comm->nranks; r++)
    for (int other = 0; other < r; other++)
      if (peers[r].process == peers[other].process) return true;
  return false;
}

/* How the ranks reach each other, as far as choices depend on it. */
static ncclResult_t find_ways(struct ncclComm *comm, struct tt_tuning_input *input)
{
  const uint32_t direct = 1u << TT_TRANSPORT_DEVICE | 1u << TT_TRANSPORT_INDIRECT;
  const bool devices = tt_transport_device_memory(comm->env);
  uint32_t used;
  TT_TRY(tt_transport_agree(comm->env, comm->bootstrap, &used));
  input->all_mapped = comm->nnodes == 1 && !(used & 1u << TT_TRANSPORT_NET);
  input->members_mapped = devices && used == 1u << TT_TRANSPORT_DEVICE &&
                          !tt_param_int(TT_PARAM_NCCL_P2P_USE_CUDA_MEMCPY) &&
                          !tt_param_int(TT_PARAM_NCCL_P2P_DIRECT_DISABLE);
  if (comm->device->features & TT_DEVICE_ENGINES) input->engines = tt_tuning_engines_asked(comm->config.CTAPolicy);
  input->one_process = input->members_mapped && share_process(comm);
  input->through_host = used & 1u << TT_TRANSPORT_HOST;
  input->torn_lines = devices && (used & ~direct);
  /* Messages of LL and LL128 say by their words that they are there, which a network may tear, and GPUs look at nothing
   * else. Of LL the proxies make lines again. */
  input->protocols = comm->device->protocols;
  if (!devices || input->all_mapped) return ncclSuccess;
  bool lines = comm->device->features & TT_DEVICE_LINES;
  input->protocols &= 1u << TT_PROTO_SIMPLE | (lines ? 1u << TT_PROTO_LL : 0);
  return fit_to_network(comm, input);
}

static ncclResult_t make_tuning(struct ncclComm *comm, const ncclConfig_t *config, int max_local)
{
  const uint32_t gpu = TT_DEVICE_STREAMS | TT_DEVICE_MEMORY;
  struct tt_channel_limits limits;
  TT_TRY(tt_tuning_limits(config->minCTAs, config->maxCTAs, TT_MAX_CHANNELS, &limits));
  struct tt_tuning_input input = {
      .kind = (comm->device->features & gpu) == gpu ? TT_TUNING_GPU : TT_TUNING_HOST,
      .device_channels = tt_duplicates_channels(comm),
      .most_peers = comm->device->features & TT_DEVICE_PEERS ? (int)comm->device->peers : 0,
      .nranks = comm->nranks,
      .nnodes = comm->nnodes,
      .max_ranks_per_node = max_local,
      .nodes_mapped = !tt_transport_device_memory(comm->env) && !tt_param_int(TT_PARAM_NCCL_SHM_DISABLE),
      .network_paths = tt_machine_paths(comm),
      .multicast = comm->multicast.possible,
      .multicast_wanted = comm->multicast.wanted,
      .multicast_channels = tt_machine_multicast_channels(comm),
      .min_channels = limits.least,
      .max_channels = limits.most,
  };
  TT_TRY(find_ways(comm, &input));
  tt_comm_fit_buffers(comm->device, max_local, !input.all_mapped, comm->env->buffer_bytes);
  memcpy(input.buffer_bytes, comm->env->buffer_bytes, sizeof input.buffer_bytes);
  TT_TRY(tt_comm_at_end(comm, end_collnet));
  TT_TRY(tt_comm_join_collnet(comm, config, input.min_channels, input.max_channels));
  input.collnet_networks = comm->collnet_networks;
  input.collnet_channels = comm->collnet_channels;
  TT_TRY(tt_tuning_create(&input, &comm->tuning));
  TT_TRY(tt_comm_at_end(comm, end_tuning));
  TT_TRY(tt_comm_open_tuner(comm, input.kind));
  TT_TRY(tt_comm_at_end(comm, tt_shared_leave));
  return tt_shared_join(comm, tt_tuning_shared_channels(comm->tuning));
}

/* What only communicators of several ranks have. A rank without its device still joins, so that the others learn of it
 * instead of waiting. */
static ncclResult_t join_others(struct ncclComm *comm, const struct tt_create *create, ncclResult_t device,
                                const struct tt_device_properties *properties, struct tt_timings *timings)
{
  const char *name = comm->device != NULL ? comm->device->name : tt_param_string(TT_PARAM_TUTTI_DEVICE);
  const ncclUniqueId *ids = create->ids != NULL ? create->ids : &create->id;
  int nids = create->ids != NULL ? create->nids : 1;
  bool share = create->resources != NULL;
  TT_TRY(tt_comm_at_end(comm, end_net)); /* found later, but the bootstrap may use it until its end */
  TT_TRY(
      tt_bootstrap_create_scalable(ids, nids, comm->rank, comm->nranks, &comm->abort, create->probe, &comm->bootstrap));
  TT_TRY(tt_comm_at_end(comm, end_bootstrap));
  comm->number = tt_bootstrap_number(comm->bootstrap);
  tt_timings_enter(timings, comm, TT_STAGE_AGREEING);
  TT_TRY(tt_agree_settings(comm->bootstrap, comm->rank, comm->nranks, name, &create->config, &share));
  if (device != ncclSuccess) return device;
  TT_TRY(choose_net(comm, &create->config));
  if (tt_param_int(TT_PARAM_NCCL_OOB_NET_ENABLE)) {
    if (comm->net == NULL)
      return TT_FAIL(ncclInvalidUsage, "NCCL_OOB_NET_ENABLE is 1 but there is no network plugin to use");
    TT_TRY(tt_bootstrap_use_net(comm->bootstrap, comm->net, 0));
  }
  tt_timings_enter(timings, comm, TT_STAGE_SHARING);
  if (create->resources != NULL)
    TT_INFO(TT_INIT | TT_SHM, "comm %p rank %d %s its parent's memory", (void *)comm, comm->rank,
            share ? "shares" : "does not share, as another rank cannot,");
  TT_TRY(tt_comm_at_end(comm, tt_machine_end));
  return make_env(comm, create, share, properties);
}

static ncclResult_t fill(struct ncclComm *comm, const struct tt_create *create)
{
  comm->rank = create->rank;
  comm->nranks = create->nranks;
  comm->device_index = create->device;
  comm->id_hash = tt_bootstrap_id_hash(&create->id);
  comm->tasks_end = &comm->tasks;
  comm->config = create->config;
  TT_TRY(tt_pool_create(POOL_KEEPS, &comm->pool));
  TT_TRY(tt_zone_copy(&comm->zone, create->config.commName, &comm->name));
  TT_TRY(tt_zone_copy(&comm->zone, create->config.netName, &comm->net_name));
  comm->config.commName = comm->name;
  comm->config.netName = comm->net_name;
  TT_TRY(TT_ZONE_NEW(&comm->zone, &comm->node, (size_t)comm->nranks));
  for (int i = 0; i < 2; i++) TT_TRY(TT_ZONE_NEW(&comm->zone, &comm->rounds[i], (size_t)comm->nranks));
  TT_TRY(TT_ZONE_NEW(&comm->zone, &comm->sends, (size_t)comm->nranks));
  TT_TRY(TT_ZONE_NEW(&comm->zone, &comm->recvs, (size_t)comm->nranks));
  return ncclSuccess;
}

ncclResult_t tt_comm_alloc(const struct tt_create *create, struct ncclComm **out)
{
  struct ncclComm *comm;
  *out = NULL;
  TT_TRY(TT_CALLOC(&comm, 1));
  pthread_mutex_init(&comm->error_lock, NULL);
  pthread_mutex_init(&comm->children_lock, NULL);
  ncclResult_t result = fill(comm, create);
  if (result == ncclSuccess) {
    tt_report_add(comm);
    result = tt_comm_at_end(comm, tt_report_remove);
  }
  if (result == ncclSuccess) result = tt_handle_add(comm);
  if (result != ncclSuccess) {
    tt_comm_destroy(comm);
    return result;
  }
  *out = comm;
  return ncclSuccess;
}

/* "0000:1b:00.0" as NCCL writes it: 1b000. */
static unsigned long bus_id(const char *pci)
{
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  if (sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3) return 0;
  return (unsigned long)domain << 20 | bus << 12 | device << 4 | function;
}

static void log_init(const char *function, const struct ncclComm *comm, const struct tt_device_properties *properties,
                     const char *state)
{
  TT_INFO(TT_INIT, "%s comm %p rank %d nranks %d cudaDev %d nvmlDev -1 busId %lx commId 0x%llx%s%s - Init %s", function,
          (const void *)comm, comm->rank, comm->nranks, comm->device_index, bus_id(properties->pci),
          (unsigned long long)comm->id_hash, comm->name != NULL ? " name " : "", comm->name != NULL ? comm->name : "",
          state);
}

static ncclResult_t init(struct ncclComm *comm, const struct tt_create *create)
{
  struct tt_device_properties properties = {0};
  int max_local = 1;
  struct tt_timings timings;
  tt_timings_start(&timings);
  tt_log_set_device(TT_MAX(create->device, 0));
  ncclResult_t device = tt_device_choose(&comm->device);
  if (device == ncclSuccess) device = open_device(comm, &properties);
  tt_timings_device(&timings);
  log_init(create->function, comm, &properties, "START");
  if (comm->nranks > 1)
    TT_TRY(join_others(comm, create, device, &properties, &timings));
  else
    TT_TRY(tt_bootstrap_use_alone(create->ids != NULL ? create->ids : &create->id));
  TT_TRY(device);
  comm->check_pointers = checks_pointers(comm);
  comm->device_index = comm->env != NULL ? comm->env->peers[comm->rank].device : TT_MAX(comm->device_index, 0);
  tt_log_set_device(comm->device_index);
  tt_timings_enter(&timings, comm, TT_STAGE_SEARCHING);
  TT_TRY(tt_machine_find(comm, &max_local));
  if (comm->nranks > 1) {
    tt_timings_enter(&timings, comm, TT_STAGE_TUNING);
    TT_TRY(make_tuning(comm, &create->config, max_local));
    TT_TRY(tt_gate_open(comm));
    TT_TRY(tt_captured_open(comm));
    TT_TRY(tt_offers_open(comm));
    tt_timings_enter(&timings, comm, TT_STAGE_LAST_BARRIER);
    TT_TRY(tt_bootstrap_barrier(comm->bootstrap));
  }
  log_init(create->function, comm, &properties, "COMPLETE");
  tt_timings_log(&timings, comm, create->function);
  tt_report_ready(comm);
  return ncclSuccess;
}

/* Who could not be made does not keep the others waiting for it, even if its user looks at it later; and those that
 * were learn why, since they may be in their first operation while this one fails in its last exchange. */
ncclResult_t tt_comm_init(struct ncclComm *comm, const struct tt_create *create)
{
  ncclResult_t result = init(comm, create);
  if (result == ncclSuccess) return ncclSuccess;
  if (tt_comm_note(comm, result)) tt_comm_tell(comm);
  tt_comm_dismantle(comm);
  return result;
}
