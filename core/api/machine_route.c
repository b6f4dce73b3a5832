/* Which NIC a connection uses, through which rank, and which ranks of a host it is for. */
#include "api/machine_internal.h"
#include "base/check.h"
#include "base/param.h"

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

/* The NET of the rank that has the peer's place on this machine: then the peer's NIC is on the same rail. */
static int net_of_rail(const struct tt_machine *machine, int peer, int channel)
{
  const struct tt_joined *joined = machine->joined;
  int node = joined->node[machine->rank], place = joined->local[peer];
  if (place >= joined->first[node + 1] - joined->first[node]) return -1;
  int gpu = tt_topology_gpu_of_rank(machine->topology, joined->members[joined->first[node] + place]);
  return gpu < 0 ? -1 : tt_topology_net_of_gpu(machine->topology, gpu, channel);
}

static bool is_pxn(const struct tt_machine *machine, int net)
{
  return tt_topology_path_between(machine->topology, TT_NODE_GPU, machine->gpu, TT_NODE_NET, net)->type == TT_PATH_PXN;
}

/* Level 0: the rank's own NIC, and never through another rank. 1: its own, by the path that the topology has. 2: the
 * NIC on the peer's rail, if another rank brings the data there. */
static int net_of_peer(const struct tt_machine *machine, int peer, int channel, bool send, int64_t level)
{
  int own = tt_topology_net_of_gpu(machine->topology, machine->gpu, channel);
  if (!send || level < 2) return own;
  int rail = net_of_rail(machine, peer, channel);
  return rail >= 0 && is_pxn(machine, rail) ? rail : own;
}

bool tt_machine_route(const void *routes, int peer, int channel, int index, bool send, struct tt_route *route)
{
  const struct tt_machine *machine = routes;
  const struct tt_topology *t = machine->topology;
  const bool to_peer = tt_connect_index_point_to_point(index);
  const int64_t level = tt_param_int(TT_PARAM_NCCL_P2P_PXN_LEVEL);
  int net = to_peer ? net_of_peer(machine, peer, channel, send, level) : net_of_ring(machine, channel);
  if (net < 0) net = tt_topology_net_of_gpu(t, machine->gpu, channel);
  if (net < 0) return false;
  route->device = tt_detect_net_device(&machine->detected, t->nodes[tt_topology_node(t, TT_NODE_NET, net)].net.dev);
  route->rank = machine->rank;
  if (!send || (to_peer && level == 0) || !is_pxn(machine, net)) return true;
  int owner = tt_topology_owner_of_buffer(t, machine->gpu, net);
  route->rank = t->nodes[tt_topology_node(t, TT_NODE_GPU, owner)].gpu.rank;
  return true;
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
