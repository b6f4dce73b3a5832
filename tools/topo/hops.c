/* What a channel uses of the machine. See hops.h. */
#include "hops.h"

static int node_of_rank(const struct tt_topology *t, int32_t rank)
{
  int g = tt_topology_gpu_of_rank(t, rank);
  return g < 0 ? -1 : tt_topology_node(t, TT_NODE_GPU, g);
}

static int node_of_net(const struct tt_topology *t, int64_t net)
{
  if (net == TT_GRAPH_NO_NET || !t->inter) return -1; /* alone, a ring goes back to its first GPU */
  int n = tt_topology_find(t, TT_NODE_NET, (int)(net >> 56), (uint64_t)net & 0xffffffffffffff);
  return n < 0 ? -1 : tt_topology_node(t, TT_NODE_NET, n);
}

static int add(struct topo_hop *hops, int count, int from, int to, float bandwidth, bool both)
{
  if (from < 0 || to < 0) return count;
  hops[count] = (struct topo_hop){.from = from, .to = to, .bandwidth = bandwidth, .both = both};
  return count + 1;
}

/* A head and the others exchange data: by the switch, where the head has the double share, or each by its own path. */
static int add_head(const struct tt_topology *t, const struct tt_graph *g, int head, struct topo_hop *hops, int count)
{
  const bool nvls = g->kind == TT_GRAPH_NVLS;
  for (int i = 0; i < t->count[TT_NODE_GPU]; i++) {
    const int gpu = tt_topology_node(t, TT_NODE_GPU, i);
    if (!nvls && gpu == head) continue;
    const int other = !nvls ? head : t->count[TT_NODE_NVS] > 0 ? tt_topology_node(t, TT_NODE_NVS, 0) : -1;
    const float share = !nvls ? 1.0f / (float)(g->nranks - 1) : gpu == head ? 2 : 1;
    count = add(hops, count, gpu, other, g->bandwidth_intra * share, false);
    count = add(hops, count, other, gpu, g->bandwidth_intra * share, false);
  }
  return count;
}

int topo_hops(const struct tt_topology *t, const struct tt_graph *g, int channel, struct topo_hop *hops)
{
  const int32_t *ranks = &g->ranks[channel * g->nranks];
  const int in = node_of_net(t, g->nets[channel * 2]), out = node_of_net(t, g->nets[channel * 2 + 1]);
  const int first = node_of_rank(t, ranks[0]), last = node_of_rank(t, ranks[g->nranks - 1]);
  const bool ring = g->kind == TT_GRAPH_RING, head = g->kind == TT_GRAPH_NVLS || g->kind == TT_GRAPH_COLLNET_DIRECT;
  const bool chain = !ring && !head, balanced = g->pattern == TT_PATTERN_BALANCED_TREE && g->nranks > 1;
  int back = ring ? last : first, count = add(hops, 0, in, first, g->bandwidth_inter, chain);
  if (g->pattern == TT_PATTERN_SPLIT_TREE && g->nranks > 1) back = node_of_rank(t, ranks[1]);
  if (head) count = add_head(t, g, first, hops, count);
  for (int i = 0; i + 1 < g->nranks && ranks[i + 1] >= 0; i++)
    count = add(hops, count, node_of_rank(t, ranks[i]), node_of_rank(t, ranks[i + 1]), g->bandwidth_intra, chain);
  if (ring && out < 0 && g->nranks > 1) count = add(hops, count, last, first, g->bandwidth_intra, false);
  count = add(hops, count, back, out, balanced ? g->bandwidth_inter / 2 : g->bandwidth_inter, chain);
  return balanced ? add(hops, count, node_of_rank(t, ranks[1]), out, g->bandwidth_inter / 2, chain) : count;
}

int topo_most_hops(const struct tt_topology *t, const struct tt_graph *g)
{
  return 2 * t->count[TT_NODE_GPU] + g->nranks + 4;
}
