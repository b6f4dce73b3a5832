/* Who may use whose memory: GPUs each other's, NETs that of GPUs. See topology.h. */
#include "base/check.h"
#include "topology/internal.h"

static const struct tt_node *gpu_at(const struct tt_topology *t, int index)
{
  return &t->nodes[tt_topology_node(t, TT_NODE_GPU, index)];
}

enum tt_path_type tt_topology_peer_level(const struct tt_topology *t)
{
  if (!t->rules.peers) return TT_PATH_LOC;
  if (t->rules.peer_level >= 0) return (enum tt_path_type)t->rules.peer_level;
  const struct tt_node *cpu = &t->nodes[tt_topology_node(t, TT_NODE_CPU, 0)];
  bool amd = cpu->cpu.arch == TT_ARCH_X86 && cpu->cpu.vendor == TT_VENDOR_AMD;
  return amd && t->count[TT_NODE_DEV] <= 2 ? TT_PATH_SYS : TT_PATH_PXB;
}

bool tt_topology_peer_access(const struct tt_topology *t, int from, int to)
{
  return tt_topology_path_between(t, TT_NODE_GPU, from, TT_NODE_GPU, to)->type <= (int)tt_topology_peer_level(t);
}

float tt_topology_best_to_net(const struct tt_topology *t, int gpu)
{
  float best = 0;
  for (int n = 0; n < t->count[TT_NODE_NET]; n++) {
    const struct tt_path *path = tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_NET, n);
    if (path->type <= TT_PATH_PXB) best = TT_MAX(best, path->bandwidth);
  }
  return best;
}

bool tt_topology_net_is_better(const struct tt_topology *t, int from, int to)
{
  if (!t->rules.net_intra) return false;
  float direct = tt_topology_path_between(t, TT_NODE_GPU, from, TT_NODE_GPU, to)->bandwidth;
  return tt_topology_best_to_net(t, from) > direct && tt_topology_best_to_net(t, to) > direct;
}

/* GPUs before sm 80 are read well only where NVLink takes the other traffic off their PCI link. */
static bool reads_well(const struct tt_topology *t, int gpu)
{
  if (t->rules.gpu_direct_read != -2) return t->rules.gpu_direct_read != 0;
  if (gpu_at(t, gpu)->gpu.sm >= 80 || t->count[TT_NODE_GPU] == 1) return true;
  for (int p = 0; p < t->count[TT_NODE_GPU]; p++)
    if (p != gpu && tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_GPU, p)->type == TT_PATH_NVL) return true;
  return false;
}

int tt_topology_owner_of_buffer(const struct tt_topology *t, int gpu, int net)
{
  const struct tt_path *path = tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_NET, net);
  if (path->type != TT_PATH_PXN) return gpu;
  for (int s = path->first; s >= 0; s = t->steps[s].next) {
    const struct tt_node *node = &t->nodes[t->links[t->steps[s].link].to];
    if (node->type == TT_NODE_GPU) gpu = node->index;
  }
  return gpu;
}

enum tt_path_type tt_topology_gpu_direct_level(const struct tt_topology *t)
{
  if (t->rules.gpu_direct_level >= 0) return (enum tt_path_type)t->rules.gpu_direct_level;
  return t->rules.gpu_direct_c2c ? TT_PATH_P2C : TT_PATH_PXB;
}

bool tt_topology_gpu_direct(const struct tt_topology *t, int gpu, int net, bool read)
{
  const struct tt_node *node = &t->nodes[tt_topology_node(t, TT_NODE_NET, net)];
  net = node->net.same_as;
  if (!node->net.gdr || !gpu_at(t, gpu)->gpu.gdr) return false;
  if (read && !reads_well(t, gpu)) return false;
  int owner = tt_topology_owner_of_buffer(t, gpu, net);
  int distance = tt_topology_path_between(t, TT_NODE_GPU, owner, TT_NODE_NET, net)->type;
  return distance <= (int)tt_topology_gpu_direct_level(t);
}
