/* What a rank tells of itself and of its machine. */
#include <stdlib.h>
#include "base/check.h"
#include "graph/join_internal.h"
#include "topology/draft.h"

/* The NETs that a GPU uses in turn: how many, what they carry together up to what the GPU can, and the slowest's. */
struct nets {
  int count;
  float together, slowest;
};

static struct nets look_at_nets(const struct tt_topology *t, int gpu)
{
  struct nets nets = {0};
  const int cpu = tt_topology_cpu_of_gpu(t, gpu), first = tt_topology_net_of_gpu(t, gpu, 0);
  float most =
      cpu < 0 ? TT_LOCAL_BANDWIDTH : tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_CPU, cpu)->bandwidth;
  bool enough = false;
  for (int c = 0, net = first; net >= 0 && c < TT_GRAPH_MOST_CHANNELS; net = tt_topology_net_of_gpu(t, gpu, ++c)) {
    if (c > 0 && net == first) break;
    const float bandwidth = tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_NET, net)->bandwidth;
    nets.slowest = c == 0 ? bandwidth : TT_MIN(nets.slowest, bandwidth);
    if (enough) continue;
    nets.count++;
    nets.together += bandwidth;
    enough = nets.together >= most;
  }
  return nets;
}

/* Across the network: one a NIC, and more where a channel does not carry that much. */
static int channels_to_net(const struct nets *nets, const struct tt_join_rules *rules)
{
  if (rules->channels_per_net_peer > 0) return rules->channels_per_net_peer;
  if (nets->count == 0) return 2;
  const int each = TT_MAX(rules->channel_bandwidth, 1);
  return TT_MAX(nets->count, ((int)nets->together + each - 1) / each);
}

/* Two a link of NVLink, two on other ways. */
static int channels_to_gpu(const struct tt_topology *t, int from, int to)
{
  const struct tt_path *path = tt_topology_path_between(t, TT_NODE_GPU, to, TT_NODE_GPU, from);
  if (path->type != TT_PATH_NVL && path->type != TT_PATH_NVB) return 2;
  const float link = tt_speed_nvlink(t->nodes[tt_topology_node(t, TT_NODE_GPU, from)].gpu.sm);
  return 2 * TT_MAX(1, (int)(path->bandwidth / link));
}

int tt_join_peer_channels(const struct tt_topology *t, int gpu, const struct tt_join_rules *rules)
{
  const struct nets nets = look_at_nets(t, gpu);
  int fewest = TT_GRAPH_MOST_CHANNELS;
  for (int g = 0; g < t->count[TT_NODE_GPU]; g++)
    if (g != gpu) fewest = TT_MIN(fewest, channels_to_gpu(t, gpu, g));
  return t->inter ? TT_MIN(fewest, channels_to_net(&nets, rules)) : fewest;
}

static int compare(const void *a, const void *b)
{
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

ncclResult_t tt_join_describe(const struct tt_topology *t, const struct tt_graph *const graphs[TT_GRAPH_KINDS],
                              int rank, const struct tt_join_rules *rules, struct tt_join_card *card,
                              struct tt_join_shape **shape)
{
  const int nlocal = t->count[TT_NODE_GPU], gpu = tt_topology_gpu_of_rank(t, rank);
  int32_t *ranks;
  *shape = NULL;
  if (gpu < 0) return TT_FAIL(ncclInternalError, "rank %d is none of its own machine", rank);
  TT_TRY(TT_CALLOC(&ranks, (size_t)nlocal));
  for (int g = 0; g < nlocal; g++) ranks[g] = t->nodes[tt_topology_node(t, TT_NODE_GPU, g)].gpu.rank;
  qsort(ranks, (size_t)nlocal, sizeof(*ranks), compare);
  const struct tt_node *cpu = t->count[TT_NODE_CPU] > 0 ? &t->nodes[tt_topology_node(t, TT_NODE_CPU, 0)] : NULL;
  *card = (struct tt_join_card){.leader = ranks[0],
                                .peer_channels = tt_join_peer_channels(t, gpu, rules),
                                .sm = t->nodes[tt_topology_node(t, TT_NODE_GPU, gpu)].gpu.sm,
                                .arch = cpu ? (int)cpu->cpu.arch : TT_ARCH_OTHER,
                                .vendor = cpu ? (int)cpu->cpu.vendor : TT_VENDOR_OTHER,
                                .net_bandwidth = look_at_nets(t, gpu).slowest};
  ncclResult_t result = tt_join_shape_new(graphs, ranks, nlocal, shape);
  free(ranks);
  TT_TRY(result);
  card->digest = (*shape)->digest;
  card->shape_bytes = (uint32_t)(*shape)->bytes;
  return ncclSuccess;
}
