/* Which NIC a connection uses, through which rank, which ranks of a host it is for, and which of two GPUs moves data.
 */
#include "api/machine_internal.h"

#include <stdio.h>
#include "base/check.h"
#include "base/param.h"
#include "topology/checks.h"

/* The NET where this rank's place in the channel's ring meets the network: in at its first GPU, out at all others. */
static int net_of_ring(const struct tt_machine *machine, int channel)
{
  const struct tt_graph *ring = machine->graphs[TT_GRAPH_RING];
  const struct tt_joined *joined = machine->joined;
  const uint64_t host_at = 56;
  int way = channel % TT_MIN(joined->nsearched, joined->nchannels);
  int c = tt_join_graph_channel(joined, TT_GRAPH_RING, joined->node[machine->rank], way);
  if (c < 0 || c >= ring->nchannels) return -1;
  bool first = ring->ranks[c * ring->nranks] == machine->rank;
  int64_t net = ring->nets[2 * c + !first];
  if (net == TT_GRAPH_NO_NET) return -1;
  uint64_t id = (uint64_t)net;
  for (int n = 0; n < machine->topology->count[TT_NODE_NET]; n++) {
    const struct tt_node *node = &machine->topology->nodes[tt_topology_node(machine->topology, TT_NODE_NET, n)];
    if ((uint64_t)node->host == id >> host_at && (uint64_t)node->net.dev == (id & (((uint64_t)1 << host_at) - 1)))
      return n;
  }
  return -1;
}

/* A NET, and the GPU whose rank sends to it. */
struct way {
  int net, gpu; /* net -1: there is none */
};

/* A rank's own way to a NET: through another GPU if its path goes there. */
static struct way way_to(const struct tt_machine *machine, int net)
{
  return (struct way){net, net < 0 ? machine->gpu : tt_topology_owner_of_buffer(machine->topology, machine->gpu, net)};
}

/* The GPU of the rank that has the peer's place on this machine; -1: none. */
static int gpu_in_place_of(const struct tt_machine *machine, int peer)
{
  const struct tt_joined *joined = machine->joined;
  int node = joined->node[machine->rank], place = joined->local[peer];
  if (place >= joined->first[node + 1] - joined->first[node]) return -1;
  return tt_topology_gpu_of_rank(machine->topology, joined->members[joined->first[node] + place]);
}

/* The way by the NIC of the rank that has the peer's place, which is on the peer's rail: if NVLink leads to that rank's
 * GPU, which then sends; or if rails may not be changed, whatever the way. */
static struct way way_by_rail(const struct tt_machine *machine, int peer, int channel)
{
  const struct tt_topology *t = machine->topology;
  const int gpu = gpu_in_place_of(machine, peer);
  if (gpu < 0 || gpu == machine->gpu) return (struct way){-1, machine->gpu};
  const struct way own = way_to(machine, tt_topology_net_of_gpu(t, gpu, channel));
  if (own.net < 0 || own.gpu == gpu || tt_param_int(TT_PARAM_NCCL_CROSS_NIC) == 0) return own;
  const bool near = tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_NET, own.net)->type <= TT_PATH_PXB;
  const bool linked = tt_topology_path_between(t, TT_NODE_GPU, machine->gpu, TT_NODE_GPU, gpu)->type <= TT_PATH_NVL;
  if (t->rules.pxn && near && linked) return (struct way){own.net, gpu};
  return (struct way){-1, machine->gpu};
}

/* Level 0: the rank's own NIC, and never through another rank. 1: its own, by the path that the topology has. 2: the
 * NIC on the peer's rail, if there is a way. */
static struct way way_to_peer(const struct tt_machine *machine, int peer, int channel, bool send)
{
  const int64_t level = tt_param_int(TT_PARAM_NCCL_P2P_PXN_LEVEL);
  const int net = tt_topology_net_of_gpu(machine->topology, machine->gpu, channel);
  if (!send || level == 0) return (struct way){net, machine->gpu};
  if (level >= 2) {
    struct way rail = way_by_rail(machine, peer, channel);
    if (rail.net >= 0) return rail;
  }
  return way_to(machine, net);
}

/* A NET that the plugin has not stands in, in the file of another rank of this host, though not in this rank's. */
static int device_of(const struct tt_machine *machine, int net)
{
  const struct tt_topology *t = machine->topology;
  int device = tt_detect_net_device(&machine->detected, t->nodes[tt_topology_node(t, TT_NODE_NET, net)].net.dev);
  return machine->ndevices > 0 ? device % machine->ndevices : device;
}

/* A machine of several hosts has NICs, and GPUs whose ranks send, that this rank cannot use. */
static bool is_here(const struct tt_machine *machine, const struct way *way)
{
  const struct tt_topology *t = machine->topology;
  const int host = t->nodes[tt_topology_node(t, TT_NODE_GPU, machine->gpu)].host;
  return t->nodes[tt_topology_node(t, TT_NODE_NET, way->net)].host == host &&
         t->nodes[tt_topology_node(t, TT_NODE_GPU, way->gpu)].host == host;
}

/* Whether the NIC of a way uses the memory of this rank's GPU. Where the path to the NIC leads through another GPU the
 * check is of that one's memory: then nothing is sent from this one's, and what is received has a path of its own. */
static void choose_memory(const struct tt_machine *machine, const struct way *way, bool send, struct tt_route *route)
{
  const struct tt_topology *t = machine->topology;
  struct tt_gpu_direct_check check;
  tt_topology_check_gpu_direct(t, machine->gpu, way->net, send, &check);
  if (check.mode == TT_GPU_DIRECT_OFF) return;
  if (check.owner != machine->gpu) {
    const int back = tt_topology_path_between(t, TT_NODE_NET, way->net, TT_NODE_GPU, machine->gpu)->type;
    if (send || back > (int)check.level) return;
  }
  route->direct = check.mode == TT_GPU_DIRECT_PCI ? TT_NET_DIRECT_PCI : TT_NET_DIRECT;
  route->flush = !send && tt_topology_flush(t, machine->gpu, way->net, false) != TT_FLUSH_NONE;
}

bool tt_machine_route(const void *routes, int peer, int channel, int index, bool send, struct tt_route *route)
{
  const struct tt_machine *machine = routes;
  const struct tt_topology *t = machine->topology;
  struct way way;
  if (tt_connect_index_point_to_point(index)) {
    way = way_to_peer(machine, peer, channel, send);
  } else {
    way = way_to(machine, net_of_ring(machine, channel));
    if (way.net < 0) way = way_to(machine, tt_topology_net_of_gpu(t, machine->gpu, channel));
  }
  if (way.net >= 0 && !is_here(machine, &way))
    way = (struct way){tt_topology_net_of_gpu(t, machine->gpu, channel), machine->gpu};
  if (way.net < 0 || !is_here(machine, &way)) return false;
  *route = (struct tt_route){.device = device_of(machine, way.net), .rank = machine->rank};
  if (send) route->rank = t->nodes[tt_topology_node(t, TT_NODE_GPU, way.gpu)].gpu.rank;
  choose_memory(machine, &way, send, route);
  return true;
}

void tt_machine_log_direct(const struct tt_machine *machine)
{
  const struct tt_topology *t = machine->topology;
  const int nways = TT_MIN(machine->joined->nsearched, machine->joined->nchannels);
  uint64_t said = 0;
  for (int c = 0; c < nways; c++) {
    const int net = tt_topology_net_of_gpu(t, machine->gpu, c);
    if (net < 0 || net >= 64 || said & UINT64_C(1) << net) continue;
    said |= UINT64_C(1) << net;
    for (int read = 0; read < 2; read++) tt_topology_log_gpu_direct(t, machine->gpu, net, read != 0);
  }
}

bool tt_machine_apart(const void *routes, int from, int to)
{
  const struct tt_machine *machine = routes;
  if (machine->peers[from].node != machine->peers[to].node) return false;
  int a = tt_topology_gpu_of_rank(machine->topology, TT_MIN(from, to));
  int b = tt_topology_gpu_of_rank(machine->topology, TT_MAX(from, to));
  if (a < 0 || b < 0) return a != b; /* one of them was left out of the machine of the other */
  return tt_topology_net_is_better(machine->topology, a, b);
}

bool tt_machine_reads(const void *routes, int from, int to)
{
  const struct tt_machine *machine = routes;
  int a = tt_topology_gpu_of_rank(machine->topology, from), b = tt_topology_gpu_of_rank(machine->topology, to);
  struct tt_peer_check check;
  if (a < 0 || b < 0 || a == b) return false;
  tt_topology_check_peers(machine->topology, a, b, &check);
  return check.reads;
}

int tt_machine_between(const void *routes, int from, int to)
{
  const struct tt_machine *machine = routes;
  int a = tt_topology_gpu_of_rank(machine->topology, from), b = tt_topology_gpu_of_rank(machine->topology, to);
  if (machine->peers[from].node != machine->peers[to].node || a < 0 || b < 0 || a == b) return -1;
  int relay = tt_topology_relay(machine->topology, a, b);
  if (relay < 0) return -1;
  return machine->topology->nodes[tt_topology_node(machine->topology, TT_NODE_GPU, relay)].gpu.rank;
}

/* Of one direction. */
static bool is_far(const struct tt_topology *t, int a, int b, char *why, size_t size)
{
  struct tt_peer_check check;
  tt_topology_check_peers(t, a, b, &check);
  if (check.reason == TT_PEER_REASON_FAR) {
    const int type = tt_topology_path_between(t, TT_NODE_GPU, a, TT_NODE_GPU, b)->type;
    snprintf(why, size, "their path, %s, is longer than %s (NCCL_P2P_LEVEL%s)",
             tt_topology_name_path((enum tt_path_type)type), tt_topology_name_path(tt_topology_peer_level(t)),
             tt_param_string(TT_PARAM_NCCL_P2P_LEVEL) ? "" : " is not set");
  } else if (check.reason == TT_PEER_REASON_DRIVER) {
    snprintf(why, size, "the driver does not let them %s each other's memory",
             check.status & TT_PEER_NO_READ ? "read" : "write");
  }
  return check.reason != TT_PEER_REASON_YES;
}

bool tt_machine_far(const void *routes, int from, int to, char *why, size_t size)
{
  const struct tt_machine *machine = routes;
  const struct tt_topology *t = machine->topology;
  int a = tt_topology_gpu_of_rank(t, TT_MIN(from, to)), b = tt_topology_gpu_of_rank(t, TT_MAX(from, to));
  if (machine->peers[from].node != machine->peers[to].node || (a < 0 && b < 0)) return false;
  if (a >= 0 && b >= 0) return is_far(t, a, b, why, size) || is_far(t, b, a, why, size);
  snprintf(why, size, "only the network joins their parts of the machine");
  return true;
}
