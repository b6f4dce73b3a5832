/* Whether NETs use GPUs' memory directly, and what that takes. See checks.h. */
#include "base/check.h"
#include "topology/checks.h"
#include "topology/log.h"

static const struct tt_node *gpu_at(const struct tt_topology *t, int index)
{
  return &t->nodes[tt_topology_node(t, TT_NODE_GPU, index)];
}

/* A NET that is listed twice is the first of the two. */
static int same_net(const struct tt_topology *t, int net)
{
  return t->nodes[tt_topology_node(t, TT_NODE_NET, net)].net.same_as;
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

static bool has_c2c(const struct tt_topology *t, int gpu)
{
  int cpu = tt_topology_cpu_of_gpu(t, gpu);
  return cpu >= 0 && tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_CPU, cpu)->type == TT_PATH_C2C;
}

static enum tt_gpu_direct_reason find_reason(const struct tt_topology *t, int gpu, int net, bool read,
                                             const struct tt_gpu_direct_check *check)
{
  if (!t->nodes[tt_topology_node(t, TT_NODE_NET, net)].net.gdr) return TT_GPU_DIRECT_NET;
  if (!gpu_at(t, gpu)->gpu.gdr) return TT_GPU_DIRECT_GPU;
  if (read && !reads_well(t, gpu)) return TT_GPU_DIRECT_READS;
  return check->distance <= check->level ? TT_GPU_DIRECT_YES : TT_GPU_DIRECT_FAR;
}

void tt_topology_check_gpu_direct(const struct tt_topology *t, int gpu, int net, bool read,
                                  struct tt_gpu_direct_check *check)
{
  net = same_net(t, net);
  check->owner = tt_topology_owner_of_buffer(t, gpu, net);
  check->distance = (enum tt_path_type)tt_topology_path_between(t, TT_NODE_GPU, check->owner, TT_NODE_NET, net)->type;
  check->level = tt_topology_gpu_direct_level(t);
  check->reason = find_reason(t, gpu, net, read, check);
  check->mode = TT_GPU_DIRECT_OFF;
  if (check->reason != TT_GPU_DIRECT_YES) return;
  bool pci = check->distance != TT_PATH_P2C && has_c2c(t, check->owner);
  check->mode = pci ? TT_GPU_DIRECT_PCI : TT_GPU_DIRECT_ON;
}

bool tt_topology_gpu_direct(const struct tt_topology *t, int gpu, int net, bool read)
{
  struct tt_gpu_direct_check check;
  tt_topology_check_gpu_direct(t, gpu, net, read, &check);
  return check.mode != TT_GPU_DIRECT_OFF;
}

void tt_topology_log_gpu_direct(const struct tt_topology *t, int gpu, int net, bool read)
{
  static const char *const modes[] = {"Disabled", "Default", "PCI"};
  static const char *const reasons[] = {"", ", the NET has no support", ", the GPU has no support",
                                        ", it is not to be read", ""};
  char from[64], to[64], relay[96] = "", owner[64];
  struct tt_gpu_direct_check c;
  if (!tt_log_enabled(TT_LOG_INFO, TT_NET | TT_GRAPH)) return;
  tt_topology_check_gpu_direct(t, gpu, net, read, &c);
  const int owner_node = tt_topology_node(t, TT_NODE_GPU, c.owner);
  if (c.owner != gpu)
    snprintf(relay, sizeof(relay), "using PXN via %s, ", tt_topology_log_label(t, owner_node, owner, sizeof(owner)));
  TT_INFO(TT_NET | TT_GRAPH, "GPU Direct RDMA %s for %s (rank %d) - %s (%sdistance %d %s %d, read %d, mode %s%s)",
          c.mode == TT_GPU_DIRECT_OFF ? "Disabled" : "Enabled",
          tt_topology_log_label(t, tt_topology_node(t, TT_NODE_GPU, gpu), from, sizeof(from)), gpu_at(t, gpu)->gpu.rank,
          tt_topology_log_label(t, tt_topology_node(t, TT_NODE_NET, net), to, sizeof(to)), relay, (int)c.distance,
          c.distance <= c.level ? "<=" : ">", (int)c.level, read, modes[c.mode], reasons[c.reason]);
}

enum tt_flush tt_topology_flush(const struct tt_topology *t, int gpu, int net, bool forced)
{
  if (forced || t->rules.force_flush || gpu_at(t, gpu)->gpu.sm < 90) return TT_FLUSH_ALWAYS;
  net = same_net(t, net);
  bool near = tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_NET, net)->type <= TT_PATH_PXB;
  return near && has_c2c(t, gpu) ? TT_FLUSH_C2C : TT_FLUSH_NONE;
}
