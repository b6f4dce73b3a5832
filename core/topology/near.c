/* What is near what: the nearest nodes of a type, CPUs and NETs of GPUs, GPUs of NETs. See topology.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/internal.h"

int tt_topology_find(const struct tt_topology *t, enum tt_node_type type, int host, uint64_t id)
{
  for (int i = 0; i < t->count[type]; i++) {
    const struct tt_node *node = &t->nodes[tt_topology_node(t, type, i)];
    if (node->id == id && node->host == host) return i;
  }
  return -1;
}

int tt_topology_gpu_of_rank(const struct tt_topology *t, int rank)
{
  for (int g = 0; g < t->count[TT_NODE_GPU]; g++)
    if (t->nodes[tt_topology_node(t, TT_NODE_GPU, g)].gpu.rank == rank) return g;
  return -1;
}

int tt_topology_nearest(const struct tt_topology *t, enum tt_node_type type, int index, enum tt_node_type to_type,
                        int *found)
{
  float bandwidth = 0;
  int best = TT_PATH_DIS, n = 0;
  for (int i = 0; i < t->count[to_type]; i++) {
    const struct tt_path *path = tt_topology_path_between(t, type, index, to_type, i);
    if (path->bandwidth > bandwidth || (path->bandwidth == bandwidth && path->type < best)) {
      bandwidth = path->bandwidth;
      best = path->type;
      n = 0;
    }
    if (path->bandwidth == bandwidth && path->type == best && best < TT_PATH_DIS) found[n++] = i;
  }
  return n;
}

int tt_topology_cpu_of_gpu(const struct tt_topology *t, int gpu)
{
  int nearest = -1, fewest = INT32_MAX;
  for (int c = 0; c < t->count[TT_NODE_CPU]; c++) {
    const struct tt_path *path = tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_CPU, c);
    if (path->hops == 0 || path->hops >= fewest) continue;
    nearest = c;
    fewest = path->hops;
  }
  return nearest;
}

void tt_topology_affinity(const struct tt_topology *t, int gpu, cpu_set_t *cpus)
{
  int cpu = tt_topology_cpu_of_gpu(t, gpu);
  CPU_ZERO(cpus);
  if (cpu >= 0) *cpus = t->nodes[tt_topology_node(t, TT_NODE_CPU, cpu)].cpu.cpus;
}

static int mirror_bits(int value, int below)
{
  int mirrored = 0;
  for (int bit = 1; bit < below; bit <<= 1) {
    mirrored = mirrored << 1 | (value & 1);
    value >>= 1;
  }
  return mirrored;
}

/* The NETs that a GPU uses, channel by channel, before they repeat: nets[(start + c) % nnets] for c below `turns`. */
struct share {
  int nnets, start, turns;
  int nets[]; /* and room for GPUs after them */
};

static struct share *share_nets(const struct tt_topology *t, int gpu)
{
  const int nnets = t->count[TT_NODE_NET], ngpus = t->count[TT_NODE_GPU];
  struct share *s = malloc(sizeof(*s) + (size_t)(nnets + ngpus) * sizeof(int));
  if (!s) return NULL;
  s->nnets = tt_topology_nearest(t, TT_NODE_GPU, gpu, TT_NODE_NET, s->nets);
  if (s->nnets == 0) return s;
  int sharing = tt_topology_nearest(t, TT_NODE_NET, s->nets[0], TT_NODE_GPU, s->nets + nnets);
  sharing = TT_MAX(sharing, 1);
  const int wanted = t->rules.nets_per_gpu;
  s->turns = wanted < 0 ? s->nnets : wanted > 0 ? TT_MIN(wanted, s->nnets) : (s->nnets + sharing - 1) / sharing;
  s->start = t->nodes[tt_topology_node(t, TT_NODE_GPU, gpu)].gpu.dev % sharing;
  if ((s->nnets & (s->nnets - 1)) == 0) s->start = mirror_bits(s->start, s->nnets);
  return s;
}

int tt_topology_net_of_gpu(const struct tt_topology *t, int gpu, int channel)
{
  struct share *s = share_nets(t, gpu);
  int net = s && s->nnets > 0 ? s->nets[(s->start + channel % s->turns) % s->nnets] : -1;
  free(s);
  return net;
}

/* Of the GPUs nearest to it, the one that comes to it on the lowest channel */
int tt_topology_gpu_of_net(const struct tt_topology *t, int net)
{
  int *gpus = malloc(((size_t)t->count[TT_NODE_GPU] + 1) * sizeof(int)), found = -1, lowest = 64;
  net = t->nodes[tt_topology_node(t, TT_NODE_NET, net)].net.same_as;
  int ngpus = gpus ? tt_topology_nearest(t, TT_NODE_NET, net, TT_NODE_GPU, gpus) : 0;
  for (int i = 0; i < ngpus; i++) {
    struct share *s = share_nets(t, gpus[i]);
    if (!s) break;
    for (int c = 0; c < TT_MIN(s->turns, lowest) && s->nnets > 0; c++) {
      if (s->nets[(s->start + c) % s->nnets] != net) continue;
      lowest = c;
      found = gpus[i];
    }
    free(s);
  }
  free(gpus);
  return found;
}
