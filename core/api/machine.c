/* A communicator's machine and ways. */
#include "api/machine_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "device/describe.h"
#include "graph/file.h"
#include "graph/find.h"
#include "graph/join_exchange.h"
#include "graph/join_log.h"
#include "graph/log.h"
#include "topology/log.h"

void tt_machine_end(struct ncclComm *comm)
{
  struct tt_machine *machine = comm->machine;
  if (machine == NULL) return;
  comm->machine = NULL;
  for (int k = 0; k < TT_GRAPH_KINDS; k++) tt_graph_free(machine->graphs[k]);
  tt_topology_free(machine->topology);
  tt_joined_free(machine->joined);
  free(machine->trees);
  free(machine);
}

static void end_programs(struct ncclComm *comm)
{
  tt_programs_destroy(comm->programs);
  comm->programs = NULL;
}

/* A file that cannot be written is no reason to run nothing. */
static void dump(const struct ncclComm *comm)
{
  const char *path = tt_param_string(TT_PARAM_NCCL_GRAPH_DUMP_FILE);
  const struct tt_machine *machine = comm->machine;
  if (path == NULL || comm->rank != tt_param_int(TT_PARAM_NCCL_GRAPH_DUMP_FILE_RANK)) return;
  if (tt_graph_write_file(path, machine->topology, machine->graphs) != ncclSuccess)
    TT_WARN("NCCL_GRAPH_DUMP_FILE: %s; the graphs are not written", tt_log_thread_error());
}

/* Topology and graphs of this rank's machine. */
static ncclResult_t search(struct ncclComm *comm, const struct tt_xml *xml, const struct tt_machine_peers *peers)
{
  struct tt_machine *machine = comm->machine;
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_graph_rules graph_rules = tt_graph_rules_default();
  if (tt_transport_device_memory(comm->env)) graph_rules.nvls = comm->multicast.possible;
  TT_TRY(tt_topology_rules_from_parameters(&rules));
  TT_TRY(tt_graph_rules_from_parameters(&graph_rules));
  rules.peer_status = peers->status;
  rules.peer_ranks = peers->count;
  rules.peers_of = peers->ranks;
  TT_TRY(tt_topology_create(xml, &rules, comm->rank, comm->nranks, &machine->topology));
  machine->gpu = tt_topology_gpu_of_rank(machine->topology, comm->rank);
  tt_topology_log(machine->topology);
  TT_TRY(tt_graph_find(tt_param_string(TT_PARAM_NCCL_GRAPH_FILE), machine->topology, &graph_rules, machine->graphs,
                       NULL, NULL));
  for (int k = 0; k < TT_GRAPH_KINDS; k++)
    if (machine->graphs[k] != NULL) tt_graph_log(machine->topology, machine->graphs[k]);
  dump(comm);
  return ncclSuccess;
}

static ncclResult_t gather(void *bootstrap, void *blocks, size_t bytes)
{
  return tt_bootstrap_all_gather(bootstrap, blocks, bytes);
}

static int channels_of(int member)
{
  return member == NCCL_CONFIG_UNDEF_INT ? 0 : TT_MIN(member, TT_GRAPH_MOST_CHANNELS);
}

/* Parameters win over these. */
static void use_config(const ncclConfig_t *config, struct tt_join_rules *rules)
{
  rules->nvls_channels = channels_of(config->nvlsCTAs);
  rules->channels_per_net_peer = channels_of(config->nChannelsPerNetPeer);
}

/* Where the search knows too little of the machines, it is what the user wants. */
int tt_machine_multicast_channels(const struct ncclComm *comm)
{
  if (!comm->multicast.possible) return 0;
  if (comm->machine->joined->nvls_channels > 0) return comm->machine->joined->nvls_channels;
  int wanted = (int)tt_param_int(TT_PARAM_NCCL_NVLS_NCHANNELS);
  return wanted > 0 ? wanted : channels_of(comm->config.nvlsCTAs);
}

int tt_machine_paths(const struct ncclComm *comm)
{
  const struct tt_machine *machine = comm->machine;
  return machine && machine->joined ? TT_MIN(machine->joined->nsearched, machine->joined->nchannels) : 0;
}

/* What all machines' graphs become. */
static ncclResult_t join(struct ncclComm *comm)
{
  struct tt_machine *machine = comm->machine;
  struct tt_join_rules rules = tt_join_rules_default();
  struct tt_join_card card, *cards = NULL;
  struct tt_join_shape *shape = NULL;
  struct tt_join_shapes shapes = {0};
  ncclResult_t result;
  if (tt_transport_device_memory(comm->env)) rules.nvls = comm->multicast.possible;
  use_config(&comm->config, &rules);
  TT_TRY(tt_join_rules_from_parameters(&rules));
  TT_TRY(tt_join_describe(machine->topology, (const struct tt_graph *const *)machine->graphs, comm->rank, &rules, &card,
                          &shape));
  TT_TRY_GOTO(tt_join_exchange(&card, shape, comm->rank, comm->nranks, gather, comm->bootstrap, &cards, &shapes),
              result, out);
  TT_TRY_GOTO(tt_graph_join(cards, comm->nranks, &shapes, &rules, &machine->joined), result, out);
  tt_join_log(machine->joined, comm->rank);
out:
  free(cards);
  tt_join_shape_free(shape);
  return result;
}

/* This rank's places in both trees of each channel. */
static ncclResult_t plant(struct tt_machine *machine, int nways)
{
  TT_TRY(TT_CALLOC(&machine->trees, 2 * (size_t)nways));
  for (int i = 0; i < 2 * nways; i++) {
    struct tt_join_tree place = tt_join_twin_place(machine->joined, i % nways, i / nways, machine->rank);
    machine->trees[i] = (struct tt_tree){.up = place.up, .down = {place.down[0], place.down[1], place.down[2]}};
  }
  return ncclSuccess;
}

static bool knows_links(const struct ncclComm *comm)
{
  struct tt_device_description description;
  if (tt_param_string(TT_PARAM_NCCL_TOPO_FILE) || tt_param_string(TT_PARAM_NCCL_P2P_LEVEL)) return true;
  return tt_device_describe(comm->device, comm->device_index, &description) == ncclSuccess &&
         description.known & TT_DESCRIBED_NEIGHBOURS;
}

/* Whether the machine is to say which devices use each other's memory. Where the links of one are not known it would
 * take GPUs that NVLink joins for far from each other; then only what they can map counts, unless the user means it. */
static ncclResult_t agree_on_links(const struct ncclComm *comm, bool *known)
{
  uint8_t *all;
  *known = false;
  if (!tt_transport_device_memory(comm->env)) return ncclSuccess;
  TT_TRY(TT_CALLOC(&all, (size_t)comm->nranks));
  all[comm->rank] = knows_links(comm);
  ncclResult_t result = tt_bootstrap_all_gather(comm->bootstrap, all, sizeof(*all));
  *known = result == ncclSuccess;
  for (int r = 0; r < comm->nranks; r++) *known = *known && all[r];
  free(all);
  return result;
}

/* What the rest of the library knows of all this. Trees are the graphs' where there are GPUs, whose links those follow:
 * in a machine they are chains. Processes that share memory are equally near to each other, and better off with a tree
 * of two children all the way. */
static ncclResult_t apply(struct ncclComm *comm)
{
  struct tt_machine *machine = comm->machine;
  const struct tt_joined *joined = machine->joined;
  const int nways = TT_MIN(joined->nsearched, joined->nchannels);
  bool links_known;
  struct tt_programs_ways ways = {.nchannels = nways, .rings = joined->ring, .node = joined->node};
  memcpy(comm->node, joined->node, (size_t)comm->nranks * sizeof(*comm->node));
  comm->nnodes = joined->nnodes;
  for (int r = 0; r < comm->nranks; r++) {
    comm->rounds[0][r] = tt_join_round(joined, r, comm->rank);
    comm->rounds[1][r] = tt_join_round(joined, comm->rank, r);
  }
  if (comm->net != NULL) TT_TRY(tt_net_devices(comm->net, &machine->ndevices));
  if (joined->max_sm > 0) TT_TRY(plant(machine, nways));
  ways.trees = machine->trees;
  comm->env->routes = machine;
  comm->env->route = tt_machine_route;
  if (joined->nnodes > 1 && tt_transport_device_memory(comm->env)) tt_machine_log_direct(machine);
  comm->env->apart = tt_machine_apart;
  comm->env->reads = tt_machine_reads;
  comm->env->between = tt_machine_between;
  TT_TRY(agree_on_links(comm, &links_known));
  if (links_known) comm->env->far = tt_machine_far;
  return tt_programs_create(comm->rank, comm->nranks, &ways, &comm->programs);
}

/* What is wrong with the user's file shows when all that ranks see is one machine, which has no lines any more. */
static ncclResult_t blame_file(ncclResult_t result)
{
  const char *file = tt_param_string(TT_PARAM_NCCL_TOPO_FILE);
  char why[512];
  if (result != ncclInvalidUsage || file == NULL || strstr(tt_log_thread_error(), file) != NULL) return result;
  snprintf(why, sizeof(why), "%s", tt_log_thread_error());
  return TT_FAIL(result,
                 "%s; the ranks of a host must have the same NCCL_TOPO_FILE, and `tutti-topo show %s` names the "
                 "line of what is wrong in this rank's",
                 why, file);
}

/* Which ranks are one machine is known before it is searched. */
static ncclResult_t agree_on_multicast(struct ncclComm *comm)
{
  int32_t *machine;
  TT_TRY(TT_CALLOC(&machine, (size_t)comm->nranks));
  for (int r = 0; r < comm->nranks; r++) machine[r] = comm->env->peers[r].machine;
  ncclResult_t result = tt_multicast_agree(comm, machine);
  free(machine);
  return result;
}

static ncclResult_t find(struct ncclComm *comm)
{
  struct tt_xml *xml = NULL;
  struct tt_machine_peers peers = {0};
  TT_TRY(TT_CALLOC(&comm->machine, 1));
  comm->machine->rank = comm->rank;
  comm->machine->peers = comm->env->peers;
  TT_TRY(agree_on_multicast(comm));
  ncclResult_t result = tt_machine_see(comm, &xml);
  if (result == ncclSuccess) result = tt_machine_ask_peers(comm, &peers);
  if (result == ncclSuccess) result = search(comm, xml, &peers);
  tt_machine_free_peers(&peers);
  tt_xml_free(xml);
  TT_TRY(blame_file(result));
  TT_TRY(join(comm));
  return apply(comm);
}

static ncclResult_t alone(struct ncclComm *comm)
{
  static const int32_t zero = 0, *const ring = &zero;
  comm->nnodes = 1;
  return tt_programs_create(0, 1, &(struct tt_programs_ways){.nchannels = 1, .rings = &ring, .node = &zero},
                            &comm->programs);
}

ncclResult_t tt_machine_find(struct ncclComm *comm, int *most_local)
{
  TT_TRY(comm->nranks > 1 ? find(comm) : alone(comm));
  TT_TRY(tt_comm_at_end(comm, end_programs));
  comm->local_ranks = 0;
  for (int r = 0; r < comm->nranks; r++) comm->local_ranks += comm->node[r] == comm->node[comm->rank];
  *most_local = comm->nranks > 1 ? comm->machine->joined->max_local : 1;
  return ncclSuccess;
}
